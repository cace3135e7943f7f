// The building block: one microbatch with its times, drawn as boxes that move, and as text. Python reads it and predicts.

const MOST_TURNS = 40; // other microbatches that are drawn, before and after

class BlockDesk {
  constructor(editor) {
    Object.assign(this, { editor, block: null, costs: null, turn: 0 });
    editor.watchers.push((answer) => this.follow(answer));
  }

  begin() {
    return this.take({ do: "pattern", name: part("pattern").value });
  }

  /** Asks what the block in the text predicts. */
  read() {
    return this.take({ do: "block", ...this.written() });
  }

  written() {
    return { text: part("block-text").value, interval: Number(part("interval").value) };
  }

  async take(message) {
    this.turn += 1;
    const { turn } = this;
    const answer = await this.editor.ask(message);
    if (turn !== this.turn) return; // a later change is on its way
    if (answer.block) this.show(answer.block, message.do === "block");
    else if (answer.said) this.judge(answer.said, true);
  }

  repeat() {
    const microbatches = Number(part("repeats").value);
    return this.editor.ask({ do: "repeat", ...this.written(), microbatches });
  }

  /** Other costs give the block other times. */
  follow({ costs, sizes }) {
    if (document.activeElement !== part("repeats")) part("repeats").value = sizes[1];
    if (this.costs !== null && this.costs !== costs && this.block) this.read();
    this.costs = costs;
  }

  judge(text, isRefused) {
    write(part("block-said"), text);
    part("block-said").classList.toggle("refused", isRefused);
    part("block-text").setAttribute("aria-invalid", isRefused);
    part("repeat").disabled = isRefused;
  }

  show(block, keepsText) {
    this.block = block;
    const isTyped = keepsText && document.activeElement === part("block-text");
    if (!isTyped) part("block-text").value = block.text;
    if (document.activeElement !== part("interval")) part("interval").value = block.interval;
    this.judge(block.problem || block.said, Boolean(block.problem));
    const focused = document.activeElement.dataset?.box;
    part("block").replaceChildren(this.axis(), ...block.rows.map((row, rank) => this.lane(row, rank)));
    if (focused) part("block").querySelector(`[data-box="${focused}"]`)?.focus({ preventScroll: true });
    part("block-memory").hidden = false;
    part("block-memory").tBodies[0].replaceChildren(...block.memory.map((cells) => tableRow(cells)));
  }

  /** The intervals since the start of the block. */
  axis() {
    const { length, interval } = this.block;
    const line = element("div", "lane axis");
    for (let k = 0; k * interval < length && k < MOST_TURNS; k += 1) {
      const tick = element("span", "", `${rounded(k * interval, 6)}`);
      tick.style.insetInlineStart = `${(100 * k * interval) / length}%`;
      line.append(tick);
    }
    return this.labelled(line, "time");
  }

  labelled(lane, label) {
    const row = element("div", "lanes");
    lane.style.minInlineSize = `${(26 * this.block.length) / this.step}px`;
    row.append(element("b", "", label), lane);
    return row;
  }

  lane(row, rank) {
    const { length, interval } = this.block;
    const lane = element("div", "lane");
    lane.style.setProperty("--interval", `${(100 * interval) / length}%`);
    const turns = Math.min(Math.ceil(length / interval), MOST_TURNS);
    for (let k = -turns; k <= turns; k += 1) {
      for (const [name, start, size, ...fill] of row) {
        const at = start + k * interval;
        if (at >= length || at + size <= 0) continue;
        const box = k ? element("i", "copy", name) : this.box(name, start, size);
        if (k) box.setAttribute("aria-hidden", "true");
        const [left, right] = [Math.max(at, 0), Math.min(at + size, length)];
        box.style.cssText = `--fill: ${fill[0]}; --on-fill: ${fill[1]}; inset-inline-start: ${(100 * left) / length}%; inline-size: ${(100 * (right - left)) / length}%`;
        lane.append(box);
      }
    }
    return this.labelled(lane, `rank ${rank}`);
  }

  /** The smallest time of an action, by which a box moves. */
  get step() {
    return Math.min(...this.block.rows.flat().map(([, , size]) => size).filter((size) => size > 0));
  }

  box(name, start, size) {
    const box = element("button", "placed", name);
    box.type = "button";
    box.dataset.box = name;
    box.setAttribute("aria-label", `${name} from ${rounded(start, 9)} to ${rounded(start + size, 9)}`);
    box.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!steps) return;
      event.preventDefault();
      this.move(name, steps * this.step);
    });
    box.addEventListener("pointerdown", (event) => this.drag(box, event, name));
    return box;
  }

  drag(box, { clientX, pointerId }, name) {
    const perPixel = this.block.length / box.parentElement.clientWidth;
    const shift = ({ clientX: now }) => Math.round(((now - clientX) * perPixel) / this.step) * this.step;
    box.setPointerCapture(pointerId);
    box.onpointermove = (event) => { box.style.translate = `${shift(event) / perPixel}px`; };
    box.onpointerup = (event) => {
      box.onpointermove = null;
      if (shift(event)) this.move(name, shift(event));
    };
  }

  /** Moves an action in the text, which has all earlier moves, also those that Python has not answered. */
  move(name, shift) {
    const moved = (_, start) => `${name}@${rounded(Math.max(0, Number(start) + shift), 9)}`;
    part("block-text").value = part("block-text").value.replace(new RegExp(`\\b${name}@(\\S+)`), moved);
    return this.read();
  }
}

function tableRow(cells) {
  const row = element("tr");
  const [first, ...others] = cells;
  const head = element("th", "", first);
  head.scope = "row";
  row.append(head, ...others.map((text) => element("td", "", text)));
  return row;
}

function listenToBlock(desk) {
  const acts = { "begin-block": () => desk.begin(), repeat: () => desk.repeat() };
  for (const [id, act] of Object.entries(acts)) part(id).addEventListener("click", act);
  part("interval").addEventListener("change", () => { if (desk.block) desk.read(); });
  let timer = 0;
  part("block-text").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => desk.read(), PAUSE);
  });
}
