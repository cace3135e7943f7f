// Text in the page: the moment, rank by rank, and tables of all actions.

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}

/** Sets a text if it changed: most texts stay the same from frame to frame. */
function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** The table of one timeline: the state of each rank at the moment, and the messages under way. */
class MomentTable {
  constructor(timeline, holder, sentences, mostHeld) {
    this.mostHeld = mostHeld;
    this.timeline = timeline;
    this.sentences = sentences;
    this.list = holder.querySelector(".messages");
    this.listed = null;
    const body = holder.querySelector("tbody");
    body.replaceChildren();
    this.rows = timeline.ranks.map((rank, r) => addRow(body, rank, r));
  }

  show(moment, look) {
    moment.ranks.forEach((state, r) => this.showRank(this.rows[r], this.timeline.ranks[r], state, look));
    const listed = moment.messages.join();
    if (listed === this.listed) return;
    this.listed = listed;
    const texts = moment.messages.map((i) => this.sentences.message(this.timeline.messageParts[i]));
    const shown = texts.length ? texts : [this.noMessage()];
    this.list.replaceChildren(...shown.map((text) => element("li", texts.length ? "" : "none", text)));
  }

  noMessage() {
    const { messages } = this.timeline;
    const { none, instant } = this.sentences.templates;
    return messages.size && messages.starts.every((start, i) => start === messages.ends[i]) ? instant : none;
  }

  showRank(row, rank, state, look) {
    const { doing, beside } = this.sentences.rank(rank, state);
    write(row.doing, doing);
    write(row.beside, beside);
    const held = state.holds.length / rank.pairs;
    write(row.count, `${rounded(held, 10)}`);
    write(row.holds, this.sentences.holds(rank, state));
    if (rank.memory) write(row.memory, state.memory);
    const isRunning = state.action >= 0;
    const kind = isRunning ? rank.kinds[state.action] : "";
    row.swatch.dataset.idle = state.idle >= 0 ? rank.idleParts[state.idle][2] : isRunning ? "" : "drain";
    row.swatch.style.backgroundColor = isRunning ? look.fill(kind, rank.chunkOf(state.action))[0] : "";
    row.bar.style.inlineSize = `${(100 * held) / this.mostHeld}%`;
  }
}

/** Adds the row of a rank and returns its cells. */
function addRow(body, rank, r) {
  const row = element("tr");
  const head = element("th", "", `rank ${r}`);
  head.scope = "row";
  const [swatch, doing, beside] = [element("i", "swatch"), element("span", "doing"), element("span", "beside")];
  const [count, holds, bar] = [element("b", "count"), element("span", "holds"), element("i", "bar")];
  const now = element("td", "now");
  now.append(swatch, doing, beside);
  const held = element("td", "held");
  held.append(count, " ", holds, bar);
  row.append(head, now, held);
  const memory = rank.memory ? element("td", "memory") : null;
  if (memory) row.append(memory);
  body.append(row);
  return { row, swatch, doing, beside, count, holds, bar, memory };
}

/** Returns a moment as one text; given the texts `before`, only the changes. */
function spokenMoment(timelines, moments, sentences, before) {
  const said = [];
  const now = timelines.map((timeline, t) =>
    timeline.ranks.map((rank, r) => {
      const { doing, beside } = sentences.rank(rank, moments[t].ranks[r]);
      return `${doing}${beside && `, ${beside}`}`;
    }),
  );
  now.forEach((texts, t) => {
    const changed = texts.map((text, r) => [r, text]).filter(([r, text]) => !before || before[t][r] !== text);
    if (timelines.length > 1 && changed.length) said.push(`${timelines[t].name}.`);
    for (const [r, text] of changed) said.push(`Rank ${r}: ${text}.`);
    for (const i of moments[t].messages) said.push(`${sentences.message(timelines[t].messageParts[i])}.`);
  });
  return [said.join(" "), now];
}

/** Fills a table with a rank's actions when its heading is opened for the first time. */
function fillWhenOpened(details, rank, sentences) {
  details.addEventListener("toggle", () => {
    const body = details.querySelector("tbody");
    if (!details.open || body.childElementCount) return;
    const rows = rank.parts.map((parts, i) => {
      const row = element("tr");
      const texts = [sentences.action(rank, i), sentences.time(parts[3]), sentences.time(parts[4])];
      row.append(...texts.map((text) => element("td", "", text)));
      return row;
    });
    body.append(...rows);
  });
}
