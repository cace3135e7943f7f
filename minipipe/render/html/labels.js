// Labels in boxes. All boxes of a kind have one form of label, in all charts of one name, so that boxes of equal width
// are labelled alike: F9 and F10, and the same action measured and predicted.

const NEARLY_ALL = 0.95; // of the boxes of a kind: measured times have outliers
const PADDING = 2; // pixels, on both sides together
const SIZES = [12, 11, 10, 9, 8]; // pixels
const UPRIGHT_WITH_KIND = 2; // forms at the beginning of FORMS

const withStage = (rank, [stage, kind, microbatch]) => `${rank.namesStage ? stage : ""}${kind}${microbatch}`;
const withKind = (rank, [, kind, microbatch]) => `${kind}${microbatch}`;
const alone = (rank, [, , microbatch]) => `${microbatch}`;

/** The forms of a label, the best first. */
const FORMS = [
  { write: withStage, isTurned: false },
  { write: withKind, isTurned: false },
  { write: alone, isTurned: false },
  { write: withStage, isTurned: true },
  { write: withKind, isTurned: true },
];

class Labels {
  constructor(timelines) {
    this.kinds = new Map(); // for each kind: { length, lengths, medians, shapes, form, room, isMessage }
    for (const rank of timelines.flatMap((timeline) => timeline.ranks)) {
      const { starts, ends } = rank.drawn;
      const lengths = new Map(); // of this rank, by kind
      rank.parts.forEach((parts, i) => {
        if (ends[i] > starts[i]) this.note(lengths, rank, parts, ends[i] - starts[i]);
      });
      for (const [kind, found] of lengths) this.kinds.get(kind).medians.set(rank, quantile(found, 0.5));
    }
    for (const kind of this.kinds.values()) kind.length = quantile(kind.lengths, 1 - NEARLY_ALL);
  }

  note(lengths, rank, parts, length) {
    const kind = parts[1];
    if (!this.kinds.has(kind)) {
      const shapes = FORMS.map(() => new Set());
      this.kinds.set(kind, { isMessage: kind.length > 1, lengths: [], medians: new Map(), shapes });
    }
    lengths.set(kind, lengths.get(kind) || []);
    lengths.get(kind).push(length);
    this.kinds.get(kind).lengths.push(length);
    // Digits are equally wide. All kinds are measured with the widest letter; otherwise a narrow I would have a longer
    // form than the F beside it.
    const { shapes } = this.kinds.get(kind);
    FORMS.forEach((form, f) => shapes[f].add(form.write(rank, parts).replace(/\d/g, "0").replace(/[FBI]/, "W")));
  }

  /** Chooses the size of all labels, at most `largest`, and the form of each kind, for boxes of a height. A smaller
   * label with its kind is better than a larger one without. */
  choose(pen, view, look, height, largest) {
    const sizes = SIZES.filter((size) => size <= largest);
    for (const forms of [FORMS.slice(0, UPRIGHT_WITH_KIND), FORMS]) {
      for (const size of sizes) if (this.fits(pen, view, look, height, size, forms)) return;
    }
  }

  /** Sets the size and, for each kind, the first form that fits in nearly all of its boxes, or the narrowest.
   * Returns whether all kinds fit; the long names of sends do not count. */
  fits(pen, view, look, height, size, forms) {
    pen.font = this.font = `${size}px ${FONT}`;
    let haveRoom = true;
    for (const kind of this.kinds.values()) {
      const rooms = forms.map(({ isTurned }, f) => {
        const longest = Math.max(...[...kind.shapes[f]].map((text) => look.widthOf(pen, text)));
        return isTurned ? (longest <= height - PADDING ? size : Infinity) : longest;
      });
      const room = widthOfBox(kind.length * view.pixelsPerTime) - PADDING;
      const first = rooms.findIndex((wide) => wide <= room);
      haveRoom &&= first >= 0 || kind.isMessage;
      kind.form = first < 0 ? rooms.indexOf(Math.min(...rooms)) : first;
      kind.room = rooms[kind.form];
    }
    return haveRoom;
  }

  /** Writes the label of an action around the middle of its box, unless the form is too wide for this box, or for most
   * boxes of the kind in this row: a few labels would look accidental. */
  draw(pen, view, rank, i, width, x, y) {
    const { form, room, medians } = this.kinds.get(rank.kinds[i]);
    const typical = widthOfBox(medians.get(rank) * view.pixelsPerTime);
    if (room > Math.min(width, typical) - PADDING + 1e-6) return;
    const { write, isTurned } = FORMS[form];
    pen.save();
    pen.textAlign = "center";
    pen.translate(x, y);
    if (isTurned) pen.rotate(-Math.PI / 2);
    pen.fillText(write(rank, rank.parts[i]), 0, 0.5);
    pen.restore();
  }
}

/** Returns a quantile of some numbers, which it sorts. */
function quantile(numbers, share) {
  return numbers.sort((a, b) => a - b)[Math.floor(share * numbers.length)];
}

/** Returns the drawn width of a box, in pixels: with a gap to the next one, unless it is very narrow. */
function widthOfBox(width) {
  return Math.max(1, width - (width > 5 ? 1 : 0));
}

/** Returns the labels of each timeline; timelines of one name share theirs. */
function labelsOf(timelines) {
  const byName = new Map();
  for (const timeline of timelines) byName.set(timeline.name, [...(byName.get(timeline.name) || []), timeline]);
  const labels = new Map([...byName].map(([name, alike]) => [name, new Labels(alike)]));
  return timelines.map((timeline) => labels.get(timeline.name));
}
