// The entry point.

const player = new Player(JSON.parse(document.getElementById("data").textContent));
listenToButtons(player);
listenToKeys(player);
listenToPointer(player);
listenToSurroundings(player);
player.resize();

// In a page of the site the page has the heading, and gives the frame the height that the player needs. While the
// player plays, the height only grows, so that what follows the frame does not jump.
if (globalThis.name === "embedded") {
  document.documentElement.classList.add("embedded");
  let [width, height] = [0, 0];
  new ResizeObserver(() => {
    const now = document.body.getBoundingClientRect();
    height = player.isPlaying && now.width === width ? Math.max(height, now.height) : now.height;
    width = now.width;
    parent.postMessage({ playerHeight: Math.ceil(height) }, "*");
  }).observe(document.body);
}
