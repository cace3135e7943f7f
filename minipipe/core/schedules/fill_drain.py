"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

from minipipe.core.schedules.action import Action, B, F
from minipipe.core.schedules.action_table import Schedule
from minipipe.core.schedules.placement import check_sizes
from minipipe.core.schedules.straight import straight


def gpipe(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 1) -> Schedule:
    """Return GPipe: every rank runs all forwards, then all backwards, both in ascending
    order of microbatches.

    ::

        rank 0: F0 F1 F2 F3       B0 B1 B2 B3
        rank 1:    F0 F1 F2 F3 B0 B1 B2 B3

    The makespan is (m + p - 1)(tF + tB). Every rank holds the activations of all m
    microbatches.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1.
    chunks_per_rank : int
        At least 1. Rank r has that many adjacent stages, from ``r * chunks_per_rank``
        on, and runs them as one.

    Returns
    -------
    Schedule

    References
    ----------
    Huang et al. 2019, "GPipe: Efficient training of giant neural networks using
    pipeline parallelism", figure 2c.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(schedules.gpipe(2, 3))
    # gpipe: 2 ranks, 2 stages, 3 microbatches
    rank 0: 0F0 0F1 0F2 0B0 0B1 0B2
    rank 1: 1F0 1F1 1F2 1B0 1B1 1B2
    """
    check_sizes(num_ranks, num_microbatches, chunks_per_rank)
    cells = [(kind, k) for kind in (F, B) for k in range(num_microbatches)]
    rows = [[Action(rank, *cell) for cell in cells] for rank in range(num_ranks)]
    return straight("gpipe", rows, num_microbatches, chunks_per_rank)
