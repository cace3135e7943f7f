"""One microbatch at a time through every stage: the worst case, and the easiest to follow."""

from __future__ import annotations

from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.placement import check_counts, looped_placement
from minipipe.schedules.schedule import Schedule

__all__ = ["forward_only", "sequential"]


def sequential(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 1) -> Schedule:
    """Return the schedule in which one rank works and the others wait.

    ::

        rank 0: F0     B0 F1     B1
        rank 1:   F0 B0     F1 B1

    Time m p (tF + tB); one microbatch is in flight.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1.
    chunks_per_rank : int
        Stages on each rank; stage s is on rank ``s % num_ranks``.

    Returns
    -------
    Schedule
    """
    check_counts(num_ranks, num_microbatches, chunks_per_rank)
    placement = looped_placement(num_ranks, chunks_per_rank)
    rows: list[list[Action]] = [[] for _ in range(num_ranks)]
    for microbatch in range(num_microbatches):
        for stage, rank in enumerate(placement):
            rows[rank].append(Action(stage, ActionKind.FORWARD, microbatch))
        for stage, rank in reversed(list(enumerate(placement))):
            rows[rank].append(Action(stage, ActionKind.BACKWARD, microbatch))
    return Schedule("sequential", placement, num_microbatches, tuple(map(tuple, rows)))


def forward_only(placement: tuple[int, ...], num_microbatches: int, num_ranks: int | None = None) -> Schedule:
    """Return the schedule of a prediction: every microbatch forward through every stage, nothing back.

    Parameters
    ----------
    placement : tuple of int
        The rank of each stage, as in :class:`Schedule`; any placement will do.
    num_microbatches : int
        At least 1.
    num_ranks : int, optional
        By default as many as the placement names; more, if some hold no stage.

    Returns
    -------
    Schedule
        On each rank, chunk after chunk, microbatches ascending.
    """
    num_ranks = max(placement, default=0) + 1 if num_ranks is None else num_ranks
    check_counts(num_ranks, num_microbatches)
    rows = tuple(
        tuple(
            Action(stage, ActionKind.FORWARD, k)
            for stage, owner in enumerate(placement)
            if owner == rank
            for k in range(num_microbatches)
        )
        for rank in range(num_ranks)
    )
    return Schedule("forward-only", placement, num_microbatches, rows)
