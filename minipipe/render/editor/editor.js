// Editing: the page asks, and shows the answer. No rule, figure or sentence about a schedule is made here.

const COSTS = ["F", "I", "W", "latency"];
const PAUSE = 250; // milliseconds without a key, after which a text is read
const SLICE = 0.15; // seconds of a search between two answers
const PATIENCE = { search: 30, par: 5 }; // seconds of a whole search
const RESULTS = { search: "found", par: "par-said" }; // where it is said

const part = (id) => document.getElementById(id);

class Editor {
  constructor(player, first) {
    Object.assign(this, { player, desk: new Desk(first.transport), searching: null, pointer: null, shown: null, watchers: [] });
    this.show({ ...first, said: part("said").textContent });
    for (const each of document.querySelectorAll(".desk")) each.disabled = true;
    this.start();
  }

  /** Shows the schedule of the address, if there is one, as soon as Python answers. */
  async start() {
    await this.openAddress();
    if (this.shown.isLost) return;
    for (const each of document.querySelectorAll(".desk")) each.disabled = false;
    document.body.dataset.alive = Math.round(performance.now());
    this.showCan(this.shown);
    if (!part("said").textContent) this.say("Ready. Clear all and build it by hand, change it, or try a puzzle.");
  }

  openAddress() {
    const fragment = location.hash.slice(1);
    return this.ask(fragment ? { do: "shared", fragment } : { do: "show" });
  }

  async ask(message) {
    performance.clearMarks(); // tests/benchmarks/editor.py reads these
    performance.mark("asked");
    try {
      const answer = await this.desk.ask(message);
      performance.mark("answered");
      await this.released;
      if (answer) this.show(answer, message.do);
      return answer || {};
    } catch (error) {
      this.say(`Python does not answer: ${error.message}. Reload the page, from a server: python -m http.server`, true);
      this.shown.isLost = true;
      return {};
    }
  }

  say(text, isRefused = false) {
    write(part("said"), text);
    part("said").classList.toggle("refused", isRefused);
  }

  show(answer, verb = "show") {
    const isProgress = "isDone" in answer; // of a search, which has a place of its own
    if (!isProgress && (answer.said || answer.choices)) this.say(answer.said || "", answer.isRefused);
    if (answer.offers) this.offer(answer.offers);
    if (!answer.choices) return;
    this.shown = answer;
    this.showPar({ table: [], said: "" });
    if (answer.player) this.player.take(answer.player);
    part("offers").hidden = true;
    document.querySelector(".chart").setAttribute("aria-label", `Chart of ${this.player.timelines[0].name}; the table below says the same`);
    document.querySelector(".legend").innerHTML = answer.legend;
    this.showFigures(answer.figures);
    this.showChoices(answer.choices);
    this.showCosts(answer);
    if (verb !== "text") this.showText(answer.text);
    this.showCan(answer);
    write(part("bound"), `Why not shorter: ${answer.bound}`);
    for (const watch of this.watchers) watch(answer);
  }

  showFigures(figures) {
    const facts = figures.map(([name, value]) => {
      const fact = element("div");
      fact.append(element("dt", "", name), element("dd", "", value));
      return fact;
    });
    document.querySelector(".facts").replaceChildren(...facts);
  }

  showCan({ can, puzzle, halves, file, sizes }) {
    for (const verb of ["undo", "redo"]) part(verb).disabled = !can.includes(verb);
    part("puzzle").value = puzzle;
    part("halves").checked = halves;
    part("save").hidden = !file;
    part("share").hidden = Boolean(file);
    [part("ranks").value, part("microbatches").value] = sizes;
    write(part("processes"), `${sizes[0]}`);
  }

  // -- choices ---------------------------------------------------------------------------------------------

  showChoices(choices) {
    const focused = document.activeElement.dataset?.key;
    part("rows").replaceChildren(...choices.map((row, rank) => {
      const group = element("div", "next");
      group.setAttribute("role", "group");
      group.setAttribute("aria-label", `rank ${rank}`);
      group.append(element("b", "", `rank ${rank}`), ...row.map(([action, isReady]) => this.button(rank, action, isReady)));
      if (!row.length) group.append(element("span", "notice", "complete"));
      return group;
    }));
    this.markRank();
    if (focused) (document.querySelector(`[data-key="${focused}"]`) || part("scroller")).focus({ preventScroll: true });
  }

  button(rank, action, isReady) {
    const [, stage, kind, microbatch] = action.match(/^(\d+)([A-Z]+)(\d+)$/);
    const made = element("button", isReady ? "choice ready" : "choice", action);
    const swatch = element("i", "swatch");
    const stages = this.player.data.panels[0].ranks[rank].stages;
    const [colour] = this.player.data.colours[kind][Math.max(0, stages.indexOf(Number(stage)))];
    swatch.style.cssText = `--fill: ${colour}`;
    made.prepend(swatch);
    made.type = "button";
    made.dataset.key = `${rank} ${stage}${kind}`;
    const meaning = fill(this.player.sentences.templates.actions[kind], { stage, microbatch });
    made.setAttribute("aria-label", isReady ? `${meaning}, ready` : `${meaning}, not ready`);
    made.addEventListener("click", () => this.ask({ do: "place", rank, action }));
    return made;
  }

