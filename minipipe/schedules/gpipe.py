"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.placement import check_counts, looped_placement
from minipipe.schedules.schedule import Schedule

__all__ = ["gpipe"]


def gpipe(num_ranks: int, num_microbatches: int) -> Schedule:
    """Return GPipe: every rank does all its forwards, then all its backwards, first in first out.

    ::

        rank 0: F0 F1 F2 F3       B0 B1 B2 B3
        rank 1:    F0 F1 F2 F3 B0 B1 B2 B3

    Time (m + p - 1)(tF + tB); every rank holds all m microbatches.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1. One stage on each rank.

    Returns
    -------
    Schedule

    References
    ----------
    Huang et al. 2019, "GPipe: Efficient training of giant neural networks using pipeline parallelism", figure 2c.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(schedules.gpipe(2, 3))
    # gpipe: 2 ranks, 2 stages, 3 microbatches
    rank 0: 0F0 0F1 0F2 0B0 0B1 0B2
    rank 1: 1F0 1F1 1F2 1B0 1B1 1B2
    """
    check_counts(num_ranks, num_microbatches)
    rows = tuple(
        tuple(
            Action(stage, kind, k)
            for kind in (ActionKind.FORWARD, ActionKind.BACKWARD)
            for k in range(num_microbatches)
        )
        for stage in range(num_ranks)
    )
    return Schedule("gpipe", looped_placement(num_ranks), num_microbatches, rows)
