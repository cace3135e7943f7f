// The entry point.

const player = new Player(JSON.parse(document.getElementById("data").textContent));
listenToButtons(player);
listenToKeys(player);
listenToPointer(player);
listenToSurroundings(player);
player.resize();
