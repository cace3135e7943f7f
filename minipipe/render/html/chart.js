// The chart of one timeline: a row for each rank, drawn once for each view. A second canvas above it has the moment.

const AXIS = 26; // pixels, for the marks of time
const GAP = 7; // pixels between two rows
const THIN = 5; // pixels, of the lanes of what goes on beside actions
// NARROW, in pixels: narrower actions share a column, TOGETHER so many at least. The page declares both.
const MOST_ARROWS = 600; // more visible ones than this are not drawn

class Chart {
  constructor(timeline, holder, mostHeld, labels) {
    this.timeline = timeline;
    this.labels = labels;
    this.mostHeld = mostHeld;
    this.box = timeline.ranks.length > 16 ? 14 : timeline.ranks.length > 8 ? 20 : 28; // pixels, as all below
    this.letters = this.box > 20 ? 12 : 10;
    this.strip = timeline.ranks.length > 16 ? 5 : 9;
    this.lanes = timeline.lanes; // thin ones, below the actions
    this.pitch = this.box + THIN * this.lanes.length + this.strip + GAP;
    this.height = AXIS + timeline.ranks.length * this.pitch + 4;
    const both = ([rank, index]) => [index, timeline.ranks[rank].partners.get(index)].map((i) => `${rank} ${i}`);
    this.onPath = new Set(timeline.criticalPath.flatMap(both));
    const ranks = timeline.criticalPath.map(([rank]) => timeline.ranks[rank].actions);
    this.path = new Stretches(
      timeline.criticalPath.map(([, index], i) => ranks[i].starts[index]),
      timeline.criticalPath.map(([, index], i) => ranks[i].ends[index]),
    );
    [this.plan, this.moment] = holder.querySelectorAll("canvas");
    this.isForPaper = false;
  }

  top(rank) {
    return AXIS + rank * this.pitch;
  }

  middle(rank) {
    return this.top(rank) + this.box / 2;
  }

  /** Returns the edge of a rank's row that faces another rank. */
  edge(rank, other) {
    return this.top(rank) + (other > rank ? this.box : 0);
  }

  /** Returns the visible part of the critical path, and one more step at either end. */
  pathWithin(view) {
    const [first, last] = this.path.within(view.first, view.last);
    return this.timeline.criticalPath.slice(Math.max(0, first - 1), last + 1);
  }

  /** Returns the rank whose row is at a height, or -1. */
  rankAt(y) {
    const rank = Math.floor((y - AXIS) / this.pitch);
    return rank >= 0 && rank < this.timeline.ranks.length ? rank : -1;
  }

