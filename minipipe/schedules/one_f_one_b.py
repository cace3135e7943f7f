"""1F1B and its interleaved form: after a warm-up, one forward and one backward in turn."""

from __future__ import annotations

from collections.abc import Sequence

from minipipe.errors import Problem, ScheduleError
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.placement import check_counts, looped_placement
from minipipe.schedules.schedule import Schedule

__all__ = ["interleaved_1f1b", "one_f_one_b"]


def one_f_one_b(num_ranks: int, num_microbatches: int) -> Schedule:
    """Return 1F1B: just enough forwards to fill the pipeline, then forward and backward in turn.

    ::

        rank 0: F0 F1       B0 F2    B1 F3    B2    B3
        rank 1:    F0 B0    F1 B1    F2 B2    F3 B3

    Rank r begins with w = min(p - 1 - r, m) forwards. Time (m + p - 1)(tF + tB), the same as GPipe; but rank r holds
    only min(p - r, m) microbatches. It saves memory, not time.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1. One stage on each rank.

    Returns
    -------
    Schedule

    References
    ----------
    Narayanan et al. 2021, "Memory-efficient pipeline-parallel DNN training" (PipeDream-flush), figure 3.
    """
    check_counts(num_ranks, num_microbatches)
    rows = []
    for stage in range(num_ranks):
        forwards = [Action(stage, ActionKind.FORWARD, k) for k in range(num_microbatches)]
        backwards = [Action(stage, ActionKind.BACKWARD, k) for k in range(num_microbatches)]
        warmup = min(num_ranks - 1 - stage, num_microbatches)
        rows.append(_warmup_then_pairs(forwards, backwards, warmup))
    return Schedule("1f1b", looped_placement(num_ranks), num_microbatches, tuple(rows))


def interleaved_1f1b(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 2) -> Schedule:
    """Return interleaved 1F1B: each rank holds several chunks of layers, and takes them in turn.

    ::

        rank 0 holds stages 0 and 2, rank 1 holds stages 1 and 3
        rank 0: 0F0 0F1 2F0 2F1 2B0 …
        rank 1: 1F0 1F1 3F0 3B0 3F1 …

    Each chunk takes 1/v of the time, so the pipeline fills and drains v times faster: for m >= p the time is
    (m v + p - 1)(tF + tB) / v. The price is v times the messages and more activations.

    Parameters
    ----------
    num_ranks, chunks_per_rank : int
        At least 1. Chunk j of rank r is stage ``j * num_ranks + r``.
    num_microbatches : int
        At least 1. They are taken in ``max(1, m // p)`` rounds of equal size, so that number must divide m.

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
    """
    check_counts(num_ranks, num_microbatches, chunks_per_rank)
    group = _round_size(num_ranks, num_microbatches)
    rows = []
    for rank in range(num_ranks):
        stages = range(rank, num_ranks * chunks_per_rank, num_ranks)
        forwards = _order_table(ActionKind.FORWARD, stages, group, num_microbatches)
        backwards = _order_table(ActionKind.BACKWARD, stages[::-1], group, num_microbatches)
        warmup = min(2 * (num_ranks - rank - 1) + (chunks_per_rank - 1) * group, len(forwards))
        rows.append(_warmup_then_pairs(forwards, backwards, warmup))
    placement = looped_placement(num_ranks, chunks_per_rank)
    return Schedule("interleaved-1f1b", placement, num_microbatches, tuple(rows))


def _warmup_then_pairs(forwards: list[Action], backwards: list[Action], warmup: int) -> tuple[Action, ...]:
    """Lay out warm-up (forwards), steady state (forward, backward in turn) and cool-down (backwards)."""
    steady = [action for pair in zip(forwards[warmup:], backwards) for action in pair]
    return tuple(forwards[:warmup] + steady + backwards[len(forwards) - warmup :])


def _order_table(kind: ActionKind, stages: Sequence[int], group: int, num_microbatches: int) -> list[Action]:
    """For each group of microbatches, for each chunk, for each microbatch of the group."""
    return [
        Action(stage, kind, k)
        for start in range(0, num_microbatches, group)
        for stage in stages
        for k in range(start, start + group)
    ]


def _round_size(num_ranks: int, num_microbatches: int) -> int:
    rounds = max(1, num_microbatches // num_ranks)
    if num_microbatches % rounds:
        near = min(_fitting(num_ranks, num_microbatches), key=lambda m: abs(m - num_microbatches))
        message = (
            f"{num_microbatches} microbatches over {num_ranks} ranks make {rounds} rounds of unequal size; "
            f"the nearest number that fits is {near}."
        )
        raise ScheduleError([Problem("parameters", message)])
    return num_microbatches // rounds


def _fitting(num_ranks: int, near: int) -> list[int]:
    candidates = range(max(1, near - num_ranks), near + num_ranks + 1)
    return [m for m in candidates if m % max(1, m // num_ranks) == 0]
