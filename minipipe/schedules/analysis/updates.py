"""The rules within a row: which gradients a REDUCE_GRAD sums and a U applies, and which copies a rank then holds.

Only positions matter. A REDUCE_GRAD or U takes the gradients of all microbatches of its row up to its own that no
earlier action of its kind took. A version of the weights is the number of U before it; it is not written in the rows,
so it cannot contradict them::

    row        1F0   1F1   1B0   1U0   1F2   1B1   1U1   1B2   1U2        1F2 runs with version 1, and 1U2 makes
    version     0     0           1     1           2           3         version 3 of version 2: its staleness is 1
    held        0     0     0    0 1   0 1   0 1   1 2   1 2    3         1F1 left version 0 for 1B1
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from minipipe.schedules.action import Action, ActionKind, B, F, I, U, W
from minipipe.schedules.action_table import ActionTable
from minipipe.schedules.analysis.activations import Footprint, Level, endings, memory_levels


class Taken(NamedTuple):
    """A REDUCE_GRAD or a U, its position, and the microbatches whose gradients it takes, ascending."""

    action: Action
    position: int
    microbatches: list[int]


def taken(row: Sequence[Action], kind: ActionKind) -> list[Taken]:
    """Return the actions of a kind of a row, REDUCE_GRAD or U, with the gradients that each takes.

    Examples
    --------
    >>> from minipipe import Schedule
    >>> row = Schedule.from_text("0F0 0B0 0U0 0F1 0B1 0F2 0B2 0U2").actions[0]
    >>> [(str(action), microbatches) for action, _, microbatches in taken(row, U)]
    [('0U0', [0]), ('0U2', [1, 2])]
    """
    found, own = [], gradients_of(row)
    begun: defaultdict[int, int] = defaultdict(int)
    for position, action in enumerate(row):
        if action.kind is kind:
            stage, _, k = action
            start, stop = begun[stage], bisect_right(own[stage], k)
            found.append(Taken(action, position, own[stage][start:stop]))
            begun[stage] = max(start, stop)
    return found


def gradients_of(row: Iterable[Action]) -> defaultdict[int, list[int]]:
    """Return, by stage, the microbatches whose gradients a row has, ascending."""
    own: defaultdict[int, list[int]] = defaultdict(list)
    for stage, kind, k in row:
        if kind is B or kind is W:
            own[stage].append(k)
    for microbatches in own.values():
        microbatches.sort()
    return own


# -- versions and staleness --------------------------------------------------------------------------------------------

ByMicrobatch = tuple[tuple[int, ...], ...]  # by stage and microbatch


def weight_versions(table: ActionTable) -> ByMicrobatch:
    """Return, by stage and microbatch, the version of the weights with which its F runs: the number of U before it.

    Examples
    --------
    >>> from minipipe import schedules
    >>> weight_versions(schedules.pipedream(3, 5))
    ((0, 0, 0, 1, 2), (0, 0, 1, 2, 3), (0, 1, 2, 3, 4))
    """
    return _counted_updates(table, F, None)


def staleness(table: ActionTable) -> ByMicrobatch:
    """Return, by stage and microbatch, how many updates come between its F and the update that applies its gradient.

    Examples
    --------
    >>> from minipipe import schedules
    >>> staleness(schedules.pipedream(3, 5))
    ((0, 1, 2, 2, 2), (0, 1, 1, 1, 1), (0, 0, 0, 0, 0))
    """
    return _counted_updates(table, U, F)


def drift(table: ActionTable) -> ByMicrobatch:
    """Return, by stage and microbatch, how many updates come between its F and its gradient.

    Without a copy of the weights of its F, its backward runs with weights that are as many updates newer.

    Examples
    --------
    >>> from minipipe import schedules
    >>> drift(schedules.paci(3, 5, microbatches_per_update=1))
    ((0, 1, 2, 2, 2), (0, 1, 1, 1, 1), (0, 0, 0, 0, 0))
    """
    return _counted_updates(table, B, F)


def _counted_updates(table: ActionTable, until: ActionKind, since: ActionKind | None) -> ByMicrobatch:
    """Return the number of U before one event of each microbatch, less those before another."""
    counts = [[0] * table.num_microbatches for _ in range(table.num_stages)]
    for row in table.numbered:
        before: Counter[int] = Counter()  # by stage, the updates so far
        applied = {found.position: found.microbatches for found in taken(row, U)}
        for position, (stage, kind, k) in enumerate(row):
            kind = B if kind is W else kind
            for sign, event in ((1, until), (-1, since)):
                for other in (applied[position] if kind is U else [k]) if kind is event else ():
                    counts[stage][other] += sign * before[stage]
            before[stage] += kind is U
    return tuple(map(tuple, counts))


# -- what a rank holds -------------------------------------------------------------------------------------------------


class Copies(NamedTuple):
    """How many versions of its weights, and how many gradient accumulators, a rank holds for one stage."""

    stage: int
    versions: int
    sums: int


def copies_held(row: Sequence[Action]) -> Iterator[tuple[Copies, Copies]]:
    """Yield, for each action of a row, the copies held for the stage of that action, while it runs and after it.

    A version is held while it is the newest, and from each F that runs with it until the microbatch is released. A
    gradient accumulator is held from its first gradient until its U.

    Examples
    --------
    >>> from minipipe import schedules
    >>> [after.versions for _, after in copies_held(schedules.pipedream(2, 3).actions[0])]
    [1, 1, 1, 2, 2, 1, 2, 1, 1]
    """
    update_of = {(t.action.stage, k): t.action for t in taken(row, U) for k in t.microbatches}
    ends, newest = endings(row), Counter[int]()
    version_of: dict[tuple[int, int], int] = {}
    in_use: defaultdict[int, Counter[int]] = defaultdict(Counter)  # by stage and version, its microbatches
    sums: defaultdict[int, set[Action | None]] = defaultdict(set)

    def held(stage: int) -> Copies:
        return Copies(stage, len(in_use[stage] | Counter([newest[stage]])), len(sums[stage]))

    for stage, kind, k in row:
        if kind is F:
            version_of[stage, k] = newest[stage]
            in_use[stage][newest[stage]] += 1
        if kind is B or kind is W:
            sums[stage].add(update_of.get((stage, k)))
        newest[stage] += kind is U
        during = held(stage)
        if (stage, kind) in ends and (stage, k) in version_of:
            version = version_of.pop((stage, k))
            in_use[stage][version] -= 1
            in_use[stage] += Counter()  # drops versions that no microbatch uses
        if kind is U:
            sums[stage].discard(Action(stage, kind, k))
        yield during, held(stage)


def rank_levels(
    table: ActionTable, footprint: Footprint, weights: Sequence[float], keys_values: Sequence[float] = ()
) -> list[list[Level]]:
    """Return, by rank, the memory held while each of its actions runs and after it: activations, and copies.

    Copies are the versions of a stage's weights beyond one, and its gradient accumulators beyond one: a synchronous
    schedule has none. Each takes the memory of the weights. ``keys_values`` is, by stage, the memory of the keys and
    values of one slice of a sequence.

    Examples
    --------
    >>> from minipipe import schedules
    >>> levels = rank_levels(schedules.pipedream(2, 3), Footprint([1, 1], [1, 1], [0, 0]), weights=[10, 10])
    >>> [after for _, after in levels[0]]
    [1, 2, 1, 11, 12, 1, 11, 0, 0]
    """
    levels = memory_levels(table, footprint)
    if table.num_slices > 1 and any(keys_values):
        rows = zip(table.actions, levels)
        levels = [list(_with_keys_values(row, own, keys_values, table.num_slices)) for row, own in rows]
    if U not in table.kinds or not any(weights):
        return levels
    return [list(_with_copies(row, own, weights)) for row, own in zip(table.actions, levels)]


def _with_copies(row: Sequence[Action], levels: Iterable[Level], weights: Sequence[float]) -> Iterator[Level]:
    others: defaultdict[int, float] = defaultdict(float)  # by stage, the memory of its copies
    for (during, after), held in zip(levels, copies_held(row)):
        stage, amounts = held[0].stage, []
        for copies in held:
            others[stage] = weights[stage] * (copies.versions - 1 + max(0, copies.sums - 1))
            amounts.append(sum(others.values()))
        yield during + amounts[0], after + amounts[1]


def _with_keys_values(
    row: Sequence[Action], levels: Iterable[Level], amounts: Sequence[float], num_slices: int
) -> Iterator[Level]:
    """Yield the memory held while each action of a row runs and after it, with the keys and values of slices.

    On a stage without a backward, keys and values stay until the forward of the last slice of the sequence::

        row          1F0.0  1F0.1  1F0.2  1B0.2  1B0.1  1B0.0
        keys and values  0     0-1    0-2    0-2    0-1      0     part of a slice's activation, from its F until its B
        their gradients                      0-1    0-1      0     beyond it: from the first B of a later slice

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
    >>> list(_with_keys_values(row, [(0, 0)] * 6, amounts=[1], num_slices=3))
    [(0, 0), (0, 0), (0, 0), (2, 2), (2, 1), (1, 0)]
    """
    go_back = {stage for stage, kind, _ in row if kind is B or kind is I}
    kept: dict[tuple[int, int], float] = {}  # by stage and sequence
    total: float = 0
    for (stage, kind, k), (during, after) in zip(row, levels):
        place, index = (stage, k.sequence), k.part
        before = now = later = kept.get(place, 0)
        if kind is B or kind is I:  # the gradients of all earlier slices, and its own from later slices
            now, later = (amounts[stage] * n for n in (min(index + 1, num_slices - 1), index))
        elif kind is F and stage not in go_back:
            later = amounts[stage] * (index + 1) if index < num_slices - 1 else 0
        kept[place] = later
        yield max(during + total - before + now, after + total - before + later), after + total - before + later
        total += later - before
