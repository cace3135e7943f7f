"""Busy times, idle times by cause and the critical path of a timeline, as verbs show
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minipipe.io import text_table
from minipipe.schedules import IdleCause, Timeline

_SHOWN = 6  # actions at either end of a critical path


def idle_table(
    timeline: Timeline,
    causes: Sequence[IdleCause],
    write: Callable[[float], str],
    more: Mapping[str, Sequence[str]],
) -> str:
    """Return a table with a row for each rank.

    Parameters
    ----------
    timeline : Timeline
    causes : sequence of IdleCause
        Each has a column.
    write : function
        From a time to its text.
    more : mapping of str to sequence of str
        Further columns by their heads, each with a cell for each rank.
    """
    rows = [["rank", "busy", *causes, *more]]
    for rank, (idle, *cells) in enumerate(zip(timeline.idle_by_cause, *more.values())):
        times = (timeline.busy(rank), *(idle[cause] for cause in causes))
        rows.append([str(rank), *map(write, times), *cells])
    return text_table(rows, right=range(len(rows[0])))


def path_text(timeline: Timeline) -> str:
    """Return the critical path; of a long one, both ends."""
    path = [str(span.action) for _, span in timeline.critical_path]
    if len(path) > 2 * _SHOWN:
        path = [*path[:_SHOWN], "…", *path[-_SHOWN:]]
    return f"critical path: {' '.join(path)}"


def idle_as_data(timeline: Timeline) -> dict[str, Any]:
    """Return the same as data."""
    return {
        "busy": list(map(timeline.busy, range(timeline.num_ranks))),
        "idle": timeline.idle_by_cause,
        "critical_path": [str(span.action) for _, span in timeline.critical_path],
    }
