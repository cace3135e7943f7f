"""The rules of R, O and L within a row: activations that are dropped or offloaded between a forward and its backward.

Only positions matter. Of what a stage has for a microbatch after F, an R computes again what was dropped, and an O and
L take off the device, and back, what was not::

    row        0F0   0O0         0F1         0L0   0R0   0B0    0R1   0B1       a pair of stage and microbatch has them
    0F0 left   inputs    nothing             inputs  all              in this order: F, O, L, R, B or I
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from minipipe.errors import Problem, ScheduleCode
from minipipe.schedules.action import Action, ActionKind, B, F, I, L, O, R
from minipipe.schedules.action_table import ActionTable

_MOST = 1000  # problems of one kind that are listed
_ORDER = {F: 0, O: 1, L: 2, R: 3, B: 4, I: 4}
_NEEDED: dict[ActionKind, tuple[tuple[ActionKind, ...], ...]] = {
    R: ((B, I),),
    O: ((L,), (B, I)),
    L: ((O,), (B, I)),
}  # of each group, one has to be there


def offload_problems(table: ActionTable) -> list[Problem]:
    """Return the problems of R, O and L, of a table in which everything occurs at most once, on its replica.

    Examples
    --------
    >>> from minipipe import Schedule
    >>> print(offload_problems(Schedule.from_text("0F0 0B0 0R0"))[0].message)
    Rank 0, position 1: 0B0 comes before 0R0 (position 2), which it needs.
    """
    if table.kinds.isdisjoint(_NEEDED):
        return []
    finders = (_alone, _disordered, _far_from_slices)
    return next(filter(None, (list(islice(find(table), _MOST)) for find in finders)), [])


def _alone(table: ActionTable) -> Iterator[Problem]:
    """Yield each R without a backward, each O without its L, and each L without its O."""
    for rank, row in enumerate(table.actions):
        present = set(row)
        for position, (stage, kind, k) in enumerate(row):
            for kinds in _NEEDED.get(kind, ()):
                others = [Action(stage, other, k) for other in kinds]
                if present.isdisjoint(others):
                    sentence = f"Rank {rank}, position {position}: {row[position]} comes without"
                    sentence = f"{sentence} {' or '.join(map(str, others))}; expected both, or neither."
                    yield Problem(ScheduleCode.UNPAIRED, sentence, rank, position)
                    break


def _disordered(table: ActionTable) -> Iterator[Problem]:
    """Yield each action that comes before one that it needs."""
    for rank, row in enumerate(table.actions):
        last = {(stage, k): -1 for stage, kind, k in row if kind in _NEEDED}  # by pair, the position of its latest
        for position, (stage, kind, k) in enumerate(row):
            if kind in _ORDER and (stage, k) in last:
                before = last[stage, k]
                if before >= 0 and _ORDER[row[before].kind] > _ORDER[kind]:
                    sentence = f"Rank {rank}, position {before}: {row[before]} comes before {row[position]}"
                    sentence = f"{sentence} (position {position}), which it needs."
                    yield Problem(ScheduleCode.ORDER, sentence, rank, before)
                else:
                    last[stage, k] = position


def _far_from_slices(table: ActionTable) -> Iterator[Problem]:
    """Yield each action of a slice while an earlier one of its sequence is offloaded, with its keys and values."""
    n = table.num_slices
    for rank, row in enumerate(table.actions if n > 1 else ()):
        away: dict[tuple[int, int], int] = {}  # by stage and slice, the position of its O
        for position, (stage, kind, k) in enumerate(row):
            if kind is O:
                away[stage, k] = position
            elif kind is L:
                away.pop((stage, k), None)
            elif kind in _ORDER:
                before = [at for (s, other), at in away.items() if s == stage and k // n * n <= other < k]
                if before:
                    sentence = f"Rank {rank}, position {position}: {row[position]} needs keys and values that"
                    sentence = f"{sentence} {row[before[0]]} (position {before[0]}) offloaded."
                    yield Problem(ScheduleCode.SLICE_ORDER, sentence, rank, position)
