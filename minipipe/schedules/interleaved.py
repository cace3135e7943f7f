"""Several chunks of layers on each rank: stage after stage, the microbatches go round the ranks more than once."""

from __future__ import annotations

from collections.abc import Sequence

from minipipe.errors import Problem, ScheduleError
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.one_f_one_b import warmup_then_pairs
from minipipe.schedules.placement import check_counts, looped_placement
from minipipe.schedules.schedule import Schedule

__all__ = ["equal_rounds", "interleaved_1f1b", "looped_bfs", "order_table"]


def interleaved_1f1b(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 2) -> Schedule:
    """Return interleaved 1F1B: each rank holds several chunks of layers, and takes them in turn.

    ::

        rank 0 holds stages 0 and 2, rank 1 holds stages 1 and 3
        rank 0: 0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1     2B2     2B3 0B2 0B3
        rank 1:     1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3

    Each chunk takes 1/v of the time, so the pipeline fills and drains v times faster: for m >= p the time is
    (m v + p - 1)(tF + tB) / v. The price is v times the messages and more activations: rank r holds
    min(2(p - r - 1) + (v - 1)g + 1, m v) chunks, where g is the size of a round.

    Parameters
    ----------
    num_ranks : int
        At least 1.
    num_microbatches : int
        At least 1. They are taken in ``max(1, m // p)`` rounds of equal size, so that number must divide m.
    chunks_per_rank : int
        At least 1. Chunk j of rank r is stage ``j * num_ranks + r``.

    Returns
    -------
    Schedule

    Raises
    ------
    ScheduleError
        Code ``parameters``, when the rounds do not divide the microbatches.

    References
    ----------
    Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters", figure 4.

    Examples
    --------
    A chunk is half of a rank's work, so its F takes half a unit. 1F1B takes 33 units.

    >>> from minipipe import Costs, schedules, simulate
    >>> simulate(schedules.interleaved_1f1b(4, 8, chunks_per_rank=2), Costs(0.5, 0.5, 0.5)).makespan
    28.5
    """
    check_counts(num_ranks, num_microbatches, chunks_per_rank)
    rounds = equal_rounds(num_ranks, num_microbatches)
    rows = []
    for rank in range(num_ranks):
        stages = range(rank, num_ranks * chunks_per_rank, num_ranks)
        forwards = order_table(ActionKind.FORWARD, stages, num_microbatches, rounds)
        backwards = order_table(ActionKind.BACKWARD, stages[::-1], num_microbatches, rounds)
        ahead = (chunks_per_rank - 1) * (num_microbatches // rounds)
        warmup = min(2 * (num_ranks - rank - 1) + ahead, len(forwards))
        rows.append(warmup_then_pairs(forwards, backwards, warmup))
    placement = looped_placement(num_ranks, chunks_per_rank)
    return Schedule("interleaved-1f1b", placement, num_microbatches, tuple(rows))


def looped_bfs(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 2) -> Schedule:
    """Return looped BFS: all microbatches through the first chunks, then all through the next; then back.

    ::

        rank 0: 0F0 0F1 2F0 2F1         2B0 2B1 0B0 0B1
        rank 1:     1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1

    It is to interleaved 1F1B what GPipe is to 1F1B: the same time, ((v - 1) max(m, p) + m + p - 1)(tF + tB) / v, all
    m v chunks held, and each chunk's parameters are used in one go, which suits sharded parameters. PyTorch's backwards
    descend; here microbatches ascend, so that gradients add as in one process.

    Parameters
    ----------
    num_ranks, num_microbatches, chunks_per_rank : int
        At least 1. Chunk j of rank r is stage ``j * num_ranks + r``.

    Returns
    -------
    Schedule

    References
    ----------
    Lamy-Poirier 2023, "Breadth-first pipeline parallelism", figure 4d.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(schedules.looped_bfs(2, 2))
    # looped-bfs: 2 ranks, 4 stages, 2 microbatches
    rank 0: 0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
    rank 1: 1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1
    """
    check_counts(num_ranks, num_microbatches, chunks_per_rank)
    rows = []
    for rank in range(num_ranks):
        stages = range(rank, num_ranks * chunks_per_rank, num_ranks)
        forwards = order_table(ActionKind.FORWARD, stages, num_microbatches, rounds=1)
        backwards = order_table(ActionKind.BACKWARD, stages[::-1], num_microbatches, rounds=1)
        rows.append(tuple(forwards + backwards))
    return Schedule("looped-bfs", looped_placement(num_ranks, chunks_per_rank), num_microbatches, tuple(rows))


def order_table(kind: ActionKind, stages: Sequence[int], num_microbatches: int, rounds: int) -> list[Action]:
    """For each round of microbatches, for each chunk, for each microbatch of the round.

    Examples
    --------
    >>> print(*order_table(ActionKind.FORWARD, stages=[0, 2], num_microbatches=4, rounds=2))
    0F0 0F1 2F0 2F1 0F2 0F3 2F2 2F3
    """
    starts = [i * num_microbatches // rounds for i in range(rounds + 1)]
    return [
        Action(stage, kind, k)
        for start, stop in zip(starts, starts[1:])
        for stage in stages
        for k in range(start, stop)
    ]


def equal_rounds(num_ranks: int, num_microbatches: int) -> int:
    """Return in how many rounds the microbatches go over the ranks: ``max(1, m // p)``, all of one size.

    Raises
    ------
    ScheduleError
        Code ``parameters``, with the nearest number of microbatches that can be divided so.

    Examples
    --------
    >>> equal_rounds(num_ranks=3, num_microbatches=15)
    5
    """
    rounds = max(1, num_microbatches // num_ranks)
    if num_microbatches % rounds:
        near = min(_fitting(num_ranks, num_microbatches), key=lambda m: abs(m - num_microbatches))
        message = (
            f"{num_microbatches} microbatches over {num_ranks} ranks make {rounds} rounds of unequal size; "
            f"the nearest number that fits is {near}."
        )
        raise ScheduleError([Problem("parameters", message)])
    return rounds


def _fitting(num_ranks: int, near: int) -> list[int]:
    candidates = range(max(1, near - num_ranks), near + num_ranks + 1)
    return [m for m in candidates if m % max(1, m // num_ranks) == 0]
