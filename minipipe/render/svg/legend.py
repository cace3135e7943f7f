"""The legend of an SVG: only what occurs in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from minipipe.render.descriptions import KIND_NAMES, LATE_RECEIPTS
from minipipe.render.lettering import number, text_width
from minipipe.render.svg.style import box_class
from minipipe.schedules.action import ActionKind
from minipipe.simulation.span import IdleCause

__all__ = ["Entry", "arrow_entries", "draw_legend", "idle_entries", "kind_entries", "run_entry", "strip_entry"]

_LINE = 20  # pixels from one line to the next
_WIDTH, _HEIGHT = 20, 13  # of what is explained, in pixels
_SIZE = 11  # of the letters


class Entry(NamedTuple):
    """What is explained, as SVG at 0, 0, and how."""

    picture: str
    text: str


def kind_entries(boxes: Iterable[tuple[ActionKind, int]]) -> Iterator[Entry]:
    """Yield the kinds of action, each with the shades of its chunks."""
    boxes = set(boxes)
    for kind in (kind for kind in ActionKind if any(kind is other for other, _ in boxes)):
        chunks = sorted(chunk for other, chunk in boxes if other is kind)
        width = _WIDTH / len(chunks)
        shades = (
            f'<rect class="{box_class(kind, chunk)}" x="{number(i * width)}" width="{number(width)}" '
            f'height="{_HEIGHT}"/>'
            for i, chunk in enumerate(chunks)
        )
        yield Entry("".join(shades), f"{kind} {KIND_NAMES[kind]}")
    if any(chunk for _, chunk in boxes):
        yield Entry("", "darker: a later stage of the same rank")


def idle_entries(causes: Iterable[IdleCause]) -> Iterator[Entry]:
    """Yield the causes of idle time, each with its hatching."""
    for cause in causes:
        yield Entry(f'<rect class="{cause}" width="{_WIDTH}" height="{_HEIGHT}"/>', f"idle, {cause}")


def run_entry() -> Entry:
    """Return what stands for actions that are too short to be drawn one by one."""
    return Entry("", "bands: many short actions, each kind by its share of the time")


def strip_entry(is_memory: bool) -> Entry:
    """Return what stands under the ranks."""
    steps = f"M0 {_HEIGHT}V8H5V4H10V1H15V8H{_WIDTH}V{_HEIGHT}"
    picture = f'<path class="held" d="{steps}"/><path class="edge" d="{steps}"/>'
    return Entry(picture, "memory held" if is_memory else "activations held")


def arrow_entries(ways: Iterable[str], has_late_receipts: bool) -> Iterator[Entry]:
    """Yield the two kinds of message, ``"forward"`` and ``"backward"``, and what measured ones do not tell."""
    texts = {"forward": "activation sent", "backward": "gradient sent"}
    for way in ways:
        yield Entry(f'<path class="arrow {way}" d="M0 {_HEIGHT / 2}H{_WIDTH}"/>', texts[way])
    if has_late_receipts:
        yield Entry("", LATE_RECEIPTS)


def draw_legend(entries: Sequence[Entry], left: float, right: float, top: float) -> tuple[list[str], float]:
    """Draw entries side by side, in as many lines as they need; return them and where they end."""
    drawn, x, y = [], left, top
    for picture, text in entries:
        indent = _WIDTH + 6 if picture else 0
        width = indent + text_width(text, _SIZE)
        if x > left and x + width > right:
            x, y = left, y + _LINE
        drawn.append(
            f'<g transform="translate({number(x)} {number(y)})">{picture}'
            f'<text class="key muted" x="{indent}" y="{_HEIGHT - 3}">{text}</text></g>'
        )
        x += width + 14
    return drawn, y + _HEIGHT
