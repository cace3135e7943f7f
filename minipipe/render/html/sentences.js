// Sentences: templates from the data, filled with numbers.

// Sentences about a moment, which only the player has.
const SENTENCES = {
  clock: "{time} of {duration} {unit}",
  finished: "has finished",
  next: "then {action}",
  howFar: {
    ahead: "rank {source} has not reached it yet",
    running: "rank {source} is running it",
    done: "its message is on the way",
  },
  joined: ", overlapped with {action}",
  held: "microbatches {listed}",
  heldOne: "microbatch {listed}",
  heldOfStage: "stage {stage}: microbatches {listed}",
  heldOneOfStage: "stage {stage}: microbatch {listed}",
  times: "from {from} to {to} {unit}, length {length}",
  none: "none",
  instant: "none: without latency a message arrives when it is sent",
};

/** Fills `{name}` in a sentence. */
function fill(sentence, values) {
  return sentence.replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
}

class Sentences {
  constructor(data) {
    this.templates = { ...SENTENCES, ...data.sentences };
    this.inSeconds = data.unit === "s";
    this.unit = this.inSeconds ? "ms" : data.unit;
  }

  action(rank, index) {
    const [stage, kind, microbatch] = rank.parts[index];
    const sentence = fill(this.templates.actions[kind], { stage, microbatch });
    const other = rank.partners.get(index);
    return other === undefined ? sentence : sentence + fill(this.templates.joined, { action: rank.name(other) });
  }

  /** Describes the wait of an idle rank. */
  wait(idle) {
    const [, , cause, stage, kind, microbatch, source] = idle;
    return fill(this.templates.waits[kind ? `${cause} ${kind}` : cause], { stage, microbatch, source });
  }

  message(parts) {
    const [value, usedBy, source, destination] = parts;
    return fill(this.templates.message, { value, usedBy, source, destination });
  }

  /** Describes the state of a rank at a moment: its action or wait, and beside it its dependency and next action. */
  rank(rank, state) {
    const idle = state.idle < 0 ? null : rank.idleParts[state.idle];
    const doing = state.action >= 0 ? this.action(rank, state.action) : idle && this.wait(idle);
    return { doing: doing || this.templates.finished, beside: this.beside(rank, state, idle) };
  }

  beside(rank, state, idle) {
    const parts = idle ? [idle[2]] : [];
    if (idle && state.action >= 0 && state.howFar !== "done") parts.push(this.wait(idle));
    if (state.howFar) parts.push(fill(this.templates.howFar[state.howFar], { source: idle[6] }));
    if (state.next < rank.actions.size) parts.push(fill(this.templates.next, { action: rank.name(state.next) }));
    return parts.join("; ");
  }

  /** Lists the microbatches that a rank holds, by stage if it has several. */
  holds(rank, state) {
    const byStage = new Map();
    for (const hold of state.holds) {
      const [stage, microbatch] = rank.holdParts[hold];
      byStage.set(stage, [...(byStage.get(stage) || []), microbatch]);
    }
    const stages = [...byStage].sort((a, b) => a[0] - b[0]);
    const texts = stages.map(([stage, microbatches]) => {
      const sentence = (microbatches.length > 1 ? "held" : "heldOne") + (rank.namesStage ? "OfStage" : "");
      return fill(this.templates[sentence], { stage, listed: ranges(microbatches) });
    });
    return texts.join("; ");
  }

  /** Returns a time without its unit. */
  time(time) {
    return this.inSeconds ? rounded(1000 * time, 4) : rounded(time, 6);
  }

  /** Returns the text of the clock. */
  clock(time, duration) {
    return fill(this.templates.clock, { time: this.time(time), duration: this.time(duration), unit: this.unit });
  }
}

/** Rounds to a number of digits, but keeps all digits before the point. */
function rounded(number, digits) {
  if (number >= 10 ** digits - 0.5 && number < 1e15) return number.toFixed(0);
  return Number(number.toPrecision(digits)).toString();
}

/** Returns integers as text, with a dash for consecutive ones: 0–3, 5. Slices, which are texts, are listed: 0.0, 0.1. */
function ranges(numbers) {
  const sorted = [...numbers].sort((a, b) => String(a).localeCompare(String(b), "en", { numeric: true }));
  const runs = [];
  for (const number of sorted) {
    const run = runs[runs.length - 1];
    if (run && run[1] === number - 1) run[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ");
}
