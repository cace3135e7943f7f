// Details of one box: under the pointer, or of the chosen rank at the moment shown.

class Details {
  constructor(player, box) {
    this.player = player;
    this.box = box;
  }

  hide() {
    this.box.hidden = true;
  }

  /** Shows the action or the wait of a rank at a time, beside a point of the viewport. */
  show(t, r, time, x, y) {
    const lines = this.lines(this.player.timelines[t], r, time);
    if (!lines) {
      this.hide();
      return "";
    }
    this.box.replaceChildren(...lines.map((line, i) => element(i ? "span" : "b", "", line)));
    this.box.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.box;
    const left = Math.min(x + 14, document.documentElement.clientWidth - width - 8);
    const top = y + 18 + height > innerHeight ? y - height - 12 : y + 18;
    Object.assign(this.box.style, { left: `${Math.max(8, left)}px`, top: `${top}px` });
    return lines.join("; ");
  }

  lines(timeline, r, time) {
    const { sentences } = this.player;
    const rank = timeline.ranks[r];
    const state = timeline.rankAt(rank, time);
    if (state.action >= 0) {
      const { starts, ends } = rank.actions;
      return [sentences.action(rank, state.action), this.times(starts[state.action], ends[state.action])];
    }
    if (state.idle < 0) return null;
    const idle = rank.idleParts[state.idle];
    return [`${idle[2]}: ${sentences.wait(idle)}`, this.times(rank.idle.starts[state.idle], rank.idle.ends[state.idle])];
  }

  times(start, end) {
    const { sentences } = this.player;
    const [from, to, length] = [start, end, end - start].map((time) => sentences.time(time));
    return fill(sentences.templates.times, { from, to, length, unit: sentences.unit });
  }
}

/** Returns the chart, the rank and the time under a pointer, or null. */
function placeUnder(player, event) {
  const holders = player.charts.map((chart) => chart.moment.parentElement);
  const t = holders.indexOf(event.target.closest(".chart"));
  if (t < 0) return null;
  const { left, top } = holders[t].getBoundingClientRect();
  const x = event.clientX - left;
  if (x < player.view.gutter - 6) return null;
  return { t, r: player.charts[t].rankAt(event.clientY - top), time: player.view.clamped(player.view.timeAt(x)) };
}

/** Moves the selected rank up or down, over all charts. */
function chosen(player, direction) {
  const all = player.timelines.flatMap((timeline, t) => timeline.ranks.map((_, r) => [t, r]));
  const now = player.selected ? all.findIndex(([t, r]) => t === player.selected[0] && r === player.selected[1]) : -1;
  return all[Math.min(all.length - 1, Math.max(0, now + direction))] || null;
}
