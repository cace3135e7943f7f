"""Zero-bubble schedules: the backward is split, so that I passes the gradient on early
and W fills idle time.

The papers write B for our I.
"""

from __future__ import annotations

from minipipe.core.schedules.action import I
from minipipe.core.schedules.action_table import Schedule
from minipipe.core.schedules.interleaved import warmed_up
from minipipe.core.schedules.placement import check_sizes
from minipipe.core.schedules.straight import straight


def zb_h1(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 1) -> Schedule:
    """Return ZB-H1: 1F1B's memory and a third of its bubble.

    ::

        rank 0: F0 F1    I0 W0 F2 I1 W1 I2 W2
        rank 1:    F0 I0 F1 I1 W0 F2 I2 W1 W2

    For tW <= tF the makespan is m(tF + tI + tW) + (p - 1)(tF + max(0, tI - tW)); at
    unit costs it is 3m + p - 1. At its peak, rank r holds the activations of p - r
    microbatches and, for r more, the part that W needs.

    Parameters and result are as in :func:`one_f_one_b`.

    References
    ----------
    Qi et al. 2023, "Zero bubble pipeline parallelism", figure 3 (top).

    Examples
    --------
    1F1B takes 33 units.

    >>> from minipipe import schedules, simulate
    >>> timeline = simulate(schedules.zb_h1(4, 8))
    >>> timeline.makespan, timeline.peak_activations
    (27.0, (4, 4, 4, 4))
    """
    check_sizes(num_ranks, num_microbatches, chunks_per_rank)
    rows = warmed_up(I, num_ranks, [range(num_microbatches)])
    return straight("zb-h1", rows, num_microbatches, chunks_per_rank)
