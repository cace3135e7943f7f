"""A timeline as text: a row for each rank, time from left to right."""

from __future__ import annotations

import math
from collections.abc import Sequence

from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.schedule import Schedule
from minipipe.schedules.simulator import simulate
from minipipe.schedules.timeline import Span, Timeline

__all__ = ["draw_text"]

_IDLE = "·"
_MAX_LINES = 4  # for each rank, before labels give way to letters
# What fills the rest of an action's cells after its label, so that the kinds differ at a glance.
_FILL = {
    ActionKind.FORWARD: "-",
    ActionKind.BACKWARD: "=",
    ActionKind.BACKWARD_INPUT: "=",
    ActionKind.BACKWARD_WEIGHT: "~",
}


def draw_text(drawn: Schedule | Timeline, width: int = 80) -> str:
    """Draw a schedule (F, I and W one unit each) or a timeline as text.

    Parameters
    ----------
    drawn : Schedule or Timeline
    width : int
        The longest row, in columns; at least 40. What is longer goes on below. The caption may be wider.

    Returns
    -------
    str
        A row for each rank, then a caption. An action begins with its label, ``F3`` or, where a rank holds several
        stages, ``2F3``, as far as there is room; ``-`` fills a forward, ``=`` a backward, ``~`` a weight gradient,
        ``+`` a send that blocks, and ``·`` is idle time.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(draw_text(schedules.gpipe(2, 2), width=60))
    rank 0 F0---F1---···············B0========B1========
    rank 1 ·····F0---F1---B0========B1========··········
    gpipe: makespan 9 units, bubble 33.3 %, peak activations by rank 2, 2
    """
    timeline = drawn if isinstance(drawn, Timeline) else simulate(drawn)
    if width < 40:
        raise ValueError(f"width is {width}; expected at least 40 columns.")
    margin = len(f"rank {timeline.num_ranks - 1} ")
    columns, band = _columns(timeline, width - margin)
    rows, are_to_scale = [], True
    for spans in timeline.spans:
        drawn_spans = [span for span in spans if not span.action.kind.is_communication or span.end > span.start]
        places = _places(drawn_spans, columns, timeline)
        rows.append(_row(drawn_spans, places, columns))
        are_to_scale = are_to_scale and _are_near(drawn_spans, places, columns, timeline)
    lines = []
    for start in range(0, columns, band):
        if start:
            lines.append(f"\n{'':{margin}}from {_time(timeline, start / columns)}")
        lines += [f"rank {rank}".ljust(margin) + row[start : start + band] for rank, row in enumerate(rows)]
    notes = [timeline.note, "" if are_to_scale else "not to scale: what is shorter than a column is drawn as one"]
    return "\n".join([*lines, str(timeline), *(f"({note})" for note in notes if note)])


def _columns(timeline: Timeline, room: int) -> tuple[int, int]:
    """Return how many columns the makespan takes, and how many of them stand side by side.

    One line if the labels fit on it; otherwise a few lines, with room for the labels, or at least a column for all but
    the shortest actions. Whole times take a whole number of columns for each unit.
    """
    makespan, shortest, label = timeline.makespan, _shortest(timeline), _label_width(timeline)
    if not makespan:
        return room, room
    if _is_whole(timeline) and makespan <= _MAX_LINES * room:
        units, whole = int(makespan), int(shortest)
        each = min(5, room // units)
        if each * whole < label:
            wishes = (-(-(label + 1) // whole), -(-label // whole), max(1, each))
            each = next((wish for wish in wishes if wish * units <= _MAX_LINES * room), 1)
        return units * each, room if units * each <= room else room // each * each
    for wanted, most_lines in ((label, 1), (1, _MAX_LINES)):
        lines = math.ceil(wanted * (makespan / shortest) / room)
        if lines <= most_lines:
            return room * max(lines, 1), room
    return room * max(_MAX_LINES, math.ceil(max(map(len, timeline.spans)) / room)), room


def _is_whole(timeline: Timeline) -> bool:
    return all(float(time).is_integer() for row in timeline.spans for _, start, end in row for time in (start, end))


def _label_width(timeline: Timeline) -> int:
    """Return the width of the longest label."""
    return max((len(_labels(a, _has_several(row))[0]) for row in timeline.spans for a, _, _ in row[-1:]), default=1)


def _shortest(timeline: Timeline) -> float:
    """Return a time that few actions fall short of: a single odd one must not stretch the drawing."""
    times = sorted(end - start for row in timeline.spans for _, start, end in row if end > start)
    return times[len(times) // 10] if times else 1.0


def _time(timeline: Timeline, fraction: float) -> str:
    time = fraction * timeline.makespan
    return f"{1000 * time:.4g} ms" if timeline.unit == "s" else f"{time:g} {timeline.unit}"


def _has_several(spans: Sequence[Span]) -> bool:
    """Tell whether a rank holds several stages, so that labels must name theirs."""
    return len({span.action.stage for span in spans}) > 1


def _labels(action: Action, has_several: bool) -> list[str]:
    """Return what may name an action, the longest first."""
    letter, short = action.kind.value, f"{action.kind.value}{action.microbatch}"
    return [f"{action.stage}{short}", short, letter] if has_several else [short, letter]


def _row(spans: Sequence[Span], places: Sequence[tuple[int, int]], columns: int) -> str:
    """Draw one rank."""
    cells = [_IDLE] * columns
    has_several = _has_several(spans)
    for (action, _, _), (first, last) in zip(spans, places):
        room = last - first
        label = next((text for text in _labels(action, has_several) if len(text) <= room), "")
        cells[first:last] = label.ljust(room, _FILL.get(action.kind, "+"))
    return "".join(cells)


def _places(spans: Sequence[Span], columns: int, timeline: Timeline) -> list[tuple[int, int]]:
    """Return the columns of each span: from its rounded start to its rounded end, but at least one where there is room.

    What is too short to be seen pushes its neighbours aside, first to the right, then, at the edge, to the left.
    """
    if not timeline.makespan:
        return [(0, 0)] * len(spans)
    places, taken = [], 0
    for _, start, end in spans:
        first = max(taken, round(_column(start, columns, timeline)))
        taken = max(first + 1, round(_column(end, columns, timeline)))
        places.append((first, taken))
    limit = columns
    for i in range(len(places) - 1, -1, -1):
        first, last = places[i]
        last = min(last, limit)
        first = max(0, min(first, last - 1))
        places[i] = (first, max(first, last))
        limit = first
    return places


def _are_near(spans: Sequence[Span], places: Sequence[tuple[int, int]], columns: int, timeline: Timeline) -> bool:
    """Tell whether all is drawn about where and as long as it should be: within a thirtieth of the whole."""
    if not timeline.makespan:
        return True
    tolerance = max(2, columns // 30)
    drift = max(
        (abs(first - _column(span.start, columns, timeline)) for span, (first, _) in zip(spans, places)), default=0
    )
    drawn = sum(last - first for first, last in places)
    length = sum(span.end - span.start for span in spans) / timeline.makespan * columns
    return drift <= tolerance and abs(drawn - length) <= tolerance


def _column(time: float, columns: int, timeline: Timeline) -> float:
    return (time - timeline.start) / timeline.makespan * columns
