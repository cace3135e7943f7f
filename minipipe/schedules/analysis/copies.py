"""The versions of weights and the accumulators of gradients that a rank holds.

Each version of a stage's weights is the value of an update: it is held while it is the
newest, and while a pair is held whose forward ran with it. The gradients that an update
applies are added in one accumulator, which is held from the first of them until the
update::

    row            0F0  0F1  0B0  0U0  0F2  0B1  0U1  0B2  0U2
    version         0    0        1    1         2         3
    held            0    0    0   0 1  0 1  0 1  1 2  1 2  3
    accumulators              1   1         1    1    1    1
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from minipipe.core.flow import Flow
from minipipe.core.memory import Changes, Level, Pair, pairs_of
from minipipe.core.values import GRADIENTS


class Copies(NamedTuple):
    """The versions of its weights and the accumulators that a rank holds of a stage."""

    stage: int
    versions: int
    sums: int


def applied(
    changes: Changes, rank: int, name: str = "weights"
) -> dict[int, Sequence[int]]:
    """Return, by position of each update of a row, whose gradients it applies.

    Those are all microbatches of its stage in its row up to its own, without those that
    an earlier update applies. With the name "sum", return those that each reduction of
    gradients adds.
    """
    flow = changes.flow
    row = flow.rows[rank]
    result = {}
    for position, change in enumerate(changes.of_row(rank)):
        if name in change.gives:
            stage, kind, _ = row[position]
            result[position] = flow.taken(rank, kind, stage, GRADIENTS)[position]
    return result


def updates_before(flow: Flow, name: str) -> list[list[int]]:
    """Return, by stage and microbatch, the updates before it gives a value of a name.

    With "weights", those before the update that applies its gradients.
    """
    changes = pairs_of(flow)
    counts = [[0] * flow.table.num_microbatches for _ in range(flow.num_stages)]
    rows = flow.rows if "weights" in flow.names else ()
    for rank, row in enumerate(rows):
        so_far: Counter[int] = Counter()
        updates = applied(changes, rank)
        for position, change in enumerate(changes.of_row(rank)):
            stage, _, k = row[position]
            if name in change.gives:
                for microbatch in updates.get(position, (k,)):
                    counts[stage][microbatch] = so_far[stage]
            so_far[stage] += position in updates
    return counts


_NO_COPIES = Copies(-1, 1, 0)  # of an instruction of a rank: it changes none


def copies_held(flow: Flow, rank: int) -> Iterator[tuple[Copies, Copies]]:
    """Yield the copies of the stage of each instruction, while it runs and after it."""
    changes = pairs_of(flow, with_away=True)
    updates = applied(changes, rank)
    row = flow.rows[rank]
    update_of: dict[Pair, int] = {}
    for position, microbatches in updates.items():
        update_of.update(((row[position][0], k), position) for k in microbatches)
    newest: Counter[int] = Counter()  # by stage, as the following
    users: defaultdict[int, Counter[int]] = defaultdict(Counter)  # pairs, by version
    sums: defaultdict[int, set[int | None]] = defaultdict(set)  # updates, by position
    version_of: dict[Pair, int] = {}

    def held(stage: int) -> Copies:
        versions = len(users[stage] | Counter([newest[stage]]))
        return Copies(stage, versions, len(sums[stage]))

    for position, change in enumerate(changes.of_row(rank)):
        stage, kind, k = row[position]
        if kind in flow.rank_kinds:
            yield _NO_COPIES, _NO_COPIES
            continue
        newest[stage] += position in updates
        if change.begins:
            version_of[stage, k] = newest[stage]
            users[stage][newest[stage]] += 1
        if "dw" in change.gives:
            sums[stage].add(update_of.get((stage, k)))
        during = held(stage)
        if change.ends and (stage, k) in version_of:
            users[stage] -= Counter([version_of.pop((stage, k))])
        sums[stage].discard(position)
        yield during, held(stage)


def levels_of_copies(
    flow: Flow, rank: int, weights: Sequence[float]
) -> Iterator[Level]:
    """Yield the memory of all versions of weights, and accumulators, beyond one each.

    Parameters
    ----------
    flow : Flow
    rank : int
    weights : sequence of float
        By stage, the memory of its weights, and so of each of their copies.
    """
    memory: defaultdict[int, float] = defaultdict(float)  # by stage
    for both in copies_held(flow, rank):
        levels = []
        for stage, versions, sums in both:
            memory[stage] = weights[stage] * (versions - 1 + max(0, sums - 1))
            levels.append(sum(memory.values()))
        yield levels[0], levels[1]
