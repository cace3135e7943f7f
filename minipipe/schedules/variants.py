"""Variants of 1F1B, of interleaved 1F1B and of ZB-H1: other warm-ups, and a split
backward.

The rows of all of them are `warmed_up` (``core/schedules/interleaved.py``).
"""

from __future__ import annotations

from minipipe.core.schedules.action import B, I
from minipipe.core.schedules.action_table import Schedule
from minipipe.core.schedules.interleaved import looped, microbatch_groups, warmed_up
from minipipe.core.schedules.placement import check_sizes
from minipipe.core.schedules.straight import straight


def eager_1f1b(
    num_ranks: int, num_microbatches: int, chunks_per_rank: int = 1
) -> Schedule:
    """Return eager 1F1B: 1F1B with twice the warm-up, which hides message latency.

    ::

        rank 0: F0 F1 F2 B0 F3 B1    B2    B3
        rank 1:    F0 B0 F1 B1 F2 B2 F3 B3

    The warm-up of rank r is w = min(2(p - 1 - r), m) forwards, and the rank holds the
    activations of at most min(2(p - r) - 1, m) microbatches. Without latency, eager
    1F1B takes as long as 1F1B. With latency, 1F1B waits in every round trip, and eager
    1F1B does not.

    Parameters and result are as in :func:`one_f_one_b`.

    References
    ----------
    Zhuang et al. 2023, "On optimizing the communication of model parallelism"
    (eager-1F1B).

    Examples
    --------
    With a latency, eager 1F1B is faster than 1F1B.

    >>> from minipipe import Costs, schedules, simulate
    >>> costs = Costs(forward=2, backward_input=4, backward_weight=0, latency=1)
    >>> (
    ...     simulate(schedules.eager_1f1b(4, 8), costs).makespan,
    ...     simulate(schedules.one_f_one_b(4, 8), costs).makespan,
    ... )
    (72.0, 82.0)
    """
    check_sizes(num_ranks, num_microbatches, chunks_per_rank)
    rows = warmed_up(B, num_ranks, [range(num_microbatches)], slope=2)
    return straight("eager-1f1b", rows, num_microbatches, chunks_per_rank)


def looped_bfs(
    num_ranks: int, num_microbatches: int, chunks_per_rank: int = 2
) -> Schedule:
    """Return looped BFS: each rank runs all microbatches through one chunk before it
    switches to the next chunk.

    ::

        rank 0: 0F0 0F1 2F0 2F1         2B0 2B1 0B0 0B1
        rank 1:     1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1

    Looped BFS is to interleaved 1F1B as GPipe is to 1F1B. It takes the same time, ((v -
    1) max(m, p) + m + p - 1)(tF + tB) / v, and holds all m v chunks. The parameters of
    each chunk are used in one run, which suits sharded parameters. PyTorch's backwards
    descend through the microbatches. Here they ascend, so that gradients accumulate in
    the order of one process.

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
    check_sizes(num_ranks, num_microbatches, chunks_per_rank)
    groups = [range(num_microbatches)]
    all_forwards = chunks_per_rank * num_microbatches
    rows = warmed_up(B, num_ranks, groups, chunks_per_rank, more=all_forwards)
    return looped("looped-bfs", rows, num_microbatches, chunks_per_rank)


def zb_h2(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 1) -> Schedule:
    """Return ZB-H2: no bubble within a rank's own span, at twice the memory of 1F1B.

    ::

        rank 0: F0 F1 F2 I0 W0 I1 W1 I2 W2
        rank 1:    F0 I0 F1 I1 F2 I2 W0 W1 W2

    For tW <= tF and 2 tW <= tF + tI the makespan is m(tF + tI + tW) + (p - 1) max(tF,
    tF + tI - 2tW). At unit costs that is ZB-H1's, but no rank is idle between its first
    and its last action, so the next training step could follow without a gap. At its
    peak, rank r holds the activations of 2(p - r) - 1 microbatches and, for 2r more,
    the part that W needs.

    Parameters and result are as in :func:`one_f_one_b`.

    References
    ----------
    Qi et al. 2023, "Zero bubble pipeline parallelism", figure 3 (bottom).

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> timeline = simulate(schedules.zb_h2(4, 8))
    >>> (
    ...     timeline.makespan,
    ...     [timeline.idle_within_span(rank) for rank in range(4)],
    ...     timeline.peak_activations,
    ... )
    (27.0, [0.0, 0.0, 0.0, 0.0], (7, 7, 7, 7))
    """
    check_sizes(num_ranks, num_microbatches, chunks_per_rank)
    rows = warmed_up(I, num_ranks, [range(num_microbatches)], slope=2)
    return straight("zb-h2", rows, num_microbatches, chunks_per_rank)


def interleaved_zb(
    num_ranks: int,
    num_microbatches: int,
    chunks_per_rank: int = 2,
    microbatch_group_size: int | None = None,
) -> Schedule:
    """Return interleaved 1F1B with a split backward: ZB-H1 with several chunks on each
    rank.

    ::

        stages 0 and 2 are on rank 0, stages 1 and 3 on rank 1
        rank 0: 0F0 0F1 2F0 2F1     2I0 2W0 2I1 2W1 0I0 0W0 0I1 0W1
        rank 1:     1F0 1F1 3F0 3I0 3F1 3I1 3W0 1I0 3W1 1I1 1W0 1W1

    The warm-up of rank r is w = min((v - 1)g + p - 1 - r, m v) forwards, where g is the
    size of the largest group of microbatches. For m >= p and tW <= tF the makespan is
    m(tF + tI + tW) + (p - 1)(tF + max(0, tI - tW)) / v, and the largest idle time
    within a rank's own span is (p - 1)(tF + tI - tW) / v. At its peak, rank r holds (v
    - 1)g + p - r chunks and, for r more, the part that W needs.

    Parameters and result are as in :func:`interleaved_1f1b`.

    References
    ----------
    Qi et al. 2023, "Zero bubble pipeline parallelism"; PyTorch,
    ``ScheduleInterleavedZeroBubble``.

    Examples
    --------
    A chunk is half of a rank's work. ZB-H1 takes 27 units.

    >>> from minipipe import Costs, schedules, simulate
    >>> simulate(
    ...     schedules.interleaved_zb(4, 8, chunks_per_rank=2), Costs(0.5, 0.5, 0.5)
    ... ).makespan
    25.5
    """
    check_sizes(num_ranks, num_microbatches, chunks_per_rank)
    groups = microbatch_groups(num_ranks, num_microbatches, microbatch_group_size)
    ahead = (chunks_per_rank - 1) * max(map(len, groups))
    rows = warmed_up(I, num_ranks, groups, chunks_per_rank, more=ahead)
    return looped("interleaved-zb", rows, num_microbatches, chunks_per_rank)
