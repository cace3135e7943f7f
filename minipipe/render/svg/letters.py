"""The text of an SVG around its boxes: the size, weight and anchor of each role."""

from __future__ import annotations

from typing import NamedTuple

from minipipe.io import escaped
from minipipe.render.lettering import number, text_width
from minipipe.render.svg.style import paint

DEFAULT_SIZE = 12.0  # pixels: the font size at which all other sizes in this package are given
_BOLD = 1.12  # bold letters are wider by this factor
_SMALL = 11 / 12


class _Role(NamedTuple):
    """The size as a multiple of the font size, and attributes."""

    size: float
    attributes: str = ""
    is_bold: bool = False


_ROLES = {
    "title": _Role(4 / 3, 'font-weight="bold"', is_bold=True),
    "fact": _Role(1.0),
    "name": _Role(7 / 6, 'font-weight="bold"', is_bold=True),
    "figures": _Role(1.0),
    "note": _Role(1.0, 'font-style="italic"'),
    "rank": _Role(1.0, 'text-anchor="end"'),
    "unit": _Role(1.0, 'text-anchor="end"'),
    "tick": _Role(_SMALL, 'text-anchor="middle"'),
    "peak": _Role(_SMALL),
    "key": _Role(_SMALL),
    "choice": _Role(_SMALL),
    "choice-left": _Role(_SMALL, 'text-anchor="end"'),
    "reading": _Role(_SMALL, 'text-anchor="end"'),
}


class Letters(NamedTuple):
    """Text at one font size.

    Attributes
    ----------
    size : float
        The font size, in pixels.

    Examples
    --------
    >>> letters = Letters(12.0)
    >>> letters.scaled(26), letters.size_of("tick")
    (26, 11.0)
    >>> letters.draw("tick", 60, 20, "5")
    '<text class="tick" fill="#57606a" font-size="11" text-anchor="middle" x="60" y="20">5</text>'
    """

    size: float

    def scaled(self, pixels: float) -> int:
        """Return a length at this font size, given its length at the default size; in whole pixels, at least 1."""
        return max(1, round(pixels * self.size / DEFAULT_SIZE))

    def size_of(self, role: str) -> float:
        """Return the size of the letters of a role, in pixels."""
        return self.size * _ROLES[role].size

    def width(self, role: str, words: str) -> float:
        """Return an upper estimate of the width of a text, in pixels."""
        return text_width(words, self.size_of(role)) * (_BOLD if _ROLES[role].is_bold else 1.0)

    def line(self, role: str) -> int:
        """Return the height of a line of text, in pixels."""
        return round(1.5 * self.size_of(role))

    def wrapping_size(self, role: str) -> float:
        """Return the size to wrap the text of a role with: larger than its letters where they are bold."""
        return self.size_of(role) * (_BOLD if _ROLES[role].is_bold else 1.0)

    def draw(self, role: str, x: float, y: float, words: str) -> str:
        """Return a text whose base line is at ``y``."""
        attributes = f'{paint(role)} font-size="{number(self.size_of(role))}" {_ROLES[role].attributes}'.rstrip()
        return f'<text {attributes} x="{number(x)}" y="{number(y)}">{escaped(words)}</text>'
