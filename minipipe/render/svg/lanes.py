"""The lane of a rank in an SVG: its actions as boxes, its idle slots, and what it holds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from minipipe.render.axis import Axis
from minipipe.render.descriptions import describe_action, describe_idle, format_time
from minipipe.render.lettering import number
from minipipe.render.panel import Panel
from minipipe.render.svg.strip import Holding, strip_path
from minipipe.render.svg.style import box_class
from minipipe.schedules.action import ActionKind
from minipipe.simulation.span import Idle, Span

__all__ = ["LaneSize", "draw_boxes", "draw_idle", "draw_strip", "is_drawn", "runs", "shown_idle"]

_NARROWEST = 1.0  # pixels: of a box drawn by itself, and of an idle slot
_RUN = 5.0  # pixels: how long a run of narrower boxes grows
_KINDS = (ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)


class LaneSize(NamedTuple):
    """Heights in pixels: of boxes, of memory strips (0 without), and from one lane to the next."""

    box: int
    strip: int
    pitch: int

    @classmethod
    def of(cls, num_lanes: int, has_memory: bool) -> LaneSize:
        """Return sizes with which many ranks stay on a page."""
        box = max(12, min(26, 480 // max(1, num_lanes)))
        strip = max(6, min(12, box // 2)) if has_memory else 0
        return cls(box, strip, box + (strip + 2 if strip else 0) + max(4, min(10, box // 3)))


def is_drawn(span: Span) -> bool:
    """Tell whether a span is drawn as a box: a computation that takes time. A SEND that blocks is an idle slot."""
    return span.end > span.start and not span.action.kind.is_communication


# -- boxes ----------------------------------------------------------------------------------------------------


def draw_boxes(panel: Panel, rank: int, axis: Axis, size: LaneSize) -> Iterator[str]:
    """Yield the boxes of a rank's actions, with tooltips; the lane's upper edge is at 0."""
    start = panel.timeline.start
    bands: defaultdict[ActionKind, list[str]] = defaultdict(list)
    counts: Counter[ActionKind] = Counter()
    for run in runs(panel.timeline.spans[rank], axis):
        if len(run) == 1:
            yield _box(panel, rank, run[0], axis, size)
            continue
        counts.update(span.action.kind for span in run)
        for kind, band in _bands(run, start, axis, size.box):
            bands[kind].append(band)
    for kind, paths in bands.items():
        title = f"{kind}: {counts[kind]} actions too short to be drawn one by one; heights are shares of the time"
        yield f'<path class="run {kind}" d="{"".join(paths)}"><title>{title}</title></path>'


def runs(spans: Sequence[Span], axis: Axis) -> Iterator[list[Span]]:
    """Divide a rank's spans into those that are wide enough by themselves, and runs of those that are not."""
    run: list[Span] = []
    for span in filter(is_drawn, spans):
        if run and not _joins(run, span, axis):
            yield run
            run = []
        run.append(span)
    if run:
        yield run


def _joins(run: Sequence[Span], span: Span, axis: Axis) -> bool:
    """Tell whether a span is narrow and close enough to be drawn together with those before it."""
    last = run[-1]
    is_narrow = max(span.end - span.start, last.end - last.start) * axis.scale < _NARROWEST
    is_near = (span.start - last.end) * axis.scale < _NARROWEST
    return is_narrow and is_near and (last.end - run[0].start) * axis.scale <= _RUN


def _bands(run: Sequence[Span], origin: float, axis: Axis, height: float) -> Iterator[tuple[ActionKind, str]]:
    """Yield the kinds of a run as bands above each other, each as large as its actions' boxes together."""
    first, last = axis.x(run[0].start - origin), axis.x(run[-1].end - origin)
    times: Counter[ActionKind] = Counter()
    for action, start, end in run:
        times[action.kind] += end - start  # type: ignore[assignment]
    top = 0.0
    for kind in (kind for kind in _KINDS if kind in times):
        part = height * times[kind] / (run[-1].end - run[0].start)
        yield kind, f"M{number(first)} {number(top)}h{number(last - first)}v{number(part)}H{number(first)}z"
        top += part


def _box(panel: Panel, rank: int, span: Span, axis: Axis, size: LaneSize) -> str:
    action, origin = span.action, panel.timeline.start
    x, end = axis.x(span.start - origin), axis.x(span.end - origin)
    name = box_class(action.kind, panel.chunk_of(rank, action.stage))
    width, classes = end - x, f"box {name}" if end - x >= 4 else f"box thin {name}"
    rounding = ' rx="2"' if width >= 8 else ""
    return (
        f'<rect class="{classes}" x="{number(x)}" width="{number(width)}" height="{size.box}"{rounding}>'
        f"<title>{describe_action(action)}, {_when(panel, span.start, span.end)}</title></rect>"
    )


def _when(panel: Panel, start: float, end: float) -> str:
    unit, origin = panel.timeline.unit, panel.timeline.start
    since = format_time(start - origin, unit).removesuffix(" ms").removesuffix(f" {unit}")
    return f"{since} to {format_time(end - origin, unit)}"


# -- what is not computing --------------------------------------------------------------------------------------


def shown_idle(panel: Panel, rank: int, axis: Axis) -> Iterator[Idle]:
    """Yield the idle slots of a rank that are wide enough to be seen."""
    return (slot for slot in panel.timeline.idle[rank] if (slot.end - slot.start) * axis.scale >= _NARROWEST)


def draw_idle(panel: Panel, rank: int, axis: Axis, size: LaneSize) -> Iterator[str]:
    """Yield a rank's idle slots, hatched by cause; what is narrower than a pixel is left blank."""
    origin = panel.timeline.start
    for slot in shown_idle(panel, rank, axis):
        x, end = axis.x(slot.start - origin), axis.x(slot.end - origin)
        yield (
            f'<rect class="{slot.cause}" x="{number(x)}" width="{number(end - x)}" height="{size.box}">'
            f"<title>{describe_idle(slot)}, {_when(panel, slot.start, slot.end)}</title></rect>"
        )


def draw_strip(panel: Panel, rank: int, axis: Axis, size: LaneSize, holding: Holding, most: float) -> Iterator[str]:
    """Yield what a rank holds over time, and the most of it at the right."""
    path, top = strip_path(panel.timeline, holding, rank, axis, size.strip, most), size.box + 2
    base = f"M{number(axis.left)} {size.strip}H{number(axis.x(panel.timeline.makespan))}"
    yield f'<g transform="translate(0 {top})">'
    if path:
        yield f'<path class="held" d="{path}"/><path class="edge" d="{path}"/>'
    yield f'<path class="grid" d="{base}"/></g>'
    baseline = number(top + size.strip / 2 + 4)
    yield f'<text class="peak muted" x="{number(axis.right + 8)}" y="{baseline}">{holding.peak_label(rank)}</text>'
