// The playground has the theme that the reader has chosen on the site, also if it changes while the page is open.

function followSite() {
  let mode = "auto";
  try {
    mode = localStorage.getItem("mode"); // of pydata-sphinx-theme: light, dark or auto
  } catch {} // no storage: as the system prefers
  if (["light", "dark"].includes(mode)) document.documentElement.dataset.theme = mode;
  else delete document.documentElement.dataset.theme;
}

followSite();
addEventListener("storage", followSite); // another tab has changed it
addEventListener("pageshow", followSite); // this tab has, before the reader came back
