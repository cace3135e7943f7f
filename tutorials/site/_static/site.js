// The theme's arrow that opens a part of the navigation has no name for a screen reader.
addEventListener("DOMContentLoaded", () => {
  for (const toggle of document.querySelectorAll("summary:has(.toctree-toggle)")) {
    const item = toggle.closest("li").querySelector("a");
    toggle.setAttribute("aria-label", `Pages of ${item.textContent.trim()}`);
  }
});

// On a phone some tables become lists (site.css): a title up to the first column with a header, a text from the column
// whose header begins with "what", and each other cell behind its header.
addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("table.list-on-phone")) {
    const headers = [...table.querySelectorAll("thead :is(th, td)")].map((each) => each.textContent.trim());
    const title = headers.findIndex((header) => header);
    for (const row of table.querySelectorAll("tbody tr")) {
      [...row.cells].forEach((cell, column) => {
        if (column <= title) cell.classList.add("is-title", ...(column === title ? ["is-last"] : []));
        else if (headers[column].startsWith("what")) cell.classList.add("is-text");
        else cell.dataset.label = headers[column];
      });
    }
  }
});

// An embedded player reports the height of its content (minipipe/render/html/main.js).
addEventListener("message", ({ data, source }) => {
  const height = Number(data?.playerHeight);
  const frame = [...document.querySelectorAll("iframe.player")].find((each) => each.contentWindow === source);
  if (frame && height > 0) frame.style.height = `${height}px`;
});
