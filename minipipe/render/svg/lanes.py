"""The lane of a rank in an SVG: its actions as boxes, its idle slots with their hatching, the strip of its memory."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minipipe.io import escaped
from minipipe.render.descriptions import describe_action, describe_idle, format_memory
from minipipe.render.layout import Axis, number
from minipipe.render.palette import HATCH
from minipipe.render.panel import NARROW, TOGETHER, Panel
from minipipe.render.svg.style import Letters, box_paint, paint
from minipipe.schedules.action import ActionKind
from minipipe.schedules.simulation.span import Idle, IdleCause, Span
from minipipe.schedules.simulation.timeline import Timeline, format_number, format_time


def hatch_path(left: float, right: float, height: float, cause: IdleCause) -> str:
    """Return the hatch lines of a slot as path data, clipped to the slot; its upper edge is at 0.

    One line passes through the middle, so that the narrowest slot has a line too.

    Parameters
    ----------
    left, right, height : float
        In pixels; at least 1 pixel wide.
    cause : IdleCause
        Its entry in :data:`minipipe.render.palette.HATCH` sets the angle and the spacing.

    Examples
    --------
    >>> hatch_path(0, 10, 9, IdleCause.WAITING)
    'M0 0.5H10M0 4.5H10M0 8.5H10'
    """
    angle, gap = HATCH[cause]
    along_x, along_y = round(math.cos(math.radians(angle)), 12), round(math.sin(math.radians(angle)), 12)
    # Lines of one pixel are crisp in the middle of pixels.
    middle_x, middle_y = math.floor((left + right) / 2) + 0.5, math.floor(height / 2) + 0.5
    count = math.ceil(math.hypot(right - left, height) / 2 / gap)
    path = []
    for i in range(-count, count + 1):
        x, y = middle_x - i * gap * along_y, middle_y + i * gap * along_x
        first_x, last_x = _range(x, along_x, left, right)
        first_y, last_y = _range(y, along_y, 0.0, height)
        first, last = max(first_x, first_y), min(last_x, last_y)
        if first < last:
            path.append(_segment(x + first * along_x, y + first * along_y, x + last * along_x, y + last * along_y))
    return "".join(path)


def _range(start: float, step: float, low: float, high: float) -> tuple[float, float]:
    """Return the range of t in which ``start + t * step`` lies between ``low`` and ``high``."""
    if step:
        first, last = sorted(((low - start) / step, (high - start) / step))
        return first, last
    return (-math.inf, math.inf) if low < start < high else (math.inf, -math.inf)


def _segment(x: float, y: float, end_x: float, end_y: float) -> str:
    start, end = (number(x), number(y)), (number(end_x), number(end_y))
    if start[1] == end[1]:
        return f"M{start[0]} {start[1]}H{end[0]}"
    if start[0] == end[0]:
        return f"M{start[0]} {start[1]}V{end[1]}"
    return f"M{start[0]} {start[1]}L{end[0]} {end[1]}"


@dataclass(frozen=True)
class Strip:
    """The memory or the activations that the ranks of a timeline hold.

    Attributes
    ----------
    curves : tuple of list of (float, float)
        ``curves[rank]`` is a curve of steps: (time, amount held).
    is_memory : bool
        Whether the amounts are bytes. Otherwise they count activations as the panel does.
    """

    curves: tuple[list[tuple[float, float]], ...]
    is_memory: bool

    @property
    def unit(self) -> str:
        """``"bytes"``, or ``"activations"`` for counts."""
        return "bytes" if self.is_memory else "activations"

    def peak(self, rank: int) -> float:
        """Return the peak of a rank."""
        return max((amount for _, amount in self.curves[rank]), default=0.0)

    def peak_label(self, rank: int) -> str:
        """Return the text beside the strip of a rank."""
        return f"peak {format_memory(self.peak(rank), self.unit)}"


def strip_of(panel: Panel) -> Strip:
    """Return the bytes that the ranks hold, if the timeline knows them, and otherwise their held activations.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> strip_of(Panel(simulate(schedules.gpipe(1, 1)))).curves
    ([(0.0, 1.0), (1.0, 1.0), (1.0, 1.0), (3.0, 0.0)],)
    """
    timeline, ranks = panel.timeline, range(panel.timeline.num_ranks)
    if timeline.memory is not None and timeline.memory_unit != "units":
        return Strip(tuple(map(timeline.memory_over_time, ranks)), is_memory=True)
    return Strip(tuple(map(panel.activations_over_time, ranks)), is_memory=False)


def strip_path(timeline: Timeline, strip: Strip, rank: int, axis: Axis, height: float, most: float) -> str:
    """Return the outline of a strip as path data: ``height`` pixels stand for ``most``, 0 is at the lower edge."""
    if not most:
        return ""
    heights: dict[str, str] = {}  # by x: of two changes at one x, only the later one is visible
    for time, level in strip.curves[rank]:
        heights[number(axis.x(time - timeline.start))] = number(height * (1 - level / most))
    bottom = drawn = number(height)
    path = []
    for x, y in heights.items():
        if y != drawn:
            path.append(f"H{x}V{y}")
        drawn = y
    return f"M{number(axis.left)} {bottom}{''.join(path)}V{bottom}" if path else ""


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
    """Return whether a span is drawn as a box: a computation of some length. A blocking SEND is an idle slot."""
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

    A run has all that ends within ``NARROW`` pixels of its start, and continues to a whole number of rounds.
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
    """Return whether a span belongs to the run before it."""
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
