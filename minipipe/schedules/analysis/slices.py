"""The rules of slices: in which order a row runs those of a sequence, and what a stage keeps for the others.

Causal attention: a slice attends to itself and the slices before it. Their keys and values stay on the stage, so all
slices of a sequence are on one replica. Back, each adds to the gradients of those keys and values, so the last slice
goes first, and the gradients of a slice are complete once all later ones went back::

    row          1F0.0  1F0.1  1F0.2  1B0.2  1B0.1  1B0.0
    keys and values  0     0-1    0-2    0-2    0-1      0     part of a slice's activation, from its F until its B
    their gradients                      0-1    0-1      0     beyond it: from the first B of a later slice
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from minipipe.errors import Problem, ScheduleCode
from minipipe.schedules.action import ActionKind, B, F, I
from minipipe.schedules.action_table import ActionTable

_MOST = 1000  # problems that are listed
_RULES = {
    F: "forwards of a sequence run from its first slice to its last, each of which needs the keys and values before it",
    B: "backwards of a sequence run from its last slice to its first, which gets gradients from all later ones",
}


def slice_problems(table: ActionTable) -> list[Problem]:
    """Return the problems of slices, of a table in which every action occurs once, on a rank of its stage.

    Examples
    --------
    >>> from minipipe import Schedule
    >>> print(slice_problems(Schedule.from_text("0F0.1 0F0.0 0B0.1 0B0.0"))[0].message[:60])
    Rank 0, position 0: 0F0.1 comes before 0F0.0 (position 1); f
    """
    return list(islice(_problems(table), _MOST)) if table.num_slices > 1 else []


def _problems(table: ActionTable) -> Iterator[Problem]:
    n = table.num_slices
    for rank, row in enumerate(table.actions):
        at = {(stage, B if kind is I else kind, k): i for i, (stage, kind, k) in enumerate(row) if kind in (F, B, I)}
        for position, (stage, kind, k) in enumerate(row):
            kind = B if kind is I else kind
            if kind not in _RULES:
                continue
            needed = _slice_before(kind, k, n)
            other = at.get((stage, kind, needed), position)
            where = f"Rank {rank}, position {position}: {row[position]}"
            if other > position:
                sentence = f"{where} comes before {row[other]} (position {other}); {_RULES[kind]}."
                yield Problem(ScheduleCode.SLICE_ORDER, sentence, rank, position)
            home = table.rank_of(stage, k // n * n)
            if home != rank:
                first = row[position]._replace(kind=F, microbatch=table.microbatches[k // n * n])
                sentence = f"{where} is on another replica than {first}, on rank {home}; a slice needs the keys and "
                sentence += "values of those before it."
                yield Problem(ScheduleCode.OTHER_REPLICA, sentence, rank, position)


def _slice_before(kind: ActionKind, k: int, num_slices: int) -> int:
    """Return the slice of a sequence that comes right before another one; itself, where none does."""
    index = k % num_slices
    return k - (index > 0) if kind is F else k + (index < num_slices - 1)
