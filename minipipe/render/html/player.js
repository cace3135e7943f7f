// The player: one moment and one view, from which the page is drawn.

const SPEEDS = [0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]; // typical actions in a second
const SHORT = 60; // seconds: the default limit of a whole run
const GLOW = 0.4; // typical actions: how long a message stays visible after its arrival while playing

class Player {
  constructor(data) {
    const ids = ["player", "play", "clock", "speed", "scrub", "scroller", "extent", "sheet", "details", "spoken"];
    this.parts = Object.fromEntries(ids.map((id) => [id, document.getElementById(id)]));
    this.details = new Details(this, this.parts.details);
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
    Object.assign(this, { time: 0, isPlaying: false, selected: null, wishes: {}, isDragging: false, isPrinting: false });
    this.read(data);
    this.makeSpeeds();
  }

  read(data) {
    this.data = data;
    this.events = eventsOf(data);
    const snap = snapTo(this.events, data.duration);
    this.timelines = data.panels.map((panel) => new Timeline(panel, snap));
    this.typical = typicalLength(this.timelines) || data.duration || 1;
    this.sentences = new Sentences(data);
    this.view = new View(data.duration, this.typical);
    this.glowing = this.timelines.map(({ messages: { starts, ends } }) =>
      new Stretches(starts, ends.map((end) => end + GLOW * this.typical)));
    this.makeParts();
  }

  /** Takes other data of as many timelines; the view and the moment stay, as far as they can. */
  take(data) {
    const { zoom, scroll, duration } = this.view;
    this.pause();
    this.read(data);
    const scale = zoom === 1 ? 1 : Math.max(1, (zoom * data.duration) / duration); // a unit of time keeps its width
    Object.assign(this.view, { zoom: scale, scroll });
    this.time = this.view.clamped(this.time);
    if (this.selected && this.selected[1] >= this.timelines[this.selected[0]].ranks.length) this.selected = null;
    this.resize();
  }

  makeParts() {
    const levels = levelsOf(this.timelines);
    const most = Math.max(...levels.map((level) => level.most), 0);
    const holders = [...this.parts.sheet.querySelectorAll(".chart")];
    const labels = labelsOf(this.timelines);
    this.charts = this.timelines.map((timeline, t) => new Chart(timeline, holders[t], most, labels[t]));
    const moments = [...document.querySelectorAll(".moment")];
    const ranks = this.timelines.flatMap((timeline) => timeline.ranks);
    const mostHeld = Math.max(1, ...ranks.map((rank) => rank.held.most));
    this.tables = this.timelines.map((timeline, t) => new MomentTable(timeline, moments[t], this.sentences, mostHeld));
    document.querySelectorAll(".all details").forEach((details, r) => fillWhenOpened(details, ranks[r], this.sentences));
    this.parts.scrub.max = this.view.duration;
  }

  makeSpeeds() {
    const wanted = this.data.duration / this.typical / SHORT;
    const speed = SPEEDS.find((each) => each >= 1 && each >= wanted) || SPEEDS[SPEEDS.length - 1];
    for (const each of SPEEDS) this.parts.speed.add(new Option(`${each}×`, each, each === speed, each === speed));
    this.setSpeed(speed);
  }

  setSpeed(speed) {
    this.pace = speed * this.typical; // in time of the timelines for each second
  }

  // -- the moment ------------------------------------------------------------------------------------------

  /** The moment that is shown: only events, for people who prefer reduced motion. */
  get shown() {
    if (!this.isPlaying || !this.calm.matches) return this.time;
    return this.events[Math.max(0, countUpTo(this.events, this.time) - 1)];
  }

  scrub(time) {
    this.time = this.view.clamped(time);
    this.drawSoon();
  }

  goTo(time) {
    this.pause();
    this.scrub(time);
    this.followTime();
    this.speak();
  }

  /** Goes to the next or to the previous event. */
  step(direction) {
    const count = countUpTo(this.events, this.time);
    const isEvent = this.events[count - 1] === this.time;
    const index = direction > 0 ? count : count - (isEvent ? 2 : 1);
    this.goTo(this.events[Math.min(this.events.length - 1, Math.max(0, index))]);
  }

  toggle() {
    if (this.isPlaying) {
      this.pause();
      this.speak();
      return;
    }
    if (this.time >= this.view.duration) this.time = 0;
    this.isPlaying = true;
    this.before = null;
    this.showPlaying();
    this.drawSoon();
  }

  pause() {
    this.isPlaying = false;
    this.showPlaying();
    this.drawSoon();
  }

  showPlaying() {
    this.parts.play.classList.toggle("is-playing", this.isPlaying);
    write(this.parts.play.querySelector("span"), this.isPlaying ? "Pause" : "Play");
  }

  advance(now) {
    const passed = this.before === null ? 0 : Math.min(100, now - this.before) / 1000;
    this.before = now;
    this.time = Math.min(this.view.duration, this.time + passed * this.pace);
    this.followTime();
    if (this.time < this.view.duration) return;
    this.pause();
    this.speak();
  }

  /** Selects a rank, announces its state, and marks it. */
  select(direction) {
    this.selected = chosen(this, direction);
    if (!this.selected) return;
    const [t, r] = this.selected;
    const { left, top } = this.charts[t].moment.getBoundingClientRect();
    const [x, y] = [left + this.view.x(this.time), top + this.charts[t].top(r)];
    write(this.parts.spoken, `rank ${r}: ${this.details.show(t, r, this.time, x, y)}`);
    this.drawSoon();
  }

  // -- the view --------------------------------------------------------------------------------------------

