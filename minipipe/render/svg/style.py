"""The colours of an SVG: presentation attributes for a light ground, a style sheet for a dark one.

Converters such as CairoSVG, svglib and MuPDF ignore media queries, and some of them ignore whole style sheets. The
attributes therefore carry the complete light drawing. The style sheet holds only media queries, and every selector in
it begins with the id of the drawing: drawings in one page do not affect each other or the page.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from minipipe.render.palette import DARK, FILL, LIGHT, shade
from minipipe.schedules.action import ActionKind

# Converters take the first family and never search the list, so it begins with one that they know.
FONT_FAMILY = "Helvetica,Arial,sans-serif"
_BROWSER_FONTS = f'system-ui,-apple-system,"Segoe UI",Roboto,{FONT_FAMILY}'


class _Paint(NamedTuple):
    """The attribute that a class sets, its colour as a field of Theme, and attributes that no theme changes."""

    attribute: str
    colour: str
    fixed: str = ""


_LINE = 'fill="none"'
_PAINT = {
    "ground": _Paint("fill", "ground"),
    "title": _Paint("fill", "ink"),
    "name": _Paint("fill", "ink"),
    "rank": _Paint("fill", "ink"),
    "fact": _Paint("fill", "muted"),
    "figures": _Paint("fill", "muted"),
    "note": _Paint("fill", "muted"),
    "tick": _Paint("fill", "muted"),
    "unit": _Paint("fill", "muted"),
    "peak": _Paint("fill", "muted"),
    "key": _Paint("fill", "muted"),
    "box": _Paint("stroke", "ground"),
    "slot": _Paint("fill", "slot"),
    "hatch": _Paint("stroke", "hatch", f'{_LINE} pointer-events="none"'),
    "step": _Paint("stroke", "ink", f'{_LINE} stroke-width="2" pointer-events="none"'),
    "grid": _Paint("stroke", "grid", _LINE),
    "held": _Paint("fill", "memory"),
    "edge": _Paint("stroke", "memory_edge", f'{_LINE} stroke-width=".8"'),
    "forward": _Paint("stroke", "message", f'{_LINE} stroke-width="1.1"'),
    "backward": _Paint("stroke", "gradient", f'{_LINE} stroke-width="1.1"'),
    "forward-head": _Paint("fill", "message", 'pointer-events="none"'),
    "choice": _Paint("fill", "ink"),
    "choice-left": _Paint("fill", "ink"),
    "reading": _Paint("fill", "muted"),
    "straight": _Paint("stroke", "message", _LINE),
    "looped": _Paint("stroke", "memory_edge", _LINE),
    "V": _Paint("stroke", "gradient", _LINE),
    "other": _Paint("stroke", "ink", _LINE),
    "front": _Paint("stroke", "ink", f'{_LINE} stroke-width="1.2"'),
    "leader": _Paint("stroke", "memory_edge", f'{_LINE} stroke-width=".7"'),
    "backward-head": _Paint("fill", "gradient", 'pointer-events="none"'),
}


def paint(name: str) -> str:
    """Return the attributes of a class: the class itself and its light colour.

    Examples
    --------
    >>> paint("slot")
    'class="slot" fill="#f6f7f9"'
    """
    attribute, colour, fixed = _PAINT[name]
    return f'class="{name}" {attribute}="{getattr(LIGHT, colour)}" {fixed}'.rstrip()


def box_class(kind: ActionKind, chunk: int) -> str:
    """Return the class of an action's box: its letter, followed by the chunk unless that is 0."""
    return f"{kind}{chunk or ''}"


def box_paint(kind: ActionKind, chunk: int) -> str:
    """Return the attributes of the boxes of a kind and chunk."""
    return f'class="{box_class(kind, chunk)}" fill="{shade(FILL[kind], chunk).light}"'


def label_paint(kind: ActionKind, chunk: int) -> str:
    """Return the attributes of the labels in the boxes of a kind and chunk."""
    return f'class="on-{box_class(kind, chunk)}" fill="{shade(FILL[kind], chunk).light_text}"'


def style_sheet(name: str, boxes: Iterable[tuple[ActionKind, int]]) -> str:
    """Return the style sheet of the drawing whose id is ``name``: fonts and scaling for browsers, and dark colours.

    Parameters
    ----------
    name : str
    boxes : iterable of (ActionKind, int)
        The kinds and chunks that occur.
    """
    browser = f"font-family:{_BROWSER_FONTS};font-variant-numeric:tabular-nums;max-width:100%;height:auto"
    rules = [f"#{name} .{role}{{{p.attribute}:{getattr(DARK, p.colour)}}}" for role, p in _PAINT.items()]
    for kind, chunk in sorted(set(boxes)):
        fill, box = shade(FILL[kind], chunk), box_class(kind, chunk)
        rules += [f"#{name} .{box}{{fill:{fill.dark}}}", f"#{name} .on-{box}{{fill:{fill.dark_text}}}"]
    return f"@media all{{#{name}{{{browser}}}}}@media screen and (prefers-color-scheme:dark){{{''.join(rules)}}}"
