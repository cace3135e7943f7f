"""The lane of a rank in an SVG: its actions as boxes, its idle slots, and the strip of its memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from minipipe.io import escaped
from minipipe.render.axis import Axis
from minipipe.render.descriptions import describe_action, describe_idle
from minipipe.render.lettering import number
from minipipe.render.panel import NARROW, TOGETHER, Panel
from minipipe.render.svg.hatching import hatch_path
from minipipe.render.svg.letters import Letters
from minipipe.render.svg.strip import Strip, strip_path
from minipipe.render.svg.style import box_paint, paint
from minipipe.schedules.action import ActionKind
from minipipe.schedules.simulation.timeline import Idle, Span, format_number, format_time

_THIN = 4.0  # pixels: narrower boxes have a thinner outline
_ROUNDED = 8.0  # pixels: wider boxes have rounded corners
_KINDS = (ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)


class LaneSize(NamedTuple):
    """Heights in pixels: of boxes, of memory strips (0 without), and from one lane to the next."""

    box: int
    strip: int
    pitch: int

    @classmethod
    def of(cls, num_lanes: int, has_memory: bool, letters: Letters) -> LaneSize:
        """Return sizes that keep many ranks on a page; they grow with the font size."""
        box = max(12, min(26, 480 // max(1, num_lanes)))
        strip = max(6, min(12, box // 2)) if has_memory else 0
        pitch = box + (strip + 2 if strip else 0) + max(4, min(10, box // 3))
        return cls(letters.scaled(box), letters.scaled(strip) if strip else 0, letters.scaled(pitch))


def is_drawn(span: Span) -> bool:
    """Tell whether a span is drawn as a box: a computation of some length. A blocking SEND is an idle slot."""
    return span.end > span.start and not span.action.kind.is_communication


# -- boxes ----------------------------------------------------------------------------------------------------


def draw_boxes(panel: Panel, rank: int, axis: Axis, size: LaneSize) -> Iterator[str]:
    """Yield the boxes of a rank's actions, with tooltips; the upper edge of the lane is at 0."""
    start = panel.timeline.start
    boxes: defaultdict[tuple[ActionKind, int, bool], list[str]] = defaultdict(list)
    bands: defaultdict[ActionKind, list[str]] = defaultdict(list)
    counts: Counter[ActionKind] = Counter()
    found = list(runs(panel.timeline.spans[rank], axis))
    for i, run in enumerate(found):
        if len(run) == 1:
            action, width = run[0].action, (run[0].end - run[0].start) * axis.scale
            key = action.kind, panel.chunk_of(rank, action.stage), width < _THIN
            boxes[key].append(_box(panel, run[0], axis, size))
            continue
        counts.update(span.action.kind for span in run)
        for kind, band in _bands(run, _end(run, found[i + 1 : i + 2], axis), start, axis, size.box):
            bands[kind].append(band)
    if boxes:
        yield f"<g {paint('box')}>"
        for (kind, chunk, is_thin), drawn in boxes.items():
            outline = ' stroke-width=".4"' if is_thin else ""
            yield f"<g {box_paint(kind, chunk)}{outline}>{''.join(drawn)}</g>"
        yield "</g>"
    for kind, paths in bands.items():
        title = f"{kind}: {counts[kind]} actions too short to be drawn one by one; heights are shares of the time"
        yield f'<path {box_paint(kind, 0)} d="{"".join(paths)}"><title>{title}</title></path>'


def runs(spans: Sequence[Span], axis: Axis) -> Iterator[list[Span]]:
    """Divide the spans of a rank into single ones, wide enough for a box, and runs of narrower ones, as the player.

    A run has all that ends within ``NARROW`` pixels of its start, and goes on to a whole number of rounds.
    """
    run: list[Span] = []
    for span in filter(is_drawn, spans):
        if run and not _joins(run, span, axis):
            yield run
            run = []
        run.append(span)
    if run:
        yield run


def _joins(run: Sequence[Span], span: Span, axis: Axis) -> bool:
    """Tell whether a span belongs to the run before it."""
    last = run[-1]
    if (last.end - last.start) * axis.scale >= NARROW or (span.end - span.start) * axis.scale >= NARROW:
        return False
    is_within = (span.end - run[0].start) * axis.scale <= NARROW
    return is_within or (len(run) % TOGETHER > 0 and (span.start - last.end) * axis.scale < NARROW)


