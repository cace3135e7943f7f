"""Draw the picture of the editor for README.md: ``python tutorials/site/screenshot.py
tutorials/site/editor.png``.

It needs Chromium and ``pip install -e '.[browser]'``.
"""

import shutil
import sys
import threading
from pathlib import Path

from minipipe.cli.edit import Page
from minipipe.render.editor import Editor

_SIZE = {"width": 1000, "height": 900}


def screenshot(chromium, until=15) -> bytes:
    """Return a picture of the middle of the editor as PNG: 1F1B without what begins at
    ``until`` or later.

    Parameters
    ----------
    chromium : playwright.sync_api.Browser
    until : float
    """
    editor = Editor()
    editor.answer({"do": "open", "name": "1f1b", "ranks": 4, "microbatches": 8})
    editor.answer({"do": "cut", "time": until})
    with Page(editor) as served:
        threading.Thread(target=served.serve_forever, args=(0.01,), daemon=True).start()
        page = chromium.new_page(viewport=_SIZE)
        page.goto(served.url)
        page.locator("#rows button").first.wait_for()
        first, last = (page.locator(part).bounding_box() for part in ("#said", "#rows"))
        top, bottom = first["y"] - 8, last["y"] + last["height"] + 5
        picture = page.screenshot(
            clip={"x": 0, "y": top, "width": _SIZE["width"], "height": bottom - top}
        )
        page.close()
        served.shutdown()
    return picture


def main(path: str) -> None:
    """Write the picture to a file."""
    from playwright.sync_api import sync_playwright

    browser = next(
        filter(
            None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
        ),
        None,
    )
    with sync_playwright() as started:
        chromium = started.chromium.launch(
            executable_path=browser, args=["--no-sandbox"]
        )
        Path(path).write_bytes(screenshot(chromium))
        chromium.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