  /** Offers several actions of a rank beside the last click, or under the chart. */
  offer(actions) {
    const rank = this.player.selected ? this.player.selected[1] : 0;
    const { x, y } = this.pointer || part("scroller").getBoundingClientRect();
    part("offers").setAttribute("aria-label", `Next on rank ${rank}`);
    part("offers").replaceChildren(...actions.map((action) => this.button(rank, action, true)));
    part("offers").hidden = false;
    const left = Math.min(x, document.documentElement.clientWidth - part("offers").offsetWidth - 8);
    Object.assign(part("offers").style, { left: `${Math.max(8, left)}px`, top: `${y + 8}px` });
    part("offers").firstChild.focus({ preventScroll: true });
  }

  markRank() {
    const chosen = this.player.selected ? this.player.selected[1] : -1;
    document.querySelectorAll(".next").forEach((group, rank) => group.classList.toggle("chosen", rank === chosen));
  }

  /** Places the next action of a rank that was clicked on. */
  click(rank, pointer) {
    this.pointer = pointer;
    this.player.selected = [0, rank];
    this.markRank();
    this.player.drawSoon();
    return this.ask({ do: "place", rank });
  }

  // -- costs, text, search, files --------------------------------------------------------------------------

  showCosts({ costs, limit, puzzle }) {
    const given = new Map(costs.split(",").filter(Boolean).map((word) => word.split("=")));
    const areSimple = !puzzle && [...given].every(([name, value]) => COSTS.includes(name) && !value.includes(":"));
    for (const name of COSTS) {
      const [slider, value] = [part(`cost-${name}`), given.get(name) ?? (name === "latency" ? "0" : "1")];
      slider.disabled = !areSimple;
      if (areSimple && document.activeElement !== slider) slider.value = value;
      write(slider.nextElementSibling, areSimple ? slider.value : value);
    }
    part("limit").disabled = Boolean(puzzle);
    if (document.activeElement !== part("limit")) part("limit").value = limit ?? "";
    part("given-costs").hidden = areSimple;
    write(part("given-costs"), `Given: ${costs}`);
  }

  sendCosts() {
    const costs = COSTS.map((name) => `${name}=${part(`cost-${name}`).value}`).join(",");
    return this.ask({ do: "costs", costs });
  }

  showText(text) {
    if (part("text").value !== text) part("text").value = text; // or the cursor would move
    this.judgeText({ said: "One line for each rank, or CSV. Changes take effect while you type." });
  }

  async sendText() {
    const answer = await this.ask({ do: "text", text: part("text").value });
    if (answer.said !== undefined) this.judgeText(answer);
  }

  judgeText({ said, isRefused = false, place = null }) {
    write(part("text-said"), isRefused || said ? said : "This is what is drawn.");
    part("text").setAttribute("aria-invalid", isRefused);
    part("there").hidden = !place;
    this.place = place;
  }

  /** Selects the cell in which the text is wrong. */
  goToPlace() {
    const [line, cell] = this.place;
    const lines = part("text").value.split("\n");
    const before = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    const label = lines[line - 1].match(/^\s*(rank\s+\d+\s*:)?/i)[0].length;
    const words = [...lines[line - 1].slice(label).matchAll(/[^\s,]+/g)];
    const word = words[Math.min(cell, words.length) - 1];
    part("text").focus();
    if (word) part("text").setSelectionRange(before + label + word.index, before + label + word.index + word[0].length);
  }

  /** Searches, by itself or for par, until there is nothing left to find, or it is pressed again. */
  async search(verb) {
    this.searching = this.searching === verb ? null : verb;
    this.showSearching();
    const begun = performance.now();
    for (let again = true; this.searching === verb; again = false) {
      const answer = await this.ask({ do: verb, seconds: SLICE, again });
      if (this.searching !== verb) return;
      if ("isDone" in answer) this.showFound(verb, answer);
      const isOver = !("isDone" in answer) || answer.isDone || performance.now() - begun > 1000 * PATIENCE[verb];
      if (isOver) this.searching = null;
    }
    this.showSearching();
  }

  showFound(verb, answer) {
    part("take").disabled = false;
    if (verb === "par") this.showPar(answer);
    else write(part(RESULTS[verb]), answer.said);
  }

  showPar({ table, said }) {
    write(part("par-said"), said);
    part("par-table").hidden = !table.length;
    part("par-table").tBodies[0].replaceChildren(...table.map((cells) => {
      const row = tableRow(cells);
      if (cells[0] === "yours") row.className = "yours";
      return row;
    }));
  }

  showSearching() {
    for (const [verb, label] of [["search", "Search"], ["par", "Compare with par"]]) {
      write(part(verb), this.searching === verb ? "Stop" : label);
      part(verb).setAttribute("aria-pressed", this.searching === verb);
    }
  }