def _end(run: Sequence[Span], following: Sequence[Sequence[Span]], axis: Axis) -> float:
    """Return the end of a run: where the next actions start, if they are near."""
    near = (other[0].start for other in following if (other[0].start - run[-1].end) * axis.scale < NARROW)
    return next(near, run[-1].end)


def _bands(
    run: Sequence[Span], stop: float, origin: float, axis: Axis, height: float
) -> Iterator[tuple[ActionKind, str]]:
    """Yield the kinds of a run as bands above each other, each with the area of its actions' boxes."""
    first, last = axis.x(run[0].start - origin), axis.x(stop - origin)
    times: Counter[ActionKind] = Counter()
    for action, start, end in run:
        times[action.kind] += end - start  # type: ignore[assignment]
    top = 0.0
    for kind in (kind for kind in _KINDS if kind in times):
        part = height * times[kind] / (stop - run[0].start)
        yield kind, f"M{number(first)} {number(top)}h{number(last - first)}v{number(part)}H{number(first)}z"
        top += part


def _box(panel: Panel, span: Span, axis: Axis, size: LaneSize) -> str:
    origin = panel.timeline.start
    x, end = axis.x(span.start - origin), axis.x(span.end - origin)
    rounding = ' rx="2"' if end - x >= _ROUNDED else ""
    return (
        f'<rect x="{number(x)}" width="{number(end - x)}" height="{size.box}"{rounding}>'
        f"<title>{describe_action(span.action)}, {escaped(_when(panel, span.start, span.end))}</title></rect>"
    )


def _when(panel: Panel, start: float, end: float) -> str:
    unit, origin = panel.timeline.unit, panel.timeline.start
    return f"{format_number(start - origin, unit)} to {format_time(end - origin, unit)}"


# -- idle time and memory ---------------------------------------------------------------------------------------


def shown_idle(panel: Panel, rank: int, axis: Axis) -> Iterator[Idle]:
    """Yield the idle slots of a rank that are at least ``NARROW`` pixels wide."""
    return (slot for slot in panel.timeline.idle[rank] if (slot.end - slot.start) * axis.scale >= NARROW)


def draw_idle(panel: Panel, rank: int, axis: Axis, size: LaneSize) -> Iterator[str]:
    """Yield the idle slots of a rank, hatched by cause; narrow ones are left blank."""
    origin = panel.timeline.start
    slots, hatches = [], []
    for slot in shown_idle(panel, rank, axis):
        x, end = axis.x(slot.start - origin), axis.x(slot.end - origin)
        slots.append(
            f'<rect class="{slot.cause}" x="{number(x)}" width="{number(end - x)}" height="{size.box}">'
            f"<title>{describe_idle(slot)}, {escaped(_when(panel, slot.start, slot.end))}</title></rect>"
        )
        hatches.append(hatch_path(x, end, size.box, slot.cause))
    if slots:
        yield f'<g {paint("slot")}>{"".join(slots)}</g><path {paint("hatch")} d="{"".join(hatches)}"/>'


def draw_steps(panel: Panel, rank: int, axis: Axis, size: LaneSize) -> Iterator[str]:
    """Yield a line wherever the rank begins another training step."""
    if changes := panel.timeline.step_changes:
        begun = (number(axis.x(change.begun - panel.timeline.start)) for change in changes[rank])
        yield f'<path {paint("step")} d="{"".join(f"M{x} -2V{size.box + 2}" for x in begun)}"/>'


def draw_strip(
    panel: Panel, rank: int, axis: Axis, size: LaneSize, strip: Strip, most: float, letters: Letters
) -> Iterator[str]:
    """Yield the strip of a rank's memory, and its peak as text to the right."""
    path, top = strip_path(panel.timeline, strip, rank, axis, size.strip, most), size.box + 2
    base = f"M{number(axis.left)} {size.strip}H{number(axis.x(panel.timeline.makespan))}"
    yield f'<g transform="translate(0 {top})">'
    if path:
        yield f'<path {paint("held")} d="{path}"/><path {paint("edge")} d="{path}"/>'
    yield f'<path {paint("grid")} d="{base}"/></g>'
    baseline = top + size.strip / 2 + 0.35 * letters.size_of("peak")
    yield letters.draw("peak", axis.right + 8, baseline, strip.peak_label(rank))
