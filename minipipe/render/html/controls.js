// Buttons, keys, the wheel and the pointer.

function listenToButtons(player) {
  const acts = {
    first: () => player.goTo(0),
    back: () => player.step(-1),
    play: () => player.toggle(),
    forward: () => player.step(1),
    last: () => player.goTo(player.view.duration),
    "zoom-in": () => player.zoomBy(1.5),
    "zoom-out": () => player.zoomBy(1 / 1.5),
    "zoom-all": () => player.showAll(),
  };
  for (const [id, act] of Object.entries(acts)) document.getElementById(id).addEventListener("click", act);
  player.parts.scrub.addEventListener("input", (event) => player.scrub(Number(event.target.value)));
  player.parts.scrub.addEventListener("change", () => player.speak());
  player.parts.speed.addEventListener("change", (event) => player.setSpeed(Number(event.target.value)));
  for (const [id, wish] of [["show-path", "criticalPath"], ["show-messages", "messages"]]) {
    document.getElementById(id).addEventListener("change", (event) => player.wish(wish, event.target.checked));
  }
}

const KEYS = {
  " ": (player) => player.toggle(),
  ArrowLeft: (player) => player.step(-1),
  ArrowRight: (player) => player.step(1),
  Home: (player) => player.goTo(0),
  End: (player) => player.goTo(player.view.duration),
  "+": (player) => player.zoomBy(1.5),
  "=": (player) => player.zoomBy(1.5),
  "-": (player) => player.zoomBy(1 / 1.5),
  0: (player) => player.showAll(),
  Escape: (player) => player.details.hide(),
};
const CHART_KEYS = {
  ArrowUp: (player) => player.select(-1),
  ArrowDown: (player) => player.select(1),
};

/** Keys act while the player or nothing has the focus, unless the focused element needs the key itself. */
function listenToKeys(player) {
  document.addEventListener("keydown", (event) => {
    const target = event.target;
    const isHere = target === document.body || player.parts.player.contains(target);
    if (!isHere || event.ctrlKey || event.metaKey || event.altKey || target.matches("select")) return;
    if (event.key === " " && target.matches("button, [type=checkbox], summary")) return;
    const act = KEYS[event.key] || (target === player.parts.scroller && CHART_KEYS[event.key]);
    if (!act) return;
    event.preventDefault();
    act(player);
  });
}

/** Ctrl with the wheel, or a pinch, zooms; a drag moves the moment, and a click sets it. */
function listenToPointer(player) {
  const { scroller, sheet } = player.parts;
  scroller.addEventListener("scroll", () => player.scrolled(), { passive: true });
  scroller.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      const place = placeUnder(player, event);
      player.zoomBy(Math.exp(-event.deltaY / 200), place ? place.time : player.time);
    },
    { passive: false },
  );
  sheet.addEventListener("pointermove", (event) => {
    const place = placeUnder(player, event);
    if (place && player.isDragging) player.scrub(place.time);
    if (place && place.r >= 0) player.details.show(place.t, place.r, place.time, event.clientX, event.clientY);
    else player.details.hide();
  });
  sheet.addEventListener("pointerleave", () => player.details.hide());
  sheet.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" || event.button || !placeUnder(player, event)) return; // a finger scrolls
    player.isDragging = true;
    player.pause();
  });
  sheet.addEventListener("click", (event) => {
    const place = placeUnder(player, event);
    if (place) player.goTo(place.time);
  });
  addEventListener("pointerup", () => {
    if (player.isDragging) player.speak();
    player.isDragging = false;
  });
}

/** Redraws when the window, the colour scheme or the medium changes; paper is light. */
function listenToSurroundings(player) {
  new ResizeObserver(() => player.resize()).observe(player.parts.scroller);
  player.dark.addEventListener("change", () => player.changeLook());
  const themes = new MutationObserver(() => player.changeLook());
  themes.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  addEventListener("beforeprint", () => player.changeLook(true));
  addEventListener("afterprint", () => player.changeLook(false));
}
