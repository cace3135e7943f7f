// Lines between the rows: messages, the critical path, and dependencies of waiting ranks.

/** Draws the critical path: a line along it, and a frame around each action. */
function drawPath(pen, view, look, chart) {
  pen.strokeStyle = look.colour.ink;
  pen.lineWidth = 1.5;
  pen.beginPath();
  let drawn = 0;
  let edge = -Infinity; // where the last one drawn ends, in pixels
  for (const [r, i] of chart.pathWithin(view)) {
    const { starts, ends } = chart.timeline.ranks[r].actions;
    const [x, end] = [view.x(starts[i]), view.x(ends[i])];
    if (end - edge < 1) continue;
    if (drawn) pen.lineTo(x, chart.middle(r));
    else pen.moveTo(x, chart.middle(r));
    if (end - x > 4) pen.rect(x + 0.75, chart.top(r) + 0.75, end - x - 2.5, chart.box - 1.5);
    else pen.lineTo(end, chart.middle(r));
    pen.moveTo(end, chart.middle(r));
    edge = end;
    drawn += 1;
  }
  pen.stroke();
  return drawn;
}

/** Draws all visible messages, unless they are too many to tell apart. */
function drawAllMessages(pen, view, look, chart) {
  const { starts } = chart.timeline.messages;
  const first = countUpTo(chart.timeline.messages.latestEnds, view.first);
  const last = countUpTo(starts, view.last);
  chart.hidesMessages = last - first > MOST_ARROWS;
  if (chart.hidesMessages) return 0;
  pen.lineWidth = 1;
  for (let i = first; i < last; i += 1) drawMessage(pen, view, look, chart, i, 0.55);
  return last - first;
}

/** Draws a message as an arrow from its send to its arrival. */
function drawMessage(pen, view, look, chart, i, opacity) {
  const [value, , source, destination] = chart.timeline.messageParts[i];
  const [x, end] = [view.x(chart.timeline.messages.starts[i]), view.x(chart.timeline.messages.ends[i])];
  pen.globalAlpha = opacity;
  pen.strokeStyle = pen.fillStyle = value.includes("F") ? look.colour.message : look.colour.gradient;
  drawArrow(pen, x, chart.edge(source, destination), end, chart.edge(destination, source));
  pen.globalAlpha = 1;
}

function drawArrow(pen, x, y, toX, toY) {
  const angle = Math.atan2(toY - y, toX - x);
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(toX - 5 * Math.cos(angle), toY - 5 * Math.sin(angle));
  pen.stroke();
  pen.beginPath();
  pen.moveTo(toX, toY);
  for (const turn of [-0.4, 0.4]) pen.lineTo(toX - 9 * Math.cos(angle + turn), toY - 9 * Math.sin(angle + turn));
  pen.fill();
}

/** Draws the moment: the cursor, running actions, dependencies of waiting ranks, and messages under way. */
function drawMoment(chart, view, look, ratio, moment, scene) {
  const pen = chart.pen(chart.moment, view.width, ratio);
  pen.save();
  pen.beginPath();
  pen.rect(view.gutter - 6, 0, view.width - view.gutter + 6, chart.height);
  pen.clip();
  drawCursor(pen, view, look, chart, scene.time);
  moment.ranks.forEach((state, r) => {
    if (state.action >= 0) frame(pen, view, look, chart, r, state.action);
    const passes = state.action >= 0 && state.howFar === "done"; // a send that waits for nobody: its message is drawn
    if (state.idle >= 0 && !passes) drawWait(pen, view, look, chart, r, state.idle);
  });
  pen.lineWidth = 2;
  const underWay = new Set(moment.messages);
  for (const i of underWay) drawTravelling(pen, view, look, chart, i, scene.time);
  for (const [i, opacity] of scene.fading(chart.timeline)) {
    if (!underWay.has(i)) drawMessage(pen, view, look, chart, i, opacity);
  }
  pen.restore();
  if (scene.rank >= 0) drawSelected(pen, view, look, chart, scene.rank);
  chart.moment.dataset.messages = underWay.size;
}

function drawCursor(pen, view, look, chart, time) {
  const x = view.x(time);
  pen.fillStyle = look.colour.ink;
  pen.fillRect(x - 0.75, AXIS - 4, 1.5, chart.height);
  pen.beginPath();
  pen.moveTo(x - 5, AXIS - 10);
  pen.lineTo(x + 5, AXIS - 10);
  pen.lineTo(x, AXIS - 2);
  pen.fill();
}

/** Draws a frame around an action, or around two overlapped ones. */
function frame(pen, view, look, chart, r, i, opacity = 1) {
  const { starts, ends } = chart.timeline.ranks[r].actions;
  const [x, end] = [view.x(starts[i]), view.x(ends[i])];
  if (end - x < NARROW) return;
  pen.strokeStyle = look.colour.ink;
  pen.lineWidth = 1.5;
  pen.globalAlpha = opacity;
  pen.strokeRect(x - 0.25, chart.top(r) - 0.75, Math.max(2, end - x - 0.5), chart.box + 1.5);
  pen.globalAlpha = 1;
}

/** Draws a dashed line from the awaited action to the end of the wait. */
function drawWait(pen, view, look, chart, r, idle) {
  const parts = chart.timeline.ranks[r].idleParts[idle];
  const place = chart.timeline.awaited(parts);
  if (!place) return;
  const { starts, ends } = chart.timeline.ranks[place[0]].actions;
  const [x, end] = [view.x(starts[place[1]]), view.x(ends[place[1]])];
  pen.strokeStyle = look.colour.ink;
  pen.lineWidth = 1.25;
  pen.setLineDash([4, 3]);
  pen.strokeRect(x + 1, chart.top(place[0]) + 1, Math.max(1, end - x - 3), chart.box - 2);
  pen.beginPath();
  pen.moveTo(end, chart.edge(place[0], r));
  pen.lineTo(view.x(chart.timeline.ranks[r].idle.ends[idle]), chart.edge(r, place[0]));
  pen.stroke();
  pen.setLineDash([]);
}

/** Draws a message under way, with a dot at its position. */
function drawTravelling(pen, view, look, chart, i, time) {
  drawMessage(pen, view, look, chart, i, 1);
  const [, , source, destination] = chart.timeline.messageParts[i];
  const [start, end] = [chart.timeline.messages.starts[i], chart.timeline.messages.ends[i]];
  if (end === start) return;
  const share = (time - start) / (end - start);
  const [y, toY] = [chart.edge(source, destination), chart.edge(destination, source)];
  pen.beginPath();
  pen.arc(view.x(time), y + share * (toY - y), 4, 0, 2 * Math.PI);
  pen.fill();
}

function drawSelected(pen, view, look, chart, r) {
  pen.fillStyle = look.colour.ink;
  pen.fillRect(view.gutter - 4, chart.top(r), 2, chart.box);
}
