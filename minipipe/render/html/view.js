// The visible interval of time and its scale: the same for all charts, so that a moment is one vertical line.

const MARGIN = 14; // pixels beside the last moment
const BOX = 64; // pixels: the largest width of a typical action

class View {
  constructor(duration, typical) {
    this.duration = duration;
    this.typical = typical;
    this.zoom = 1;
    this.scroll = 0; // pixels
    this.width = 0; // pixels, of the chart
    this.gutter = 0; // pixels, for the names of the ranks
  }

  get room() {
    return Math.max(1, this.width - this.gutter - MARGIN);
  }

  get mostZoom() {
    return Math.min(Math.max(1, (BOX * this.duration) / this.typical / this.room), 1e7 / this.room);
  }

  get pixelsPerTime() {
    return (this.room * this.zoom) / (this.duration || 1);
  }

  get first() {
    return this.timeAt(this.gutter);
  }

  get last() {
    return this.timeAt(this.width);
  }

  x(time) {
    return this.gutter + time * this.pixelsPerTime - this.scroll;
  }

  timeAt(x) {
    return (x - this.gutter + this.scroll) / this.pixelsPerTime;
  }

  /** Returns the nearest time on the chart. */
  clamped(time) {
    return Math.min(this.duration, Math.max(0, time));
  }

  /** Zooms by a factor around `time`, whose place stays the same. */
  zoomBy(factor, time) {
    const x = this.x(time);
    this.zoom = Math.min(this.mostZoom, Math.max(1, this.zoom * factor));
    this.scroll = this.gutter + time * this.pixelsPerTime - x;
  }

  showAll() {
    this.zoom = 1;
    this.scroll = 0;
  }

  /** Scrolls until a time is visible. */
  show(time) {
    const x = this.x(time);
    const edge = Math.min(40, this.room / 10);
    if (x >= this.gutter && x <= this.width - edge) return;
    this.scroll = Math.min(this.room * (this.zoom - 1), Math.max(0, this.scroll + x - this.gutter - edge));
  }

  /** Returns round times to mark, about 80 pixels apart. */
  ticks() {
    const least = 80 / this.pixelsPerTime;
    const power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= least * (1 - 1e-9));
    const ticks = [];
    const last = Math.min(this.duration * (1 + 1e-12), this.last);
    for (let i = Math.max(0, Math.ceil(this.first / step)); i * step <= last; i += 1) ticks.push(i * step);
    return ticks;
  }
}
