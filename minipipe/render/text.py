"""A timeline as text: a row for each rank, time from left to right."""

from __future__ import annotations

from minipipe.schedules.action import ActionKind
from minipipe.schedules.schedule import Schedule
from minipipe.schedules.simulator import simulate
from minipipe.schedules.timeline import Span, Timeline

__all__ = ["draw_text"]

_IDLE = "·"
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
        The longest row, in columns; at least 40. The caption may be longer.


    Returns
    -------
    str
        A row for each rank, then a caption. An action begins with its label, ``F3`` or, where a rank holds several
        stages, ``2F3``, as far as there is room; ``-`` fills a forward, ``=`` a backward, ``~`` a weight gradient, and
        ``·`` is idle time.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(draw_text(schedules.gpipe(2, 2), width=60))
    rank 0 F0---F1---···············B0========B1========
    rank 1 ·····F0---F1---B0========B1========··········
    gpipe: makespan 9 units, bubble 33.3 %, peak activations by rank 2, 2
    """
    timeline = simulate(drawn) if isinstance(drawn, Schedule) else drawn
    if width < 40:
        raise ValueError(f"width is {width}; expected at least 40 columns.")
    margin = len(f"rank {timeline.num_ranks - 1} ")
    columns = _columns(timeline, width - margin)
    rows = [
        f"rank {rank}".ljust(margin) + _row(spans, columns, timeline.makespan)
        for rank, spans in enumerate(timeline.spans)
    ]
    notes = [f"({timeline.note})"] if timeline.note else []
    return "\n".join([*rows, str(timeline), *notes])


def _columns(timeline: Timeline, room: int) -> int:
    """Return how many columns the makespan takes: all, or a whole number for each unit where times are whole."""
    end = timeline.makespan
    if timeline.unit == "units" and end and end == int(end) and end <= room:
        return int(end) * min(5, room // int(end))
    return room


def _row(spans: tuple[Span, ...], columns: int, makespan: float) -> str:
    """Draw one rank."""
    cells = [_IDLE] * columns
    several = len({span.action.stage for span in spans}) > 1
    for (action, _, _), (first, last) in zip(spans, _places(spans, columns, makespan)):
        room = last - first
        letter, short = action.kind.value, f"{action.kind.value}{action.microbatch}"
        labels = [f"{action.stage}{short}", short, letter] if several else [short, letter]
        label = next((text for text in labels if len(text) <= room), "")
        cells[first:last] = label.ljust(room, _FILL[action.kind])
    return "".join(cells)


def _places(spans: tuple[Span, ...], columns: int, makespan: float) -> list[tuple[int, int]]:
    """Return the columns of each span: from its rounded start to its rounded end, but at least one where there is room.

    What is too short to be seen pushes its neighbours aside, first to the right, then, at the edge, to the left.
    """
    if not makespan:
        return [(0, 0)] * len(spans)
    places, taken = [], 0
    for _, start, end in spans:
        first = max(taken, round(start / makespan * columns))
        taken = max(first + 1, round(end / makespan * columns))
        places.append((first, taken))
    limit = columns
    for i in range(len(places) - 1, -1, -1):
        first, last = places[i]
        last = min(last, limit)
        first = max(0, min(first, last - 1))
        places[i] = (first, max(first, last))
        limit = first
    return places