  async exportAs(format) {
    const { content, name } = await this.ask({ do: "export", form: format });
    if (content === undefined) return;
    const link = element("a");
    link.href = URL.createObjectURL(new Blob([content], { type: format === "svg" ? "image/svg+xml" : "text/plain" }));
    link.download = name;
    link.click();
    URL.revokeObjectURL(link.href);
  }

  async share() {
    const { fragment } = await this.ask({ do: "share" });
    if (!fragment) return;
    history.replaceState(null, "", `#${fragment}`);
    if (!navigator.clipboard) return;
    const copied = () => this.say(`${part("said").textContent} It is copied.`);
    await navigator.clipboard.writeText(location.href).then(copied, () => {});
  }
}

// -- input ---------------------------------------------------------------------------------------------------

function listenToDesk(editor) {
  const number = (id) => Number(part(id).value);
  const acts = {
    open: () => editor.ask({
      do: "open", name: part("name").value, ranks: number("ranks"), microbatches: number("microbatches"), chunks: number("chunks") || null,
    }),
    undo: () => editor.ask({ do: "undo" }),
    redo: () => editor.ask({ do: "redo" }),
    cut: () => editor.ask({ do: "cut", time: editor.player.time }),
    empty: () => editor.ask({ do: "empty" }),
    save: () => editor.ask({ do: "save" }),
    there: () => editor.goToPlace(),
    search: () => editor.search("search"),
    par: () => editor.search("par"),
    take: () => editor.ask({ do: "take" }),
    share: () => editor.share(),
  };
  for (const [id, act] of Object.entries(acts)) part(id).addEventListener("click", act);
  for (const each of document.querySelectorAll("[data-format]")) {
    each.addEventListener("click", () => editor.exportAs(each.dataset.format));
  }
  part("puzzle").addEventListener("change", () => {
    const chosen = number("puzzle");
    if (chosen) editor.ask({ do: "puzzle", number: chosen });
    else acts.open();
  });
  part("halves").addEventListener("change", () => editor.ask({ do: "halves", halves: part("halves").checked }));
  for (const name of COSTS) part(`cost-${name}`).addEventListener("input", () => editor.sendCosts());
  part("limit").addEventListener("change", () => editor.ask({ do: "limit", limit: number("limit") || null }));
  addEventListener("hashchange", () => editor.openAddress());
  let timer = 0;
  const read = () => {
    clearTimeout(timer);
    timer = 0;
    editor.sendText();
  };
  part("text").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(read, PAUSE);
  });
  part("text").addEventListener("blur", () => { if (timer) read(); }); // before what was clicked on
}

/**
 * Delays answers while a button is pressed: an element that moves under the pointer would not get the click. Figures
 * follow a slider while it is pressed.
 */
function listenToPresses(editor) {
  let release = () => {};
  addEventListener("pointerdown", ({ target }) => {
    release();
    if (target.type !== "range") editor.released = new Promise((resolve) => { release = resolve; });
  }, { capture: true });
  for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => setTimeout(release), { capture: true }); // after the click
}

/** On a phone, folds the form that opens a schedule, so that the chart is visible. */
function foldOnPhones() {
  const wide = matchMedia("(min-width: 601px)");
  const unfold = () => { part("opener").open = wide.matches; };
  wide.addEventListener("change", unfold);
  unfold();
}

function listenToRanks(editor) {
  const { player } = editor;
  player.parts.sheet.addEventListener("click", (event) => {
    const place = placeUnder(player, event);
    if (!place || place.r < 0 || part("editing").disabled) return;
    const { ends } = player.timelines[0].ranks[place.r].actions;
    if (place.time < (ends[ends.length - 1] || 0)) return; // on a box: the moment, as in the player
    event.stopImmediatePropagation();
    editor.click(place.r, { x: event.clientX, y: event.clientY });
  }, { capture: true });
  part("scroller").addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || part("editing").disabled) return;
    const rank = player.selected ? player.selected[1] : 0;
    const kind = event.key.toUpperCase();
    if ("FBIW".includes(kind)) editor.ask({ do: "place", rank, kind });
    else if (event.key === "Backspace") editor.ask({ do: "back", rank });
    else if (event.key === "Enter") editor.click(rank, null);
    else return;
    event.preventDefault();
  });
  part("scroller").addEventListener("keyup", () => editor.markRank());
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !part("offers").hidden) {
      part("offers").hidden = true;
      part("scroller").focus({ preventScroll: true });
    }
    const key = event.key.toLowerCase();
    if (!(event.ctrlKey || event.metaKey) || event.target === part("text") || !"zy".includes(key)) return;
    event.preventDefault();
    editor.ask({ do: key === "y" || event.shiftKey ? "redo" : "undo" });
  });
}

foldOnPhones();
const editor = new Editor(player, JSON.parse(part("shown").textContent));
listenToDesk(editor);
listenToBlock(new BlockDesk(editor));
listenToPresses(editor);
listenToRanks(editor);
