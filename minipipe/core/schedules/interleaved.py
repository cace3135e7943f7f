"""Interleaved 1F1B, whose microbatches pass each rank more than once, chunk by chunk."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from minipipe.core.schedules.action import Action, ActionKind, B, F, I, Rows, W
from minipipe.core.schedules.action_table import Schedule
from minipipe.core.schedules.one_f_one_b import warmup_then_pairs
from minipipe.core.schedules.placement import check_sizes, looped_placement
from minipipe.core.specs import SCHEDULE_COUNT


def interleaved_1f1b(
    num_ranks: int,
    num_microbatches: int,
    chunks_per_rank: int = 2,
    microbatch_group_size: int | None = None,
) -> Schedule:
    """Return interleaved 1F1B: each rank has several chunks of layers and switches
    between them.

    ::

        stages 0 and 2 are on rank 0, stages 1 and 3 on rank 1
        rank 0: 0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1     2B2     2B3 0B2 0B3
        rank 1:     1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3

    Each of the v chunks takes 1/v of a rank's time, so warm-up and cool-down are v
    times shorter. For m >= p the makespan is (m v + p - 1)(tF + tB) / v. The price is v
    times as many messages and more activation memory: rank r holds up to min(2(p - r -
    1) + (v - 1)g + 1, m v) chunks, where g is the size of the largest group of
    microbatches.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1.
    chunks_per_rank : int
        At least 1. Chunk j of rank r is stage ``j * num_ranks + r``.
    microbatch_group_size : int, optional
        The smallest number of microbatches that a rank runs through one chunk before it
        switches to the next chunk. The number of ranks is the default and the minimum.
        All groups have nearly the same size.

    Returns
    -------
    Schedule

    References
    ----------
    Narayanan et al. 2021, "Efficient large-scale language model training on GPU
    clusters", figure 4.

    Examples
    --------
    A chunk is half of a rank's work, so its F takes half a unit. 1F1B takes 33 units.

    >>> from minipipe import Costs, schedules, simulate
    >>> simulate(
    ...     schedules.interleaved_1f1b(4, 8, chunks_per_rank=2), Costs(0.5, 0.5, 0.5)
    ... ).makespan
    28.5
    """
    check_sizes(num_ranks, num_microbatches, chunks_per_rank)
    groups = microbatch_groups(num_ranks, num_microbatches, microbatch_group_size)
    ahead = (chunks_per_rank - 1) * max(map(len, groups))
    rows = warmed_up(B, num_ranks, groups, chunks_per_rank, slope=2, more=ahead)
    return looped("interleaved-1f1b", rows, num_microbatches, chunks_per_rank)


def looped(
    name: str, rows: Rows, num_microbatches: int, chunks_per_rank: int
) -> Schedule:
    """Return the schedule of rows of looped chunks (:func:`warmed_up`)."""
    placement = looped_placement(len(rows), chunks_per_rank)
    return Schedule(name, placement, num_microbatches, tuple(map(tuple, rows)))


def warmed_up(
    backward: ActionKind,
    num_ranks: int,
    groups: Sequence[range],
    chunks_per_rank: int = 1,
    slope: int = 1,
    more: int = 0,
) -> tuple[tuple[Action, ...], ...]:
    """Return rows of looped chunks: on each rank a warm-up, then forwards and backwards
    in alternation.

    Both are in the order of :func:`order_table`, backwards from the last chunk on. The
    W of an I on rank r comes after the I that is ``slope * r`` later, or at the end: it
    fills the time in which the rank would wait for a gradient.

    Parameters
    ----------
    backward : ActionKind
        B or I.
    num_ranks : int
    groups : sequence of range
        Groups of microbatches.
    chunks_per_rank : int
    slope : int
        How many more forwards the warm-up of a rank has than the warm-up of the next
        rank.
    more : int
        The forwards in the warm-up of the last rank.

    Examples
    --------
    >>> for row in warmed_up(I, 2, [range(3)]):
    ...     print(*row)
    0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2
    1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2
    """
    rows = []
    for rank in range(num_ranks):
        stages = range(rank, num_ranks * chunks_per_rank, num_ranks)
        forwards = order_table(F, stages, groups)
        backwards = order_table(backward, stages[::-1], groups)
        warmup = slope * (num_ranks - 1 - rank) + more
        row = warmup_then_pairs(forwards, backwards, warmup)
        rows.append(tuple(_with_weights(row, slope * rank)))
    return tuple(rows)


def _with_weights(row: Iterable[Action], delay: int) -> Iterator[Action]:
    """Yield a row with the W of each I, behind the I that is ``delay`` later, or at the
    end.
    """
    pending: deque[Action] = deque()
    for action in row:
        yield action
        if action.kind is I:
            pending.append(action._replace(kind=W))
            if len(pending) > delay:
                yield pending.popleft()
    yield from pending


def order_table(
    kind: ActionKind, stages: Sequence[int], groups: Sequence[range]
) -> list[Action]:
    """Return the actions of one kind: group by group, within a group stage by stage,
    within a stage by microbatch.

    Examples
    --------
    >>> print(*order_table(F, stages=[0, 2], groups=[range(0, 2), range(2, 4)]))
    0F0 0F1 2F0 2F1 0F2 0F3 2F2 2F3
    """
    pairs = [(stage, k) for group in groups for stage in stages for k in group]
    return [Action(stage, kind, k) for stage, k in pairs]


def microbatch_groups(
    num_ranks: int, num_microbatches: int, group_size: int | None = None
) -> list[range]:
    """Divide the microbatches into groups of nearly equal size, none smaller than the
    given size.

    Groups of ``num_ranks`` microbatches are large enough: when the last microbatch of a
    group leaves a chunk, the first one has reached the next chunk of the same rank.

    Examples
    --------
    >>> microbatch_groups(num_ranks=4, num_microbatches=9)
    [range(0, 4), range(4, 9)]
    >>> microbatch_groups(num_ranks=4, num_microbatches=9, group_size=8)
    [range(0, 9)]
    """
    if group_size is None:
        group_size = num_ranks
    advice = (
        f"With smaller groups the {num_ranks} ranks may wait for each other in a cycle."
    )
    sizes = SCHEDULE_COUNT._replace(minimum=num_ranks, advice=advice)
    size = sizes.check("microbatch_group_size", group_size)
    count = max(1, num_microbatches // size)
    starts = [i * num_microbatches // count for i in range(count + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]
