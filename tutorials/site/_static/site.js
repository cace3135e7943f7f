// The theme's arrow that opens a part of the navigation has no name for a screen reader.
addEventListener("DOMContentLoaded", () => {
  for (const toggle of document.querySelectorAll("summary:has(.toctree-toggle)")) {
    const item = toggle.closest("li").querySelector("a");
    toggle.setAttribute("aria-label", `Pages of ${item.textContent.trim()}`);
  }
});
