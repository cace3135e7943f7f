"""How soon a page of the editor shows a picture, takes edits, and shows each: the
playground, and ``minipipe edit``.

    python tests/benchmarks/editor.py          # needs Chromium, npm, and the extras `browser` and `docs`
    python tests/benchmarks/editor.py --json

Medians. A page is new each time, and comes from this machine: nothing waits for a
network. Edits follow each other on one page by turns: the last action of rank 0 is
placed (which finishes the schedule), that is undone, and a cost is changed. An edit
lasts until the frame that shows it is out; "answer" is the part until Python's answer
is read. The load belongs to the figures.

Aims, on two slow cores: a picture at once, edits within 6 s; an edit shown within 100
ms at 8 ranks and 32 microbatches, and within 400 ms at 16 and 64.
"""

import argparse
import functools
import http.server
import importlib.util
import json
import os
import shutil
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from playwright.sync_api import sync_playwright

from minipipe.cli.edit import Page
from minipipe.render.editor import Editor

PLAYGROUND = (
    Path(__file__).resolve().parents[2]
    / "tutorials"
    / "site"
    / "playground"
    / "build.py"
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# The milliseconds to the first picture, which may come after the first answer.
PAINT = """() => new Promise((resolve) => new PerformanceObserver((list) => {
  for (const { startTime } of list.getEntriesByName("first-contentful-paint")) resolve(startTime);
}).observe({ type: "paint", buffered: true }))"""
# Edits, and returns the milliseconds until the answer, and until the end of the frame
# that shows it.
EDIT = """(kind) => new Promise((resolve) => {
  const begin = performance.now();
  new MutationObserver((_, observer) => {
    observer.disconnect();
    const [answered] = performance.getEntriesByName("answered");
    requestAnimationFrame(() => { // behind the player's own, in the same frame
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => resolve([answered.startTime - begin, performance.now() - begin]);
      port2.postMessage(null);
    });
  }).observe(document.getElementById("rows"), { childList: true });
  const slider = document.getElementById("cost-F");
  const acts = {
    place: () => document.querySelector("#rows .ready").click(),
    undo: () => document.getElementById("undo").click(),
    cost: () => {
      slider.value = slider.value === "1" ? 2 : 1;
      slider.dispatchEvent(new Event("input"));
    },
  };
  acts[kind]();
})"""
KINDS = ("place", "undo", "cost")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@contextmanager
def served(server):
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield
    server.shutdown()
    thread.join()


@contextmanager
def pages(site):
    """Yield the addresses of a playground, of a site if there is one, and of ``minipipe
    edit``.
    """
    with tempfile.TemporaryDirectory() as folder:
        if site is None:
            spec = importlib.util.spec_from_file_location(
                "playground_build", PLAYGROUND
            )
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            module.build(Path(folder, "playground"))
        files = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(Quiet, directory=site or folder)
        )
        with files, served(files), Page(Editor()) as page, served(page):
            playground = f"http://127.0.0.1:{files.server_port}/playground/index.html"
            yield {"playground": playground, "minipipe edit": page.url}


def opened(browser, url):
    """Return a page as soon as it takes edits."""
    page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
    page.goto(url)
    page.locator("body[data-alive]").wait_for(timeout=120_000)
    return page


def starts(browser, url, rounds):
    """Return the milliseconds to the first picture, and to the first edit."""
    found = []
    for _ in range(rounds):
        page = opened(browser, url)
        found.append(
            (
                page.evaluate(PAINT),
                int(page.locator("body").get_attribute("data-alive")),
            )
        )
        page.context.close()
    return {
        name: median(times) for name, times in zip(("picture", "alive"), zip(*found))
    }


def edits(browser, url, ranks, microbatches, rounds):
    """Return, by kind of edit, the milliseconds to the answer and to the frame."""
    page = opened(browser, url)
    page.fill("#ranks", str(ranks))
    page.fill("#microbatches", str(microbatches))
    page.click("#open")
    page.locator("#rows .next").nth(ranks - 1).wait_for()
    page.locator("#scroller").focus()
    page.keyboard.press("ArrowDown")  # to rank 0
    page.keyboard.press("Backspace")
    page.locator("#rows .ready").wait_for()
    times = {kind: [] for kind in KINDS}
    for _ in range(rounds + 1):
        for kind in KINDS:
            times[kind].append(page.evaluate(EDIT, kind))
    page.context.close()
    # the first fills caches
    return {
        kind: [median(some) for some in zip(*found[1:])]
        for kind, found in times.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--sizes",
        nargs="*",
        default=["4x8", "8x32", "16x64"],
        metavar="RANKSxMICROBATCHES",
    )
    parser.add_argument(
        "--site",
        metavar="DIRECTORY",
        help="a site that was built (by default the playground is)",
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {"load": os.getloadavg()[0]}
    with pages(options.site) as urls, sync_playwright() as started:
        path = next(filter(None, map(shutil.which, BROWSERS)))
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name, url in urls.items():
            found[name] = starts(browser, url, options.rounds)
            for size in options.sizes:
                found[name][size] = edits(
                    browser, url, *map(int, size.split("x")), options.rounds
                )
        browser.close()
    if options.json:
        print(json.dumps(found, indent=1))
        return
    print(f"milliseconds, under a load of {found.pop('load'):.1f}")
    for name, row in found.items():
        print(f"{name}: picture {row['picture']:.0f}, alive {row['alive']:.0f}")
        for size in options.sizes:
            told = (
                f"{kind} {shown:.0f} (answer {answer:.0f})"
                for kind, (answer, shown) in row[size].items()
            )
            print(f"{size:>8}: {', '.join(told)}")


if __name__ == "__main__":
    main()
