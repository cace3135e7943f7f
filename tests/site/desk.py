"""A page of the editor, as tests use it."""

import re
from pathlib import Path

from minipipe import schedules, simulate
from minipipe.render.editor.draft import Draft
from minipipe.render.editor.sharing import packed

SMALL = schedules.one_f_one_b(2, 2)
HALF = Draft.of(SMALL).cut(simulate(SMALL), 3)  # rank 0: 0F0 0F1, rank 1: 1F0 1B0
PATIENCE = 120_000  # milliseconds: a busy machine fails no test


class Desk:
    """A page of the editor. What is expected is waited for."""

    def __init__(self, page):
        from playwright.sync_api import expect

        expect.set_options(timeout=PATIENCE)
        self.page, self.expect = page, expect

    def reload(self):
        """Open the page anew, and wait until it can be edited."""
        self.page.reload()
        self.wait_until_alive()

    def wait_until_alive(self):
        """Wait until Python answers."""
        self.page.locator("body[data-alive]").wait_for(timeout=PATIENCE)

    def open(self, draft=HALF, costs="", puzzle=0):
        """Open a draft as a pasted address does; everything else is then as in a new
        page.
        """
        self.page.evaluate("history.replaceState(null, '', location.pathname)")
        self.page.evaluate(
            "(fragment) => { location.hash = fragment; }",
            packed(draft, costs, None, puzzle),
        )
        self.says("This is the schedule of the address.")
        self.page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")

    def says(self, sentence, is_refused=False):
        """Expect a sentence above the player."""
        said = self.page.locator(
            "#said.refused" if is_refused else "#said:not(.refused)"
        )
        self.expect(said).to_contain_text(sentence)

    def has(self, *rows):
        """Expect these rows, in the text and in the chart."""
        lines = [f"rank {rank}: {row}".strip() for rank, row in enumerate(rows)]
        self.expect(self.page.locator("#text")).to_have_value(
            re.compile("^# .*\n" + "\n".join(lines) + "\n$")
        )

    def shows(self, name, value):
        """Expect a figure."""
        fact = self.page.locator(".facts div").filter(
            has=self.page.locator("dt", has_text=re.compile(f"^{name}$"))
        )
        self.expect(fact.locator("dd")).to_have_text(value)

    def choice(self, action):
        return self.page.locator("#rows button", has_text=action)

    def click_in_chart(self, rank, time, duration):
        """Click in the row of a rank at a time, where the chart shows so much of it."""
        box = self.page.locator(".chart").bounding_box()
        gutter, axis, pitch = 62, 26, 44  # pixels: view.js, chart.js
        x = gutter + time / duration * (box["width"] - gutter - 14)
        self.page.mouse.click(box["x"] + x, box["y"] + axis + rank * pitch + 10)

    def download(self, form):
        """Return the content of an exported file and its name."""
        with self.page.expect_download() as started:
            self.page.click(f"[data-format={form}]")
        return Path(started.value.path()).read_text(), started.value.suggested_filename
