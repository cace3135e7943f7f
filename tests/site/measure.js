// The layout of a page at several widths, light and dark: window.measure(address) returns its problems.
// The page is loaded once, into a frame, whose width is that of the screen.

const WIDTHS = [1440, 1280, 375];
const PHONE = 375;
// Boxes that are made to scroll: code, tables, formulas, pictures on narrow pages, and the lists of a player.
const SCROLLING = "pre, textarea, select, .picture, .pst-scrollable-table-container, .math, #scroller";
const HEADINGS = "h1, h2, h3, h4, h5, h6";

function isVisible(element) {
  return element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
}

function name(element) {
  return `${element.outerHTML.slice(0, 80)} "${element.textContent.trim().slice(0, 40)}"`;
}

/** Returns elements that extend beyond the right edge of the page. */
function beyondTheEdge(page, width) {
  const found = [];
  const visit = (element) => {
    for (const child of element.children) {
      if (!isVisible(child)) continue;
      const { right, width: own, height } = child.getBoundingClientRect();
      if (own > 1 && height > 1 && right > width + 0.5) {
        found.push(`${name(child)} ends at ${right}`);
      } else if (!child.matches(SCROLLING) && !(child instanceof page.defaultView.SVGElement)) {
        visit(child);
      }
    }
  };
  visit(page.body);
  const { scrollWidth } = page.documentElement;
  if (scrollWidth > width) found.push(`the page is ${scrollWidth} wide`);
  return found;
}

/** Returns pictures and players that are wider than their column; on a phone they may scroll in a box. */
function outsideTheirColumn(page, width) {
  const found = [];
  for (const picture of page.querySelectorAll(".picture, .picture > svg, iframe, article img")) {
    if (!isVisible(picture)) continue;
    const { left, right } = picture.getBoundingClientRect();
    const column = picture.parentElement.getBoundingClientRect();
    const mayScroll = width === PHONE && picture.parentElement.matches(".picture");
    if (!mayScroll && (left < column.left - 0.5 || right > column.right + 0.5)) {
      found.push(`${name(picture)} is ${left} to ${right} in ${column.left} to ${column.right}`);
    }
  }
  return found;
}

/** Returns pairs of texts and buttons of the header that overlap or touch. */
function tooCloseInTheHeader(page) {
  const items = [...page.querySelectorAll(".bd-header :is(a, button)")].filter(isVisible);
  const boxes = items.map((item) => item.getBoundingClientRect()).sort((a, b) => a.left - b.left);
  const close = boxes.slice(1).filter((box, i) => box.left < boxes[i].right + 4 && box.top < boxes[i].bottom);
  return close.map((box) => `in the header, something ends less than 4 pixels before ${box.left}`);
}

/** Returns what is wrong with the headings: one h1, first; no level skipped; each level larger than the next. */
function wrongHeadings(page) {
  const headings = [...page.querySelectorAll(HEADINGS)].filter(isVisible);
  const levels = headings.map((heading) => Number(heading.tagName[1]));
  const found = [];
  if (levels[0] !== 1 || levels.filter((level) => level === 1).length !== 1) found.push(`headings: ${levels}`);
  const sizes = new Map();
  headings.forEach((heading, i) => {
    if (i && levels[i] > levels[i - 1] + 1) found.push(`${name(heading)} skips a level`);
    sizes.set(levels[i], parseFloat(page.defaultView.getComputedStyle(heading).fontSize));
  });
  const inOrder = [...sizes].sort((a, b) => a[0] - b[0]).map(([, size]) => size);
  if (inOrder.some((size, i) => i && size > 0.95 * inOrder[i - 1])) found.push(`sizes of headings: ${inOrder}`);
  return found;
}

function loaded(frame, address) {
  return new Promise((resolve) => {
    frame.onload = resolve;
    frame.src = address;
  });
}

/** Waits until what a change of width asks for has been drawn. */
async function drawn() {
  for (let frames = 0; frames < 3; frames += 1) await new Promise(requestAnimationFrame);
}

window.measure = async (address) => {
  const frame = document.querySelector("iframe");
  frame.style.width = `${WIDTHS[0]}px`;
  await loaded(frame, address);
  const page = frame.contentDocument;
  const problems = wrongHeadings(page);
  const sizes = new Map();
  for (const theme of ["light", "dark"]) {
    page.documentElement.dataset.theme = theme;
    for (const width of WIDTHS) {
      frame.style.width = `${width}px`;
      if (page.getElementById("scrub")) await drawn(); // a player draws anew when its width changes
      // A dark page of the same size as the light one has the same layout.
      const { scrollWidth, scrollHeight } = page.documentElement;
      const size = `${scrollWidth} x ${scrollHeight}`;
      if (sizes.get(width) === size) continue;
      sizes.set(width, size);
      const found = [...beyondTheEdge(page, width), ...outsideTheirColumn(page, width)];
      if (width === PHONE) found.push(...tooCloseInTheHeader(page));
      problems.push(...found.slice(0, 3).map((problem) => `${width} pixels, ${theme}: ${problem}`));
    }
  }
  return problems;
};
