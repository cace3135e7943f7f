"""Colours, text and page of an SVG: presentation attributes for a light background, a
style sheet for a dark one.

Converters such as CairoSVG, svglib and MuPDF ignore media queries, and some of them
ignore whole style sheets. The attributes therefore carry the complete light drawing.
The style sheet holds only media queries, and every selector in it begins with the id of
the drawing: drawings in one page do not affect each other or the page.

A page has a title and notes, panels above each other, a legend, and a description for
screen readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

from minipipe.core.schedules.action import ActionKind
from minipipe.core.specs import Spec
from minipipe.io import MOST_PIXELS, escaped, note_lines
from minipipe.render.layout import number, text_width, wrapped
from minipipe.render.palette import DARK, LIGHT, fill_of, shade

# Converters take the first family and never search the list, so it begins with one that
# they know.
FONT_FAMILY = "Helvetica,Arial,sans-serif"
_BROWSER_FONTS = f'system-ui,-apple-system,"Segoe UI",Roboto,{FONT_FAMILY}'


class _Role(NamedTuple):
    """The attribute that a class sets, its colour as a field of Theme, and what no
    theme changes.
    """

    attribute: str
    colour: str
    fixed: str = ""
    size: float = 1.0  # of text, as a multiple of the font size
    width: float = 1.0  # of letters, as a multiple of regular ones


_SMALL = 11 / 12
_BOLD = 1.12  # bold letters are wider by this factor
_LINE = 'fill="none"'
_MIDDLE = 'text-anchor="middle"'
_END = 'text-anchor="end"'
_ROLES = {
    "ground": _Role("fill", "ground"),
    "title": _Role("fill", "ink", 'font-weight="bold"', 4 / 3, _BOLD),
    "name": _Role("fill", "ink", 'font-weight="bold"', 7 / 6, _BOLD),
    "rank": _Role("fill", "ink", _END),
    "fact": _Role("fill", "muted"),
    "figures": _Role("fill", "muted"),
    "running": _Role("fill", "muted", _END, 7 / 6),
    "total": _Role("fill", "ink", f'{_END} font-weight="bold"', 7 / 6, _BOLD),
    "note": _Role("fill", "muted", 'font-style="italic"'),
    "tick": _Role("fill", "muted", _MIDDLE, _SMALL),
    "node": _Role("fill", "ink", _MIDDLE),
    "unit": _Role("fill", "muted", _END),
    "peak": _Role("fill", "muted", "", _SMALL),
    "key": _Role("fill", "muted", "", _SMALL),
    "box": _Role("stroke", "ground"),
    "slot": _Role("fill", "slot"),
    "hatch": _Role("stroke", "hatch", f'{_LINE} pointer-events="none"'),
    "joined": _Role(
        "stroke", "ink", f'{_LINE} stroke-width="1.5" pointer-events="none"'
    ),
    "step": _Role("stroke", "ink", f'{_LINE} stroke-width="2" pointer-events="none"'),
    "grid": _Role("stroke", "grid", _LINE),
    "held": _Role("fill", "memory"),
    "edge": _Role("stroke", "memory_edge", f'{_LINE} stroke-width=".8"'),
    "forward": _Role("stroke", "message", f'{_LINE} stroke-width="1.1"'),
    "backward": _Role("stroke", "gradient", f'{_LINE} stroke-width="1.1"'),
    "forward-head": _Role("fill", "message", 'pointer-events="none"'),
    "choice": _Role("fill", "ink", "", _SMALL),
    "choice-left": _Role("fill", "ink", _END, _SMALL),
    "reading": _Role("fill", "muted", _END, _SMALL),
    "straight": _Role("stroke", "message", _LINE),
    "looped": _Role("stroke", "memory_edge", _LINE),
    "V": _Role("stroke", "gradient", _LINE),
    "other": _Role("stroke", "ink", _LINE),
    "front": _Role("stroke", "ink", f'{_LINE} stroke-width="1.2"'),
    "leader": _Role("stroke", "memory_edge", f'{_LINE} stroke-width=".7"'),
    "backward-head": _Role("fill", "gradient", 'pointer-events="none"'),
}
# pixels: the font size at which all other sizes in this package are given
DEFAULT_SIZE = 12.0


def paint(name: str, *attributes: str) -> str:
    """Return the attributes of a class: the class itself, its light colour, further
    ones, and the fixed ones.

    Examples
    --------
    >>> paint("slot")
    'class="slot" fill="#f6f7f9"'
    """
    role = _ROLES[name]
    colour = f'{role.attribute}="{getattr(LIGHT, role.colour)}"'
    return " ".join(filter(None, [f'class="{name}"', colour, *attributes, role.fixed]))


def box_paint(kind: ActionKind, chunk: int) -> str:
    """Return the attributes of the boxes of a kind and chunk: the class is its letter,
    followed by the chunk unless that is 0.
    """
    return f'class="{kind}{chunk or ""}" fill="{shade(fill_of(kind), chunk).box}"'


def label_paint(kind: ActionKind, chunk: int) -> str:
    """Return the attributes of the labels in the boxes of a kind and chunk."""
    return f'class="on-{kind}{chunk or ""}" fill="{shade(fill_of(kind), chunk).text}"'


def style_sheet(name: str) -> str:
    """Return the style sheet of the drawing whose id is ``name``: fonts and scaling for
    browsers, and dark colours. Boxes have the same colours on both backgrounds.
    """
    browser = f"font-family:{_BROWSER_FONTS};font-variant-numeric:tabular-nums;max-width:100%;height:auto"
    rules = []
    for each, role in _ROLES.items():
        colour = getattr(DARK, role.colour)
        rules.append(f"#{name} .{each}{{{role.attribute}:{colour}}}")
    dark = "@media screen and (prefers-color-scheme:dark)"
    return f"@media all{{#{name}{{{browser}}}}}{dark}{{{''.join(rules)}}}"


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
        """Return a length at this font size, given its length at the default size; in
        whole pixels, at least 1.
        """
        return max(1, round(pixels * self.size / DEFAULT_SIZE))

    def size_of(self, role: str) -> float:
        """Return the size of the letters of a role, in pixels."""
        return self.size * _ROLES[role].size

    def wrapping_size(self, role: str) -> float:
        """Return the size with which the text of a role is wrapped: larger than its
        letters if they are bold.
        """
        return self.size_of(role) * _ROLES[role].width

    def width(self, role: str, text: str) -> float:
        """Return an upper estimate of the width of a text, in pixels."""
        return text_width(text, self.wrapping_size(role))

    def line(self, role: str) -> int:
        """Return the height of a line of text, in pixels."""
        return round(1.5 * self.size_of(role))

    def draw(self, role: str, x: float, y: float, text: str) -> str:
        """Return a text whose base line is at ``y``."""
        attributes = paint(role, f'font-size="{number(self.size_of(role))}"')
        place = f'x="{number(x)}" y="{number(y)}"'
        return f"<text {attributes} {place}>{escaped(text)}</text>"


# -- pages -----------------------------------------------------------------------------


_MARGIN = 18  # pixels on each side, at the default font size
BASELINE = 0.72  # of the height of a line


class Page:
    """The common parts of all pictures.

    Parameters
    ----------
    width : int
        In pixels.
    title : str or None
    notes : sequence of str
    letters : Letters

    Attributes
    ----------
    margin, right : int
        The x coordinates between which it draws.
    """

    def __init__(
        self, width: int, title: str | None, notes: Sequence[str], letters: Letters
    ) -> None:
        self.width = width
        self.title = title
        self.notes = note_lines(notes)
        self.letters = letters
        self.margin = letters.scaled(_MARGIN)
        self.right = width - self.margin

    @staticmethod
    def check_width(width: float, least: int, remark: str = "") -> None:
        """Refuse a width below the least, or beyond what viewers can show."""
        expected = f"{least} to {MOST_PIXELS} pixels{remark}"
        spec = Spec(float, minimum=least, maximum=MOST_PIXELS, expected=expected)
        spec.check("width", width)

    def head(self) -> tuple[list[str], float]:
        """Draw the title and the notes; return them and their lower edge."""
        lines = [("fact", line) for line in self.notes]
        if self.title:
            lines.insert(0, ("title", self.title))
        parts, y = self.text(lines, float(self.margin))
        if lines:
            y += self.letters.scaled(8)
        return parts, y

    def text(
        self, lines: Iterable[tuple[str, str]], y: float
    ) -> tuple[list[str], float]:
        """Draw lines of text, each with its role; long ones continue on the next
        line.
        """
        parts = []
        width = self.width - 2 * self.margin
        for role, text in lines:
            height = self.letters.line(role)
            size = self.letters.wrapping_size(role)
            for line in filter(None, wrapped(text, size, width)):
                baseline = round(y + BASELINE * height)
                parts.append(self.letters.draw(role, self.margin, baseline, line))
                y += height
        return parts, y

    def document(
        self,
        parts: Iterable[str],
        bottom: float,
        name: str,
        described: str,
        motion: Callable[[str], str] | None = None,
    ) -> str:
        """Return the whole file.

        Parameters
        ----------
        parts : iterable of str
        bottom : float
            The lower edge of the drawing, in pixels.
        name, described : str
            For screen readers. The title of the page comes before the name.
        motion : callable, optional
            The rules that move the drawing, from its id.
        """
        body = "".join(parts)
        width = self.width
        height = round(bottom + self.margin)
        drawing = f"minipipe-{crc32(body.encode()):08x}"
        style = style_sheet(drawing)
        if motion:
            style += motion(drawing)
        size = f'width="{width}" height="{height}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" id="{drawing}" role="img" '
            f'aria-labelledby="{drawing}-title {drawing}-description" '
            f'viewBox="0 0 {width} {height}" {size} '
            f'font-family="{FONT_FAMILY}" font-size="{number(self.letters.size)}">'
            f'<title id="{drawing}-title">{escaped(self.title or name)}</title>'
            f'<desc id="{drawing}-description">{escaped(described)}</desc>'
            f"<style>{style}</style>"
            f'<rect {paint("ground")} {size} rx="4"/>{body}</svg>\n'
        )
