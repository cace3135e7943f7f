"""The rules of slices: in which order a row runs those of a sequence, and what a stage keeps for the others.

Causal attention: a slice attends to itself and the slices before it. Their keys and values stay on the stage, so all
slices of a sequence are on one replica. Back, each adds to the gradients of those keys and values, so the last slice
goes first, and the gradients of a slice are complete once all later ones went back::

    row          1F0.0  1F0.1  1F0.2  1B0.2  1B0.1  1B0.0
    keys and values  0     0-1    0-2    0-2    0-1      0     part of a slice's activation, from its F until its B
    their gradients                      0-1    0-1      0     beyond it: from the first B of a later slice

On a stage without a backward, keys and values stay until the last slice of the sequence went forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from minipipe.errors import Problem, ScheduleCode
from minipipe.schedules.action import Action, ActionKind, B, F, I
from minipipe.schedules.action_table import ActionTable
from minipipe.schedules.analysis.activations import Level

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


# -- what a rank holds -------------------------------------------------------------------------------------------------


def with_keys_values(
    row: Sequence[Action], levels: Iterable[Level], amounts: Sequence[float], num_slices: int
) -> Iterator[Level]:
    """Yield the memory held while each action of a row runs and after it, with what slices keep for each other.

    Parameters
    ----------
    row : sequence of Action
    levels : iterable of Level
        The memory of its activations alone.
    amounts : sequence of float
        By stage, the memory of the keys and values of one slice.
    num_slices : int

    Examples
    --------
    >>> from minipipe import Schedule
    >>> row = Schedule.from_text("0F0.0 0F0.1 0F0.2 0B0.2 0B0.1 0B0.0").actions[0]
    >>> list(with_keys_values(row, [(0, 0)] * 6, amounts=[1], num_slices=3))
    [(0, 0), (0, 0), (0, 0), (2, 2), (2, 1), (1, 0)]
    """
    go_back = {stage for stage, kind, _ in row if kind is B or kind is I}
    kept: dict[tuple[int, int], float] = {}  # by stage and sequence
    total: float = 0
    for (stage, kind, k), (during, after) in zip(row, levels):
        place, index = (stage, k // num_slices), k % num_slices
        before = now = later = kept.get(place, 0)
        if kind is B or kind is I:  # gradients of all before it, and its own from those behind it
            now, later = (amounts[stage] * n for n in (min(index + 1, num_slices - 1), index))
        elif kind is F and stage not in go_back:
            later = amounts[stage] * (index + 1) if index < num_slices - 1 else 0
        kept[place] = later
        yield max(during + total - before + now, after + total - before + later), after + total - before + later
        total += later - before
