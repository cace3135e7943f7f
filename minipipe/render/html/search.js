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
    this.latestEnds = this.ends.slice(); // of each and all before it: a search backwards may stop there
    for (let i = 1; i < this.size; i += 1) {
      this.latestEnds[i] = Math.max(this.latestEnds[i], this.latestEnds[i - 1]);
    }
  }

  get size() {
    return this.starts.length;
  }

  /** Returns the stretches that contain a time, without their end unless it is also their start. */
  at(time) {
    const found = [];
    for (let i = countUpTo(this.starts, time) - 1; i >= 0 && this.latestEnds[i] >= time; i -= 1) {
      if (this.ends[i] > time || this.starts[i] === time) found.push(i);
    }
    return found.reverse();
  }

  /** Returns the last stretch that starts by `time`, if it has not ended, or -1. */
  lastAt(time) {
    const i = countUpTo(this.starts, time) - 1;
    return i >= 0 && this.ends[i] > time ? i : -1;
  }

  /** Returns the range of the stretches that touch a window of time, if none overlap. */
  within(first, last) {
    return [countUpTo(this.ends, first), countUpTo(this.starts, last)];
  }
}
