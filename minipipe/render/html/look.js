// Colours of the canvas, light and dark; they are part of the data.

const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";

class Look {
  constructor(data, isDark, ratio) {
    this.colour = isDark ? data.themes.dark : data.themes.light;
    this.fills = data.colours;
    this.inMilliseconds = data.unit === "s";
    this.unit = this.inMilliseconds ? "ms" : data.unit;
    this.hatches = Object.fromEntries(
      Object.entries(data.hatches).map(([cause, [angle, gap]]) => [cause, this.hatch(angle, gap, ratio)]),
    );
    this.widths = new Map();
  }

  fill(kind, chunk) {
    return this.fills[kind][Math.max(0, chunk)]; // of the box, and of text on it
  }

  /** Returns a pattern of parallel lines. */
  hatch(angle, gap, ratio) {
    const tile = document.createElement("canvas");
    tile.width = 8;
    tile.height = Math.round(gap * ratio);
    const pen = tile.getContext("2d");
    pen.fillStyle = this.colour.hatch;
    pen.fillRect(0, 0, tile.width, Math.max(1, Math.round(ratio)));
    const pattern = pen.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().rotate(angle).scale(1 / ratio));
    return pattern;
  }

  /** Returns the width of a text in the font of a pen, in pixels. */
  widthOf(pen, text) {
    const key = `${pen.font} ${text}`;
    if (!this.widths.has(key)) this.widths.set(key, pen.measureText(text).width);
    return this.widths.get(key);
  }
}
