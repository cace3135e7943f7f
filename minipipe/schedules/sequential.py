"""Microbatches one by one, forwards alone, and a single microbatch."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

from minipipe.core.schedules.action import Action, ActionKind, B, F, I, W
from minipipe.core.schedules.action_table import Schedule
from minipipe.core.schedules.interleaved import microbatch_groups, order_table
from minipipe.core.schedules.placement import check_sizes, home_on, looped_placement
from minipipe.schedules.placements import one_rank_each, stages_by_rank


def sequential(
    num_ranks: int, num_microbatches: int, chunks_per_rank: int = 1
) -> Schedule:
    """Return the sequential schedule: one rank works while all others wait.

    ::

        rank 0: F0       B0 F1       B1
        rank 1:    F0 B0       F1 B1

    The makespan is m p (tF + tB). Only one microbatch is in flight at a time.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1.
    chunks_per_rank : int
        Stages on each rank; stage s is on rank ``s % num_ranks``.

    Returns
    -------
    Schedule

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(schedules.sequential(2, 2))
    # sequential: 2 ranks, 2 stages, 2 microbatches
    rank 0: 0F0 0B0 0F1 0B1
    rank 1: 1F0 1B0 1F1 1B1
    """
    check_sizes(num_ranks, num_microbatches, chunks_per_rank)
    placement = looped_placement(num_ranks, chunks_per_rank)
    rows = _one_by_one(placement, num_ranks, num_microbatches, B)
    return Schedule("sequential", placement, num_microbatches, rows)


def _one_by_one(
    placement: Sequence[int],
    num_ranks: int,
    num_microbatches: int,
    *backwards: ActionKind,
) -> tuple[tuple[Action, ...], ...]:
    """Return the rows of microbatches that go down all stages with F and up again with
    their backwards, in turn.
    """
    rows: list[list[Action]] = [[] for _ in range(num_ranks)]
    for k in range(num_microbatches):
        for stage, rank in enumerate(placement):
            rows[rank].append(Action(stage, F, k))
        for stage, rank in reversed(list(enumerate(placement))):
            rows[rank] += [Action(stage, kind, k) for kind in backwards]
    return tuple(map(tuple, rows))


def forward_only(
    num_ranks: int, num_microbatches: int, chunks_per_rank: int = 1
) -> Schedule:
    """Return the forward-only schedule, for inference: every microbatch passes every
    stage, without a backward.

    ::

        rank 0: F0 F1 F2 F3
        rank 1:    F0 F1 F2 F3

    The makespan is ((v - 1) max(m, p) + m + p - 1) tF / v. An activation is freed at
    the end of its F.

    Parameters
    ----------
    num_ranks, num_microbatches, chunks_per_rank : int
        At least 1. Chunk j of rank r is stage ``j * num_ranks + r``.

    Returns
    -------
    Schedule

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(schedules.forward_only(2, 3))
    # forward-only: 2 ranks, 2 stages, 3 microbatches
    rank 0: 0F0 0F1 0F2
    rank 1: 1F0 1F1 1F2
    """
    check_sizes(num_ranks, num_microbatches, chunks_per_rank)
    return forward_only_over(
        looped_placement(num_ranks, chunks_per_rank), num_microbatches, num_ranks
    )


def forward_only_over(
    placement: Sequence[int], num_microbatches: int, num_ranks: int | None = None
) -> Schedule:
    """Return the forward-only schedule for any placement.

    Parameters
    ----------
    placement : sequence of int
        The rank of each stage, as in :class:`Schedule`.
    num_microbatches : int
        At least 1.
    num_ranks : int, optional
        By default one more than the highest rank of the placement. Give a larger number
        if some ranks have no stage.

    Returns
    -------
    Schedule

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(schedules.forward_only_over((0, 1, 1, 0), num_microbatches=2))
    # forward-only: 2 ranks, 4 stages, 2 microbatches
    rank 0: 0F0 0F1 3F0 3F1
    rank 1: 1F0 1F1 2F0 2F1
    """
    if num_ranks is None:
        ranks = [rank for rank in placement if isinstance(rank, Integral)]
        num_ranks = 1 + max(ranks, default=len(placement))
    return forward_only_through(
        [one_rank_each(placement, num_ranks)], num_microbatches, num_ranks
    )


def forward_only_through(
    pipelines: Sequence[Sequence[int]], num_microbatches: int, num_ranks: int
) -> Schedule:
    """Return the forward-only schedule of several pipelines with the same stages, such
    as replicas.

    Parameters
    ----------
    pipelines : sequence of sequence of int
        By pipeline, the rank of each stage. The first takes the first microbatches, and
        so on, as equally as possible.
    num_microbatches, num_ranks : int
        At least 1. With fewer microbatches than pipelines, the last pipelines take
        none.

    Returns
    -------
    Schedule

    Examples
    --------
    >>> print(forward_only_through([(0, 1), (1, 0)], num_microbatches=3, num_ranks=2))
    # forward-only: 2 ranks, 2 stages, 3 microbatches
    rank 0: 0F0 0F1 1F2
    rank 1: 0F2 1F0 1F1
    """
    check_sizes(num_ranks, num_microbatches)
    used = pipelines[:num_microbatches]
    rows = [list[tuple[int, Action]]() for _ in range(num_ranks)]
    first = 0
    for i, placement in enumerate(used):
        count = -(-(num_microbatches - first) // (len(used) - i))
        groups = microbatch_groups(num_ranks, count)
        for row, stages in zip(rows, stages_by_rank(placement, num_ranks)):
            cells = order_table(F, stages, groups)
            row += [(s + k, Action(s, F, first + k)) for s, _, k in cells]
        first += count
    # a rank may be in several: order its actions by the time at which each, alone,
    # could run them
    if len(used) > 1:
        rows = [sorted(row) for row in rows]
    actions = tuple(tuple(action for _, action in row) for row in rows)
    placements = tuple(map(home_on, zip(*used)))
    return Schedule("forward-only", placements, num_microbatches, actions)


def one_microbatch(placement: Sequence[int], num_ranks: int) -> Schedule:
    """Return the schedule of a single microbatch with a split backward, for any
    placement.

    ::

        rank 0: F0           I0 W0
        rank 1:    F0 I0 W0

    Parameters
    ----------
    placement : sequence of int
        The rank of each stage, as in :class:`Schedule`.
    num_ranks : int

    Returns
    -------
    Schedule

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(schedules.one_microbatch((0, 1, 0), num_ranks=2))
    # one-microbatch: 2 ranks, 3 stages, 1 microbatch
    rank 0: 0F0 2F0 2I0 2W0 0I0 0W0
    rank 1: 1F0 1I0 1W0
    """
    check_sizes(num_ranks, 1)
    placement = one_rank_each(placement, num_ranks)
    return Schedule(
        "one-microbatch", placement, 1, _one_by_one(placement, num_ranks, 1, I, W)
    )
