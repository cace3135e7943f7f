// Timelines, and their state at a moment.

/** One rank: its actions, its idle times, its concurrent transfers, and the activations that it holds. */
class Rank {
  constructor(data, snap, pairs) {
    this.stages = data.stages;
    this.namesStage = data.namesStage;
    this.kinds = data.actions.map((action) => action[1]);
    this.parts = data.actions; // [stage, kind, microbatch, start, end]
    this.actions = new Stretches(data.actions.map((a) => snap(a[3])), data.actions.map((a) => snap(a[4])));
    this.partners = partnersIn(this.actions);
    this.drawn = sideBySide(this.actions, this.partners);
    this.idleParts = data.idle; // [start, end, cause, stage, kind, microbatch and rank of what is awaited]
    this.idle = new Stretches(data.idle.map((i) => snap(i[0])), data.idle.map((i) => snap(i[1])));
    this.beside = data.beside.map(([kind, stage, begin, end]) => [kind, stage, snap(begin), snap(end)]);
    this.holdParts = data.holds; // [stage, microbatch, start, end or null]
    this.holds = new Stretches(
      data.holds.map((hold) => snap(hold[2])),
      data.holds.map((hold) => (hold[3] === null ? Infinity : snap(hold[3]))),
    );
    this.pairs = pairs; // of stage and microbatch that count as one
    this.held = countSteps(this.holds, pairs);
    this.memory = data.memory && new Steps(data.memory.map(([time, ...level]) => [snap(time), ...level]));
    this.busy = sumsByKind(this);
  }

  name(index) {
    const [stage, kind, microbatch] = this.parts[index];
    return `${stage}${kind}${microbatch}`;
  }

  chunkOf(index) {
    return this.stages.indexOf(this.parts[index][0]);
  }

  isSend(index) {
    return this.kinds[index].startsWith("SEND");
  }

  /** Returns the next action other than a RECV, which ends when it is reached. */
  nextAfter(time) {
    let next = countUpTo(this.actions.starts, time);
    while (next < this.actions.size && this.kinds[next].startsWith("RECV")) next += 1;
    return next;
  }
}

/** Returns, by each of two overlapped actions, the other: the second starts before the first ends. */
function partnersIn({ starts, ends, size }) {
  const partners = new Map();
  for (let i = 1; i < size; i += 1) {
    if (starts[i] < ends[i - 1]) partners.set(i, i - 1).set(i - 1, i);
  }
  return partners;
}

/** Returns the actions as they are drawn: overlapped ones beside each other, each in half of their time. */
function sideBySide({ starts, ends }, partners) {
  const middle = (i) => (starts[i] + ends[i]) / 2;
  const isFirst = (i) => partners.get(i) === i + 1;
  const isSecond = (i) => partners.get(i) === i - 1;
  return new Stretches(
    starts.map((start, i) => (isSecond(i) ? middle(i) : start)),
    ends.map((end, i) => (isFirst(i) ? middle(i) : end)),
  );
}

/** A step function of time: [time, value from then on, optionally the value as text], ascending. */
class Steps {
  constructor(steps) {
    this.times = Float64Array.from(steps, (step) => step[0]);
    this.values = Float64Array.from(steps, (step) => step[1]);
    this.texts = steps.map((step) => step[2]);
    this.most = steps.reduce((most, step) => Math.max(most, step[1]), 0);
  }

  textAt(time) {
    return this.texts[countUpTo(this.times, time) - 1];
  }
}

/** Returns how many stretches overlap, over time; so many `pairs` of them count as one. */
function countSteps(stretches, pairs) {
  const starts = stretches.starts;
  const ends = stretches.ends.slice().sort();
  const times = [...new Set([...starts, ...ends])].filter(Number.isFinite).sort((a, b) => a - b);
  return new Steps(times.map((time) => [time, (countUpTo(starts, time) - countUpTo(ends, time)) / pairs]));
}

/** Returns, by kind, the time spent on it before each action of a rank. */
function sumsByKind(rank) {
  const sums = new Map();
  for (const kind of new Set(rank.kinds)) {
    const sum = new Float64Array(rank.actions.size + 1);
    for (let i = 0; i < rank.actions.size; i += 1) {
      sum[i + 1] = sum[i] + (rank.kinds[i] === kind ? rank.drawn.ends[i] - rank.drawn.starts[i] : 0);
    }
    sums.set(kind, sum);
  }
  return sums;
}

/** One timeline. */
class Timeline {
  constructor(data, snap) {
    this.name = data.name;
    this.memoryUnit = data.memoryUnit;
    this.ranks = data.ranks.map((rank) => new Rank(rank, snap, data.pairs));
    this.messageParts = data.messages; // [value, used by, source, destination, sent, arrived]
    this.messages = new Stretches(data.messages.map((m) => snap(m[4])), data.messages.map((m) => snap(m[5])));
    this.lanes = data.lanes; // the kinds of what goes on beside actions
    this.criticalPath = data.criticalPath; // [rank, index of the action]
    this.places = new Map();
    this.ranks.forEach((rank, r) => rank.parts.forEach((_, i) => this.places.set(rank.name(i), [r, i])));
  }

  /** Returns the state of each rank at a time, and the messages under way. */
  at(time) {
    return { ranks: this.ranks.map((rank) => this.rankAt(rank, time)), messages: this.messages.at(time) };
  }

  rankAt(rank, time) {
    const idle = rank.idle.lastAt(time);
    return {
      action: rank.actions.lastAt(time),
      idle,
      next: rank.nextAfter(time),
      howFar: idle < 0 ? null : this.howFar(rank.idleParts[idle], time),
      holds: rank.holds.at(time),
      memory: rank.memory && rank.memory.textAt(time),
    };
  }

  /** Returns the action that an idle rank waits for, as [rank, index], or null. */
  awaited(idle) {
    return this.places.get(`${idle[3]}${idle[4]}${idle[5]}`) || null;
  }

  /** Returns the progress of the action that an idle rank waits for. */
  howFar(idle, time) {
    const place = this.awaited(idle);
    if (!place) return null;
    const { starts, ends } = this.ranks[place[0]].actions;
    if (time < starts[place[1]]) return "ahead";
    return time < ends[place[1]] ? "running" : "done";
  }
}

/** Returns the times of all starts and ends, ascending; times that differ only by rounding are merged. */
function eventsOf(data) {
  const times = [0, data.duration];
  for (const panel of data.panels) {
    for (const rank of panel.ranks) for (const action of rank.actions) times.push(action[3], action[4]);
    for (const rank of panel.ranks) for (const [, , begin, end] of rank.beside) times.push(begin, end);
    for (const message of panel.messages) times.push(message[4], message[5]);
  }
  const sorted = Float64Array.from(times).sort();
  const tolerance = data.duration * 1e-9;
  const events = [];
  let first = -Infinity;
  for (const time of sorted) {
    if (time - first > tolerance) {
      events.push(time);
      first = time;
    } else {
      events[events.length - 1] = time;
    }
  }
  return Float64Array.from(events);
}

/** Returns a function that replaces a time by the event that it equals but for rounding. */
function snapTo(events, duration) {
  const tolerance = duration * 1e-9;
  return (time) => {
    const event = events[countUpTo(events, time + tolerance) - 1];
    return event > time - tolerance ? event : time;
  };
}
