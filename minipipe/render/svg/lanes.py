"""The lane of a rank in an SVG: its actions as boxes, its idle slots with their
hatching, the strip of its memory.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, zip_longest
from typing import NamedTuple

from minipipe.errors import counted
from minipipe.passes.kinds import KINDS
from minipipe.render.descriptions import describe_action, describe_idle, format_memory
from minipipe.render.layout import Axis, number
from minipipe.render.palette import HATCH
from minipipe.render.panel import NARROW, TOGETHER, Panel, side_by_side
from minipipe.render.svg.elements import group, moved, path, path_data, rect
from minipipe.render.svg.style import Letters, box_paint, paint
from minipipe.schedules import ActionKind, IdleCause, Span
from minipipe.schedules.simulation.timeline import format_number, format_time


def hatch_path(left: float, right: float, height: float, cause: IdleCause) -> str:
    """Return the hatch lines of a slot as path data, clipped to the slot; its upper
    edge is at 0.

    One line passes through the middle, so that even the narrowest slot has a line.

    Parameters
    ----------
    left, right, height : float
        In pixels; at least 1 pixel wide.
    cause : IdleCause
        Its entry in :data:`minipipe.render.palette.HATCH` sets the angle and the
        spacing.

    Examples
    --------
    >>> hatch_path(0, 10, 9, IdleCause.WAITING)
    'M0 0.5H10M0 4.5H10M0 8.5H10'
    """
    angle, gap = HATCH[cause]
    along_x = round(math.cos(math.radians(angle)), 12)
    along_y = round(math.sin(math.radians(angle)), 12)
    # Lines of one pixel are crisp in the middle of pixels.
    middle_x = math.floor((left + right) / 2) + 0.5
    middle_y = math.floor(height / 2) + 0.5
    count = math.ceil(math.hypot(right - left, height) / 2 / gap)
    lines = []
    for i in range(-count, count + 1):
        x = middle_x - i * gap * along_y
        y = middle_y + i * gap * along_x
        first_x, last_x = _range(x, along_x, left, right)
        first_y, last_y = _range(y, along_y, 0.0, height)
        first = max(first_x, first_y)
        last = min(last_x, last_y)
        if first < last:
            begin = (x + first * along_x, y + first * along_y)
            end = (x + last * along_x, y + last * along_y)
            lines.append(_segment(*begin, *end))
    return "".join(lines)


def slot(width: float, height: float, cause: IdleCause) -> str:
    """Return an idle slot with its hatching; its upper left corner is at 0, 0."""
    hatch = path(paint("hatch"), hatch_path(0, width, height, cause))
    return rect(paint("slot"), width, height) + hatch


def filled(outline: str) -> str:
    """Return the area of a strip inside path data, and its edge."""
    return path(paint("held"), outline) + path(paint("edge"), outline)


def _range(start: float, step: float, low: float, high: float) -> tuple[float, float]:
    """Return the range of t in which ``start + t * step`` lies between ``low`` and
    ``high``.
    """
    if step:
        first, last = sorted(((low - start) / step, (high - start) / step))
        return first, last
    if low < start < high:
        return -math.inf, math.inf
    return math.inf, -math.inf


def _segment(x: float, y: float, end_x: float, end_y: float) -> str:
    left, top, right, bottom = map(number, (x, y, end_x, end_y))
    if top == bottom:
        return f"M{left} {top}H{right}"
    if left == right:
        return f"M{left} {top}V{bottom}"
    return f"M{left} {top}L{right} {bottom}"


@dataclass(frozen=True)
class Strip:
    """The memory or the activations that the ranks of a timeline hold.

    Attributes
    ----------
    curves : tuple of list of (float, float)
        ``curves[rank]`` is a curve of steps: (time, amount held).
    noun : str
        The unit of the amounts: ``"bytes"`` or ``"units"`` of memory, ``"activations"``
        as the panel counts them, or ``"versions"`` of weights.
    """

    curves: tuple[list[tuple[float, float]], ...]
    noun: str

    def peak(self, rank: int) -> float:
        """Return the peak of a rank."""
        return max((amount for _, amount in self.curves[rank]), default=0.0)

    def peak_label(self, rank: int) -> str:
        """Return the text beside the strip of a rank."""
        if self.noun == "versions":
            return counted(self.peak(rank), "version")
        return f"peak {format_memory(self.peak(rank), self.noun)}"


def strip_of(panel: Panel) -> Strip:
    """Return the bytes that the ranks hold, if the timeline knows them, and otherwise
    their held activations.

    If an R recomputes activations, only a part of them is held before it, which units
    of memory show.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> strip_of(Panel(simulate(schedules.gpipe(1, 1)))).curves
    ([(0.0, 1.0), (1.0, 1.0), (1.0, 1.0), (3.0, 0.0)],)
    """
    timeline = panel.timeline
    ranks = range(timeline.num_ranks)
    if timeline.memory is not None:
        curves = tuple(map(timeline.memory_over_time, ranks))
        if timeline.memory_unit != "units":
            return Strip(curves, "bytes")
        spans = chain(*timeline.spans)
        recomputes = any(span.action.kind is ActionKind.RECOMPUTE for span in spans)
        if recomputes and panel.tells_memory:
            return Strip(curves, "units")
    return Strip(tuple(map(panel.activations_over_time, ranks)), "activations")


def _computes_behind_update(row: Sequence[Span]) -> bool:
    kinds = [span.action.kind for span in row if not span.action.kind.is_of_rank]
    if ActionKind.UPDATE not in kinds:
        return False
    first = kinds.index(ActionKind.UPDATE)
    return any(kind is not ActionKind.UPDATE for kind in kinds[first:])


def versions_of(panel: Panel) -> Strip:
    """Return the versions of weights that the ranks hold; none for a rank without
    updates, or if all steps end in them.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> strip = versions_of(Panel(simulate(schedules.pipedream(4, 8))))
    >>> [strip.peak_label(rank) for rank in range(4)]
    ['4 versions', '3 versions', '2 versions', '1 version']
    """
    timeline = panel.timeline
    curves = list(map(timeline.versions_over_time, range(timeline.num_ranks)))
    if not any(map(_computes_behind_update, timeline.spans)):
        curves = [[] for _ in curves]
    for rank, curve in enumerate(curves):
        if curve:
            first = (timeline.start, curve[0][1])
            curves[rank] = [first, *curve, (timeline.end, 0.0)]
    return Strip(tuple(curves), "versions")


_THIN = 4.0  # pixels: narrower boxes have a thinner outline
_ROUNDED = 8.0  # pixels: wider boxes have rounded corners


class LaneSize(NamedTuple):
    """Heights in pixels: of boxes, of strips, of each thin lane below the boxes, to the
    next lane.

    ``beside`` are the kinds of the thin lanes: gradient all-reduces and copies, which
    are concurrent with the actions.
    """

    box: int
    strip: int
    thin: int
    pitch: int
    beside: tuple[ActionKind, ...]

    @classmethod
    def of(
        cls,
        num_lanes: int,
        num_strips: int,
        beside: Sequence[ActionKind],
        letters: Letters,
    ) -> LaneSize:
        """Return sizes that keep many ranks on a page; they grow with the font size."""
        box = max(12, min(26, 480 // max(1, num_lanes)))
        strip = max(6, min(12, box // 2))
        thin = max(4, box // 4)
        pitch = box + num_strips * (strip + 2) + len(beside) * (thin + 2)
        pitch += max(4, min(10, box // 3))
        box, strip, thin, pitch = map(letters.scaled, (box, strip, thin, pitch))
        return cls(box, strip, thin, pitch, tuple(beside))

    def top_of(self, index: int) -> int:
        """Return the upper edge of a thin lane; strips are below the last one."""
        return self.box + 2 + index * (self.thin + 2)


class Lane:
    """The lane of a rank; its upper edge is at 0.

    Parameters
    ----------
    panel : Panel
    rank : int
    axis : Axis
    size : LaneSize

    Attributes
    ----------
    spans : list of Span
        The computations of nonzero length, overlapped ones side by side. A SEND that
        blocks is an idle slot.
    instants : list of float
        The times of updates that take no time.
    beside : list of Beside
        The transfers that are concurrent with them.
    slots : list of Idle
        The idle times of at least ``NARROW`` pixels; narrower ones are left blank.
    runs : list of list of Span
        The spans: alone if wide enough for a box, otherwise together with others. A run
        has all spans that end within ``NARROW`` pixels of its start, and continues to a
        whole number of rounds, as in the player.
    """

    def __init__(self, panel: Panel, rank: int, axis: Axis, size: LaneSize) -> None:
        self.panel = panel
        self.rank = rank
        self.axis = axis
        self.size = size
        row = panel.timeline.spans[rank]
        idle = panel.timeline.idle[rank]
        self.spans = side_by_side(
            [s for s in row if s.end > s.start and not s.action.kind.is_communication]
        )
        updates = (span for span in row if span.action.kind is ActionKind.UPDATE)
        self.instants = [start for _, start, end in updates if start == end]
        self.beside = panel.beside(rank)
        self.slots = [it for it in idle if not self._is_narrow(it.start, it.end)]
        self.runs: list[list[Span]] = []
        for span in self.spans:
            if self.runs and self._joins(self.runs[-1], span):
                self.runs[-1].append(span)
            else:
                self.runs.append([span])

    def looks(self) -> Iterator[tuple[ActionKind, int]]:
        """Yield the kind and the chunk of each box."""
        actions = [span.action for span in self.spans]
        actions += [each.action for each in self.beside]
        for action in actions:
            yield action.kind, self.panel.chunk_of(self.rank, action)
        if self.instants:
            yield ActionKind.UPDATE, 0

    def x(self, time: float) -> float:
        """Return the x coordinate of a time of the timeline."""
        return self.axis.x(time - self.panel.timeline.start)

    def _is_narrow(self, start: float, end: float) -> bool:
        return (end - start) * self.axis.scale < NARROW

    def _joins(self, run: Sequence[Span], span: Span) -> bool:
        """Return whether a span belongs to the run before it."""
        first = run[0]
        last = run[-1]
        if not all(self._is_narrow(*each[1:]) for each in (last, span)):
            return False
        is_within = (span.end - first.start) * self.axis.scale <= NARROW
        is_near = self._is_narrow(last.end, span.start)
        return is_within or (len(run) % TOGETHER > 0 and is_near)

    # -- boxes -------------------------------------------------------------------------

    def boxes(self) -> Iterator[str]:
        """Yield the boxes of the actions, with tooltips, and the bands of runs."""
        boxes: defaultdict[tuple[ActionKind, int, bool], list[str]] = defaultdict(list)
        bands: defaultdict[ActionKind, list[str]] = defaultdict(list)
        counts: Counter[ActionKind] = Counter()
        for run, following in zip_longest(self.runs, self.runs[1:]):
            if len(run) == 1:
                action, start, end = run[0]
                chunk = self.panel.chunk_of(self.rank, action)
                is_thin = (end - start) * self.axis.scale < _THIN
                boxes[action.kind, chunk, is_thin].append(self._action_box(run[0]))
                continue
            counts.update(span.action.kind for span in run)
            for kind, band in self._bands(run, following):
                bands[kind].append(band)
        if boxes:
            groups = []
            for (kind, chunk, is_thin), drawn in boxes.items():
                outline = ' stroke-width=".4"' * is_thin
                groups.append(group(f"{box_paint(kind, chunk)}{outline}", drawn))
            yield group(paint("box"), groups)
        if frames := "".join(self._frames()):
            yield path(paint("joined"), frames)
        for kind, paths in bands.items():
            actions = counted(counts[kind], "action")
            short = f"{actions} too short to be drawn one by one"
            title = f"{kind}: {short}; heights are shares of the time"
            yield path(box_paint(kind, 0), "".join(paths), title)
        yield from self._updates()

    def _action_box(self, span: Span) -> str:
        """Return the box of an action, with its tooltip."""
        action, start, end = span
        title = describe_action(action)
        times = (start, end)
        if other := self.panel.overlapped.get(action):
            title += f", overlapped with {other.action}"
            times = (other.start, other.end)
        title += f", {self._when(*times)}"
        rounding = 'rx="2"' * (self.x(end) - self.x(start) >= _ROUNDED)
        return self._box(start, end, title, more=rounding)

    def _updates(self) -> Iterator[str]:
        """Yield lines at the updates that take no time."""
        if self.instants:
            marks = (
                path_data("M", self.x(time) - 1, 0, "h", 2, "v", self.size.box, "h-2z")
                for time in self.instants
            )
            yield path(box_paint(ActionKind.UPDATE, 0), "".join(marks))

    def thin(self) -> Iterator[str]:
        """Yield gradient all-reduces and copies in thin lanes: they continue while the
        rank runs its actions.
        """
        for action, start, end, whole in self.beside:
            x = self.x(start)
            y = self.size.top_of(self.size.beside.index(action.kind))
            description = describe_action(action)
            if whole:
                reduction = f"gradient all-reduce of stage {action.stage}"
                ranks = ", ".join(map(str, whole.ranks))
                description = f"{reduction} over ranks {ranks}"
            colours = box_paint(action.kind, self.panel.chunk_of(self.rank, action))
            title = f"{description}, {self._when(start, end)}"
            width = self.x(end) - x
            height = self.size.thin
            yield rect(colours, width, height, x, y, title=title)

    def _frames(self) -> Iterator[str]:
        """Yield frames around two overlapped actions if both have boxes of their
        own.
        """
        alone = (run[0] for run in self.runs if len(run) == 1)
        for first, second in pairwise(alone):
            other = self.panel.overlapped.get(first.action)
            if other and other.action == second.action:
                left = self.x(first.start)
                right = self.x(second.end)
                yield path_data("M", left, 0, "H", right, "V", self.size.box)
                yield path_data("H", left, "z")

    def _bands(
        self, run: Sequence[Span], following: Sequence[Span] | None
    ) -> Iterator[tuple[ActionKind, str]]:
        """Yield the kinds of a run as bands above each other, each with the area of its
        actions' boxes.

        They extend to the start of the next actions, if these are near.
        """
        stop = run[-1].end
        if following and self._is_narrow(stop, following[0].start):
            stop = following[0].start
        left = self.x(run[0].start)
        width = self.x(stop) - left
        times: defaultdict[ActionKind, float] = defaultdict(float)
        for action, start, end in run:
            times[action.kind] += end - start
        top = 0.0
        for kind in (kind for kind in map(ActionKind, KINDS) if kind in times):
            part = self.size.box * times[kind] / (stop - run[0].start)
            band = path_data("M", left, top, "h", width, "v", part, "H", left, "z")
            yield kind, band
            top += part

    def _box(
        self, start: float, end: float, title: str, look: str = "", more: str = ""
    ) -> str:
        """Return a rectangle from one time to another, with a tooltip."""
        x = self.x(start)
        return rect(look, self.x(end) - x, self.size.box, x, more=more, title=title)

    def _when(self, start: float, end: float) -> str:
        unit = self.panel.timeline.unit
        origin = self.panel.timeline.start
        begun = format_number(start - origin, unit)
        return f"{begun} to {format_time(end - origin, unit)}"

    # -- idle time and memory ----------------------------------------------------------

    def idle(self) -> Iterator[str]:
        """Yield the idle slots, hatched by cause."""
        slots = []
        hatch = []
        for each in self.slots:
            title = f"{describe_idle(each)}, {self._when(each.start, each.end)}"
            look = f'class="{each.cause}"'
            slots.append(self._box(each.start, each.end, title, look))
            x = self.x(each.start)
            end = self.x(each.end)
            hatch.append(hatch_path(x, end, self.size.box, each.cause))
        if slots:
            yield group(paint("slot"), slots)
            yield path(paint("hatch"), "".join(hatch))

    def steps(self) -> Iterator[str]:
        """Yield a line at the start of each further training step of the rank."""
        if changes := self.panel.timeline.step_changes:
            lines = (
                path_data("M", self.x(change.begun), -2, "V", self.size.box + 2)
                for change in changes[self.rank]
            )
            yield path(paint("step"), "".join(lines))

    def strip(self, strip: Strip, most: float, index: int = 0) -> Iterator[str]:
        """Yield a strip, whose height stands for ``most``, below ``index`` others."""
        outline = self._strip_path(strip, most)
        right = self.axis.x(self.panel.timeline.makespan)
        ground = path_data("M", self.axis.left, self.size.strip, "H", right)
        parts = [path(paint("grid"), ground)]
        if outline:
            parts.insert(0, filled(outline))
        yield moved(0, self._top_of_strip(index), parts)

    def peak(self, strip: Strip, letters: Letters, index: int = 0) -> str:
        """Return the peak of a strip as text to the right of it."""
        middle = self._top_of_strip(index) + self.size.strip / 2
        baseline = middle + 0.35 * letters.size_of("peak")
        label = strip.peak_label(self.rank)
        return letters.draw("peak", self.axis.right + 8, baseline, label)

    def _top_of_strip(self, index: int) -> int:
        below = self.size.top_of(len(self.size.beside))
        return below + index * (self.size.strip + 2)

    def _strip_path(self, strip: Strip, most: float) -> str:
        """Return the outline of a strip as path data; 0 is at its lower edge."""
        if not most:
            return ""
        # By x coordinate: of two changes at one x, only the later one is visible.
        heights: dict[str, str] = {}
        for time, level in strip.curves[self.rank]:
            height = self.size.strip * (1 - level / most)
            heights[number(self.x(time))] = number(height)
        bottom = drawn = number(self.size.strip)
        steps = []
        for x, y in heights.items():
            if y != drawn:
                steps.append(f"H{x}V{y}")
            drawn = y
        if steps:
            return f"M{number(self.axis.left)} {bottom}{''.join(steps)}V{bottom}"
        return ""
