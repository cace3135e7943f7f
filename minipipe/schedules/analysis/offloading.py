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
    return list(islice(_alone(table), _MOST)) or list(islice(_disordered(table), _MOST))


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
