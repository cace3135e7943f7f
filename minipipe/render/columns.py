"""Layout of time in columns of characters: the width of a unit, the bands, and the columns of each action."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from minipipe.render.panel import Panel
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.simulation.timeline import Span

_FEW_BANDS, _MANY_BANDS = 4, 6  # with space between labels; before labels shrink to letters
_MOST_COLUMNS = 5  # per unit: more would only stretch the drawing
_LETTERS = {ActionKind.SEND_F: "S", ActionKind.SEND_B: "S", ActionKind.RECV_F: "R", ActionKind.RECV_B: "R"}


class Columns(NamedTuple):
    """The layout of time in columns.

    Attributes
    ----------
    makespan : float
        The longest makespan of the drawing.
    total, band : int
        The columns of the whole makespan, and those of one band. Further bands are drawn below.
    names_stages : bool
        Whether labels name the stage on ranks with several stages. Otherwise lower case marks the second of two stages.
    """

    makespan: float
    total: int
    band: int
    names_stages: bool = True

    def column(self, time: float) -> float:
        """Return the column of a time since the first start."""
        return time / self.makespan * self.total if self.makespan else 0.0

    def time(self, column: int) -> float:
        """Return the time since the first start at which a column begins."""
        return column / self.total * self.makespan


def drawn_spans(spans: Sequence[Span]) -> list[Span]:
    """Return the visible spans of a rank: all but sends and receives without duration."""
    return [span for span in spans if not span.action.kind.is_communication or span.end > span.start]


def labels(panel: Panel, rank: int, action: Action, names_stages: bool) -> list[str]:
    """Return the possible labels of an action, the longest first: ``2F3``, ``F3``, ``F``; ``f3``, ``f`` on chunk 1.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> panel = Panel(simulate(schedules.zb_v(2, 3)))
    >>> labels(panel, 0, Action.parse("3F1"), names_stages=True), labels(panel, 0, Action.parse("3F1"), False)
    (['3F1', 'f1', 'f'], ['f1', 'f'])
    """
    letter = _LETTERS.get(action.kind, action.kind.value)
    whole = [f"{action.kind}{action.microbatch}"] if action.kind in _LETTERS else []
    short = [*whole, f"{letter}{action.microbatch}", letter]
    if not panel.names_stage(rank):
        return short
    if len(panel.stages[rank]) == 2 and panel.chunk_of(rank, action.stage) == 1:
        short = [label.lower() for label in short]
    return [f"{action.stage}{action.kind}{action.microbatch}", *short] if names_stages else short


def fit_columns(panels: Sequence[Panel], room: int) -> Columns:
    """Choose the columns of the longest makespan and of one band.

    If all labels fit into one band, there is one. Otherwise there are a few bands, with the longest labels that fit. If
    none fit, all but the shortest actions get at least one column. Integral times get a whole number of columns per
    unit.
    """
    makespan = max(panel.timeline.makespan for panel in panels)
    if not makespan:
        return Columns(makespan, room, room)
    fitted = (_of_whole_units if _are_whole(panels) else _of_any_times)(panels, makespan, room)
    longest = max(len(drawn_spans(row)) for panel in panels for row in panel.timeline.spans)
    if fitted is None or fitted.total < longest:  # a column for each action, not to scale
        return Columns(makespan, room * max(_FEW_BANDS, math.ceil(longest / room)), room)
    return fitted


def places_of(spans: Sequence[Span], start: float, columns: Columns) -> list[tuple[int, int]]:
    """Return the columns of each span: from its rounded start to its rounded end, but at least one if there is room.

    A span that would be invisible pushes its neighbours to the right or, at the edge, to the left.
    """
    if not columns.makespan or not spans:
        return [(0, 0)] * len(spans)
    places, taken = [], 0
    for _, begin, end in spans:
        first = max(taken, round(columns.column(begin - start)))
        taken = max(first + 1, round(columns.column(end - start)))
        places.append((first, taken))
    limit = min(columns.total, max(math.ceil(columns.column(spans[-1].end - start)), len(spans)))
    for i in range(len(places) - 1, -1, -1):
        first, last = places[i]
        last = min(last, limit)
        first = max(0, min(first, last - 1))
        places[i] = (first, max(first, last))
        limit = first
    return places


def are_near(spans: Sequence[Span], places: Sequence[tuple[int, int]], start: float, columns: Columns) -> bool:
    """Tell whether positions and lengths are nearly to scale: within a thirtieth of the total."""
    tolerance = max(2, columns.total // 30)
    drift = max((abs(first - columns.column(span.start - start)) for span, (first, _) in zip(spans, places)), default=0)
    drawn = sum(last - first for first, last in places)
    length = columns.column(sum(span.end - span.start for span in spans))
    return drift <= tolerance and abs(drawn - length) <= tolerance


def label_width(panels: Sequence[Panel], names_stages: bool) -> int:
    """Return the width of the longest label of a computation, plus a space before a label that begins with a digit."""
    found = (
        len(labels(panel, rank, span.action, names_stages)[0]) + (names_stages and panel.names_stage(rank))
        for panel in panels
        for rank, row in enumerate(panel.timeline.spans)
        for span in row
        if not span.action.kind.is_communication
    )
    return max(found, default=1)


def shortest_time(panels: Sequence[Panel]) -> float:
    """Return the tenth percentile of the durations, so that a single short action does not stretch the drawing."""
    spans = (span for panel in panels for row in panel.timeline.spans for span in row)
    times = sorted(end - start for _, start, end in spans if end > start)
    return times[len(times) // 10] if times else 1.0


def _of_whole_units(panels: Sequence[Panel], makespan: float, room: int) -> Columns | None:
    """Lay out integral times with a whole number of columns per unit, in bands of nearly equal length."""
    if makespan > _MANY_BANDS * room:
        return _of_any_times(panels, makespan, room)
    units, shortest = int(makespan), max(1, int(shortest_time(panels)))
    most = min(_MOST_COLUMNS, room // units)
    names, short = label_width(panels, True), label_width(panels, False)
    if most * shortest >= names:
        return Columns(makespan, units * most, room)
    has_letters = max(len(stages) for panel in panels for stages in panel.stages) <= 2  # whose case tells the stage
    for most_bands, width, names_stages in (
        (_FEW_BANDS, max(names, short + 1), True),
        (_FEW_BANDS if has_letters else 0, short, False),
        (_MANY_BANDS, names, True),
        (_MANY_BANDS, short + 1, False),
        (_MANY_BANDS, short, False),
    ):
        each = math.ceil(width / shortest)
        bands = math.ceil(units / (room // each))
        if bands <= most_bands:
            return Columns(makespan, units * each, _even(units, bands, room // each) * each, names_stages)
    each = max(1, _FEW_BANDS * room // units)
    return Columns(makespan, units * each, room // each * each, names_stages=False)


def _even(units: int, bands: int, most: int) -> int:
    """Return the units of a band: as few as the number of bands allows, in multiples of five if they fit."""
    least = math.ceil(units / bands)
    fives = 5 * math.ceil(least / 5)
    return fives if fives <= most else least


def _of_any_times(panels: Sequence[Panel], makespan: float, room: int) -> Columns | None:
    names, short = label_width(panels, True), label_width(panels, False)
    ratio = makespan / shortest_time(panels)  # may be infinite
    for width, names_stages, most_bands in (
        (names, True, 1),
        (short, False, 1),
        (names, True, _FEW_BANDS),
        (short, False, _MANY_BANDS),
        (1, False, _FEW_BANDS),
    ):
        bands = width * ratio / room
        if bands <= most_bands:
            return Columns(makespan, room * max(1, math.ceil(bands)), room, names_stages)
    return None


def _are_whole(panels: Sequence[Panel]) -> bool:
    return all(
        float(time - panel.timeline.start).is_integer()
        for panel in panels
        for row in panel.timeline.spans
        for _, start, end in row
        for time in (start, end)
    )