  /** Clears a canvas and returns its pen, scaled to CSS pixels. */
  pen(canvas, width, ratio) {
    const [w, h] = [Math.round(width * ratio), Math.round(this.height * ratio)];
    const pen = canvas.getContext("2d");
    if (this.isForPaper || canvas.width !== w || canvas.height !== h) {
      Object.assign(canvas, { width: w, height: h }); // also clears it
      Object.assign(canvas.style, { width: `${width}px`, height: `${this.height}px` });
    } else {
      pen.clearRect(0, 0, canvas.width, canvas.height); // on paper it would clear what lies under this canvas, too
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = `${this.letters}px ${FONT}`;
    pen.textBaseline = "middle";
    return pen;
  }

  /** Draws everything that does not depend on the moment, and notes the number of boxes. */
  drawPlan(view, look, ratio, wishes) {
    const pen = this.pen(this.plan, view.width, ratio);
    this.drawNames(pen, view, look);
    pen.save();
    pen.beginPath();
    pen.rect(view.gutter, 0, view.width - view.gutter, this.height);
    pen.clip();
    this.drawAxis(pen, view, look);
    this.labels.choose(pen, view, look, this.box, this.letters);
    pen.font = this.labels.font;
    let boxes = 0;
    this.hasColumns = false;
    this.timeline.ranks.forEach((rank, r) => {
      boxes += drawIdle(pen, view, look, rank, this.top(r), this.box);
      boxes += drawActions(pen, view, look, this, r, wishes.criticalPath);
      const below = this.top(r) + this.box + 1;
      boxes += drawBeside(pen, view, look, rank, this.lanes, below);
      drawHeld(pen, view, look, rank, below + THIN * this.lanes.length, this.strip, this.mostHeld);
    });
    if (wishes.criticalPath) boxes += drawPath(pen, view, look, this);
    if (wishes.messages) boxes += drawAllMessages(pen, view, look, this);
    pen.restore();
    this.plan.dataset.boxes = boxes;
  }

  drawNames(pen, view, look) {
    pen.fillStyle = look.colour.muted;
    pen.textAlign = "right";
    const names = this.timeline.ranks.map((_, r) => (view.gutter < 48 ? `${r}` : `rank ${r}`));
    names.forEach((name, r) => pen.fillText(name, view.gutter - 8, this.middle(r)));
    this.drawUnit(pen, view, look);
  }

  /** Draws the unit of time in the gutter, beside the first mark. */
  drawUnit(pen, view, look) {
    if (pen.measureText(look.unit).width < view.gutter - 8) pen.fillText(look.unit, view.gutter - 8, 8);
  }

  drawAxis(pen, view, look) {
    pen.textAlign = "center";
    for (const time of view.ticks()) {
      const x = view.x(time);
      const text = `${rounded(time * (look.inMilliseconds ? 1000 : 1), 10)}`;
      pen.fillStyle = look.colour.grid;
      pen.fillRect(x - 0.5, AXIS - 6, 1, this.height);
      pen.fillStyle = look.colour.muted;
      pen.fillText(text, Math.max(x, view.gutter + pen.measureText(text).width / 2), 8);
    }
  }
}

/** Draws the idle slots of a rank, hatched by cause; slots narrower than a pixel are left blank. */
function drawIdle(pen, view, look, rank, top, height) {
  const { starts, ends } = rank.idle;
  const narrowest = 1 / view.pixelsPerTime;
  let boxes = 0;
  let [i, last] = rank.idle.within(view.first, view.last);
  while (i < last) {
    if (ends[i] - starts[i] >= narrowest) {
      const x = Math.max(view.x(starts[i]), view.gutter - 1);
      const width = Math.min(view.x(ends[i]), view.width) - x;
      pen.fillStyle = look.colour.slot;
      pen.fillRect(x, top, width, height);
      pen.fillStyle = look.hatches[rank.idleParts[i][2]];
      pen.fillRect(x, top, width, height);
      boxes += 1;
      i += 1;
    } else {
      i = Math.max(i + 1, countUpTo(ends, starts[i] + narrowest));
    }
  }
  return boxes;
}

/** Draws the actions of a rank: a box for each, or a column for several narrow ones. */
function drawActions(pen, view, look, chart, r, showsPath) {
  const rank = chart.timeline.ranks[r];
  const { starts, ends } = rank.drawn;
  const [first, last] = rank.drawn.within(view.first, view.last);
  let boxes = 0;
  for (let i = first, next; i < last; i = next) {
    next = columnEnd(view, starts, ends, i);
    if (next > i + 1) {
      const drawn = drawColumn(pen, view, look, rank, chart.top(r), chart.box, i, next);
      if (drawn) chart.hasColumns = true; // actions of length 0 are never drawn
      boxes += drawn;
    } else if (ends[i] > starts[i]) {
      const isPale = showsPath && !chart.onPath.has(`${r} ${i}`);
      drawBox(pen, view, look, chart, r, i, isPale);
      boxes += 1;
      if (rank.partners.get(i) === i - 1) frame(pen, view, look, chart, r, i, isPale ? 0.35 : 1);
    }
  }
  return boxes;
}

/** Returns the first action after `i` that does not share its column. */
function columnEnd(view, starts, ends, i) {
  const narrowest = NARROW / view.pixelsPerTime;
  if (ends[i] - starts[i] >= narrowest) return i + 1;
  let next = Math.max(i + 1, countUpTo(ends, starts[i] + narrowest));
  while ((next - i) % TOGETHER && ends[next] - starts[next] < narrowest && starts[next] - ends[next - 1] < narrowest) {
    next += 1;
  }
  return next;
}

function drawBox(pen, view, look, chart, r, i, isPale) {
  const [rank, top, height] = [chart.timeline.ranks[r], chart.top(r), chart.box];
  const [x, end] = [view.x(rank.drawn.starts[i]), view.x(rank.drawn.ends[i])];
  const width = widthOfBox(end - x);
  const [fill, ink] = look.fill(rank.kinds[i], rank.chunkOf(i));
  pen.globalAlpha = isPale ? 0.35 : 1;
  pen.fillStyle = fill;
  pen.fillRect(x, top, width, height);
  if (rank.isSend(i)) {
    pen.fillStyle = look.hatches.sending;
    pen.fillRect(x, top, width, height);
  }
  if (end > x) {
    pen.fillStyle = ink;
    const middle = (Math.max(x, view.gutter) + Math.min(x + width, view.width)) / 2; // of its visible part
    chart.labels.draw(pen, view, rank, i, width, middle, top + height / 2);
  }
  pen.globalAlpha = 1;
}

/** Draws several narrow actions as bands above each other, each kind by its fraction of the time; the rest is idle. */
function drawColumn(pen, view, look, rank, top, height, first, next) {
  const { starts, ends } = rank.drawn;
  const start = starts[first];
  const isJoined = starts[next] - ends[next - 1] < NARROW / view.pixelsPerTime;
  const end = isJoined ? starts[next] : ends[next - 1];
  const x = Math.round(view.x(start));
  const width = Math.max(1, Math.round(view.x(end)) - x);
  const bottom = top + height;
  let y = top;
  let boxes = 0;
  for (const [kind, sums] of rank.busy) {
    const share = (sums[next] - sums[first]) / (end - start || 1);
    if (!share || !look.fills[kind]) continue;
    const part = Math.min(bottom - y, Math.max(1, share * height));
    pen.fillStyle = look.fill(kind, 0)[0];
    pen.fillRect(x, y, width, part);
    y += part;
    boxes += 1;
  }
  return boxes;
}

/** Draws gradient all-reduces and copies of a rank, which run concurrently with its actions. */
function drawBeside(pen, view, look, rank, lanes, top) {
  const visible = rank.beside.filter(([, , begin, end]) => begin < view.last && end > view.first);
  for (const [kind, stage, begin, end] of visible) {
    const x = Math.max(view.x(begin), view.gutter - 1);
    pen.fillStyle = look.fill(kind, rank.stages.indexOf(stage))[0];
    pen.fillRect(x, top + THIN * lanes.indexOf(kind), Math.max(1, Math.min(view.x(end), view.width) - x), THIN - 1);
  }
  return visible.length;
}

/** Draws the level of a rank over time; of the changes within a pixel, the highest. */
function drawHeld(pen, view, look, rank, top, height, most) {
  const steps = rank.level;
  const bottom = top + height;
  let i = Math.max(0, countUpTo(steps.times, view.first) - 1);
  pen.beginPath();
  pen.moveTo(view.gutter, bottom);
  let y = bottom;
  while (i < steps.times.length && steps.times[i] <= view.last) {
    const x = Math.max(view.gutter, view.x(steps.times[i]));
    const next = Math.max(i + 1, countUpTo(steps.times, steps.times[i] + 1 / view.pixelsPerTime));
    let level = 0;
    for (let k = i; k < next; k += 1) level = Math.max(level, steps.values[k]);
    pen.lineTo(x, y);
    y = bottom - (level / (most || 1)) * height;
    pen.lineTo(x, y);
    i = next;
  }
  const right = Math.min(view.width, Math.max(view.gutter, view.x(view.duration)));
  pen.lineTo(right, y);
  pen.lineTo(right, bottom);
  pen.fillStyle = look.colour.memory;
  pen.fill();
}
