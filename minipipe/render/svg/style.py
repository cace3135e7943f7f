"""What an SVG looks like: its style sheet, for light and dark, and the patterns of its hatching.

Every rule names the drawing's own id, so that several drawings in one notebook leave each other and the page alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from minipipe.render.palette import DARK, FILL, HATCH, LIGHT, Theme, shade
from minipipe.schedules.action import ActionKind
from minipipe.simulation.span import IdleCause

__all__ = ["box_class", "definitions", "style_sheet"]

_FONT = 'system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif'


def box_class(kind: ActionKind, chunk: int) -> str:
    """Return the class of an action's box: its letter, and for a further chunk its number."""
    return f"{kind}{chunk or ''}"


def style_sheet(name: str, boxes: Iterable[tuple[ActionKind, int]]) -> str:
    """Return the style sheet of the drawing with the id ``name``.

    Parameters
    ----------
    name : str
    boxes : iterable of (ActionKind, int)
        The kinds that occur, each with the chunks that do.
    """
    boxes = sorted(set(boxes))
    rules = [
        ("", f"font:12px {_FONT};font-variant-numeric:tabular-nums;max-width:100%;height:auto"),
        (".name", "font-size:14px;font-weight:600"),
        (".note", "font-style:italic"),
        (".tick,.peak,.key", "font-size:11px"),
        (".rank,.unit,.tick", "text-anchor:end"),
        (".tick,.label", "text-anchor:middle"),
        (".label", "pointer-events:none"),
        (".grid,.hatch,.edge,.arrow", "fill:none"),
        (".box", "stroke-width:1"),
        (".thin", "stroke-width:.4"),
        (".run", "stroke:none"),
        (".edge", "stroke-width:.8"),
        (".arrow", "stroke-width:1.1"),
        (".forward", f"marker-end:url(#{name}-forward)"),
        (".backward", f"marker-end:url(#{name}-backward)"),
        *((f".{cause}", f"fill:url(#{name}-{cause})") for cause in IdleCause),
        *_theme(LIGHT),
    ]
    rules += _fills(boxes, is_dark=False)
    dark = [*_theme(DARK), *_fills(boxes, is_dark=True)]
    return f"{_written(name, rules)}@media screen and (prefers-color-scheme:dark){{{_written(name, dark)}}}"


def _theme(theme: Theme) -> list[tuple[str, str]]:
    return [
        (".ground", f"fill:{theme.ground}"),
        (".box", f"stroke:{theme.ground}"),
        ("text", f"fill:{theme.ink}"),
        (".muted", f"fill:{theme.muted}"),
        (".name", f"fill:{theme.ink}"),
        (".grid", f"stroke:{theme.grid}"),
        (".slot", f"fill:{theme.slot}"),
        (".hatch", f"stroke:{theme.hatch}"),
        (".held", f"fill:{theme.memory}"),
        (".edge", f"stroke:{theme.memory_edge}"),
        (".forward", f"stroke:{theme.message}"),
        (".backward", f"stroke:{theme.gradient}"),
        (".forward-head", f"fill:{theme.message}"),
        (".backward-head", f"fill:{theme.gradient}"),
    ]


def _fills(boxes: Iterable[tuple[ActionKind, int]], is_dark: bool) -> list[tuple[str, str]]:
    rules = []
    for kind, chunk in boxes:
        fill, name = shade(FILL[kind], chunk), box_class(kind, chunk)
        colour, text = (fill.dark, fill.dark_text) if is_dark else (fill.light, fill.light_text)
        rules += [(f".{name}", f"fill:{colour}"), (f".on-{name}", f"fill:{text}")]
    return rules


def _written(name: str, rules: Iterable[tuple[str, str]]) -> str:
    return "".join(
        f"{','.join(f'#{name} {part}'.rstrip() for part in selector.split(','))}{{{body}}}" for selector, body in rules
    )


def definitions(name: str, causes: Iterable[IdleCause], ways: Iterable[str]) -> str:
    """Return the patterns that hatch idle slots, by cause, and the heads of arrows, by ``way_of``."""
    parts = [_pattern(name, cause) for cause in causes]
    parts += [_head(name, way) for way in ways]
    return f"<defs>{''.join(parts)}</defs>" if parts else ""


def _pattern(name: str, cause: IdleCause) -> str:
    """Return lines of one direction, as a tile that repeats: rotated, its lines stand at the angle asked for."""
    angle, space = HATCH[cause]
    turn = f' patternTransform="rotate({angle})"' if angle else ""
    middle = math.ceil(space / 2) - 0.5  # lines of one pixel are crisp in the middle of pixels
    return (
        f'<pattern id="{name}-{cause}" width="{space}" height="{space}" patternUnits="userSpaceOnUse"{turn}>'
        f'<rect class="slot" width="{space}" height="{space}"/>'
        f'<path class="hatch" d="M0 {middle:g}H{space}"/></pattern>'
    )


def _head(name: str, way: str) -> str:
    return (
        f'<marker id="{name}-{way}" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" markerHeight="6" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path class="{way}-head" d="M0 .6 6 3 0 5.4z"/></marker>'
    )
