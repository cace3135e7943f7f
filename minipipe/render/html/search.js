// Searching in ascending numbers, and in stretches of time.

/** Returns how many of the ascending numbers are at most `value`. */
function countUpTo(numbers, value) {
  let low = 0;
  let high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Stretches of time in the order in which they start; they may overlap. */
class Stretches {
  constructor(starts, ends) {
    this.starts = Float64Array.from(starts);
    this.ends = Float64Array.from(ends);
    this.latestEnds = this.ends.slice(); // of each and all before it: where a search backwards may stop
    for (let i = 1; i < this.size; i += 1) {
      this.latestEnds[i] = Math.max(this.latestEnds[i], this.latestEnds[i - 1]);
    }
  }

  get size() {
    return this.starts.length;
  }

  /** Returns which contain a time: the start belongs to a stretch, the end only if it is also the start. */
  at(time) {
    const found = [];
    for (let i = countUpTo(this.starts, time) - 1; i >= 0 && this.latestEnds[i] >= time; i -= 1) {
      if (this.ends[i] > time || this.starts[i] === time) found.push(i);
    }
    return found.reverse();
  }

  /** Returns the last one that starts by `time`, if it has not ended, or -1: the one there is if none overlap. */
  lastAt(time) {
    const i = countUpTo(this.starts, time) - 1;
    return i >= 0 && this.ends[i] > time ? i : -1;
  }

  /** Returns the first and the one after the last of those that touch a window of time, if none overlap. */
  within(first, last) {
    return [countUpTo(this.ends, first), countUpTo(this.starts, last)];
  }
}