  /** Zooms around a time: by default the moment, or the middle of the view if the moment is not visible. */
  zoomBy(factor, time = this.time) {
    const { first, last } = this.view;
    this.view.zoomBy(factor, time >= first && time <= last ? time : (first + last) / 2);
    this.applyView();
  }

  showAll() {
    this.view.showAll();
    this.applyView();
  }

  followTime() {
    const before = this.view.scroll;
    this.view.show(this.time);
    if (Math.abs(this.view.scroll - before) >= 1) this.applyView();
  }

  /** Sets the scroll bar of the page to the view; the browser may clamp it. */
  applyView() {
    const { extent, scroller } = this.parts;
    extent.style.inlineSize = `${this.view.width + this.view.room * (this.view.zoom - 1)}px`;
    scroller.scrollLeft = this.view.scroll;
    this.scrolled();
  }

  scrolled() {
    this.view.scroll = this.parts.scroller.scrollLeft;
    this.details.hide();
    this.drawPlansSoon();
  }

  resize() {
    this.view.width = this.parts.scroller.clientWidth;
    this.view.gutter = this.view.width < 600 ? 28 : 62;
    this.parts.scrub.style.marginInline = `${this.view.gutter - 8}px ${MARGIN - 8}px`; // the thumb is above the cursor
    this.parts.scrub.style.inlineSize = `${this.view.room + 16}px`;
    this.parts.sheet.style.inlineSize = `${this.view.width}px`;
    this.changeLook(this.isPrinting);
    this.applyView();
  }

  /** Whether the page is dark: by its theme, if it has one, or as the system prefers. */
  get isDark() {
    const { theme } = document.documentElement.dataset;
    return theme ? theme === "dark" : this.dark.matches;
  }

  changeLook(isPrinting = this.isPrinting) {
    this.isPrinting = isPrinting;
    for (const chart of this.charts) chart.isForPaper = isPrinting;
    this.ratio = isPrinting ? 3 : Math.max(1, devicePixelRatio);
    this.look = new Look(this.data, this.isDark && !isPrinting, this.ratio);
    this.drawPlansSoon();
    if (isPrinting) this.draw(performance.now());
  }

  wish(name, isWished) {
    this.wishes[name] = isWished;
    this.drawPlansSoon();
  }

  // -- drawing ---------------------------------------------------------------------------------------------

  drawSoon() {
    if (this.request) return;
    this.request = requestAnimationFrame((now) => this.draw(now));
  }

  drawPlansSoon() {
    this.arePlansOld = true;
    this.drawSoon();
  }

  draw(now) {
    this.request = 0;
    if (this.isPlaying) this.advance(now);
    if (this.arePlansOld) this.drawPlans();
    const time = this.shown;
    this.moments = this.timelines.map((timeline) => timeline.at(time));
    this.charts.forEach((chart, t) => {
      const rank = this.selected && this.selected[0] === t ? this.selected[1] : -1;
      const scene = { time, rank, fading: () => this.fading(t, time) };
      drawMoment(chart, this.view, this.look, this.ratio, this.moments[t], scene);
      this.tables[t].show(this.moments[t], this.look);
    });
    this.showTime(time);
    if (this.isPlaying) this.drawSoon();
  }

  drawPlans() {
    this.arePlansOld = false;
    for (const chart of this.charts) chart.drawPlan(this.view, this.look, this.ratio, this.wishes);
    document.getElementById("narrow-actions").hidden = !this.charts.some((chart) => chart.hasColumns);
    document.getElementById("hidden-messages").hidden =
      !this.wishes.messages || !this.charts.some((chart) => chart.hidesMessages);
  }

  /** Returns messages that have just arrived, with their opacity; none unless the player is playing. */
  fading(t, time) {
    if (!this.isPlaying || this.calm.matches) return [];
    const { ends } = this.timelines[t].messages;
    const glow = GLOW * this.typical;
    return this.glowing[t].at(time).map((i) => [i, Math.min(1, 1 - (time - ends[i]) / glow)]);
  }

  showTime(time) {
    const text = this.sentences.clock(time, this.data.duration);
    write(this.parts.clock, text);
    this.parts.scrub.value = time;
    this.parts.scrub.setAttribute("aria-valuetext", text);
  }

  /** Announces the moment to screen readers, unless the player is playing. */
  speak() {
    if (this.isPlaying) return;
    const moments = this.timelines.map((timeline) => timeline.at(this.time));
    const [text, said] = spokenMoment(this.timelines, moments, this.sentences, this.said);
    this.said = said;
    write(this.parts.spoken, `${this.sentences.clock(this.time, this.data.duration)}. ${text}`);
  }
}

/** Returns the median length of the actions that take any time. */
function typicalLength(timelines) {
  const lengths = [];
  for (const { ranks } of timelines) {
    for (const { actions } of ranks) {
      for (let i = 0; i < actions.size; i += 1) lengths.push(actions.ends[i] - actions.starts[i]);
    }
  }
  const some = lengths.filter((length) => length > 0).sort((a, b) => a - b);
  return some.length ? some[some.length >> 1] : 0;
}

/** Sets the level of every rank: memory if all know it in one unit, otherwise the number of activations. */
function levelsOf(timelines) {
  const ranks = timelines.flatMap((timeline) => timeline.ranks);
  const isMemory = new Set(timelines.map((timeline) => timeline.memoryUnit)).size === 1
    && ranks.every((rank) => rank.memory);
  for (const rank of ranks) rank.level = isMemory ? rank.memory : rank.held;
  return ranks.map((rank) => rank.level);
}
