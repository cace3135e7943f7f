"""The page of an SVG: a title and notes, panels above each other, a legend, and a description for screen readers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from zlib import crc32

from minipipe.io import escaped, note_lines
from minipipe.render.layout import number, wrapped
from minipipe.render.svg.style import FONT_FAMILY, Letters, paint, style_sheet
from minipipe.schedules.action import ActionKind

_MARGIN = 18  # pixels on each side, at the default font size
_BASELINE = 0.72  # of the height of a line


class Page:
    """What all pictures have in common.

    Parameters
    ----------
    width : int
        In pixels.
    title : str or None
    notes : sequence of str
    letters : Letters
    """

    def __init__(self, width: int, title: str | None, notes: Sequence[str], letters: Letters) -> None:
        self.width, self.title, self.notes, self.letters = width, title, note_lines(notes), letters
        self.margin = letters.scaled(_MARGIN)

    def head(self) -> tuple[list[str], float]:
        """Draw the title and the notes; return them and their lower edge."""
        lines = [("title", self.title)] if self.title else []
        lines += [("fact", line) for line in self.notes]
        parts, y = self.text(lines, float(self.margin))
        return parts, y + (self.letters.scaled(8) if lines else 0)

    def text(self, lines: Iterable[tuple[str, str]], y: float) -> tuple[list[str], float]:
        """Draw lines of text, each with its role; long ones continue on the next line."""
        parts, room = [], self.width - 2 * self.margin
        for role, words in lines:
            height = self.letters.line(role)
            for line in filter(None, wrapped(words, self.letters.wrapping_size(role), room)):
                parts.append(self.letters.draw(role, self.margin, round(y + _BASELINE * height), line))
                y += height
        return parts, y

    def document(
        self, parts: Iterable[str], bottom: float, title: str, described: str, boxes: Iterable[tuple[ActionKind, int]]
    ) -> str:
        """Return the whole file.

        Parameters
        ----------
        parts : iterable of str
        bottom : float
            The lower edge of the drawing, in pixels.
        title, described : str
            For screen readers.
        boxes : iterable of (ActionKind, int)
            The kinds and chunks that occur.
        """
        body, width, height = "".join(parts), self.width, round(bottom + self.margin)
        name = f"minipipe-{crc32(body.encode()):08x}"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" id="{name}" role="img" '
            f'aria-labelledby="{name}-title {name}-description" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="{FONT_FAMILY}" font-size="{number(self.letters.size)}">'
            f'<title id="{name}-title">{escaped(title)}</title>'
            f'<desc id="{name}-description">{escaped(described)}</desc>'
            f"<style>{style_sheet(name, boxes)}</style>"
            f'<rect {paint("ground")} width="{width}" height="{height}" rx="4"/>{body}</svg>\n'
        )


def moved(x: float, y: float, parts: Iterable[str]) -> str:
    """Return parts of a drawing, moved by (x, y) pixels."""
    return f'<g transform="translate({number(x)} {number(y)})">{"".join(parts)}</g>'
