"""Zero-bubble schedules: the backward is split, so that I passes the gradient on early and W fills idle time.

The papers write B for our I.
"""

from __future__ import annotations

from collections import deque

from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.chunks import cut_stages
from minipipe.schedules.interleaved import microbatch_groups, order_table
from minipipe.schedules.placement import check_counts, looped_placement, neighbouring_placement
from minipipe.schedules.row import Row, first_microbatches
from minipipe.schedules.schedule import Schedule


def zb_h1(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 1) -> Schedule:
    """Return ZB-H1: 1F1B's memory and a third of its bubble.

    ::

        rank 0: F0 F1    I0 W0 F2 I1 W1 I2 W2
        rank 1:    F0 I0 F1 I1 W0 F2 I2 W1 W2

    For tW <= tF the makespan is m(tF + tI + tW) + (p - 1)(tF + max(0, tI - tW)); at unit costs it is 3m + p - 1. At its
    peak, rank r holds the activations of p - r microbatches and, for r more, the part that W needs.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1. For fewer microbatches than ranks, the schedule of p is cut.
    chunks_per_rank : int
        At least 1. Rank r has that many adjacent stages, from ``r * chunks_per_rank`` on, and runs them as one.

    Returns
    -------
    Schedule

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
    check_counts(num_ranks, num_microbatches, chunks_per_rank)
    p, m = num_ranks, max(num_microbatches, num_ranks)
    rows = [Row([rank]) for rank in range(p)]
    for r, row in enumerate(rows):
        row.repeat(p - r, "F")
        row.repeat(r, "I F")
        row.repeat(m - p, "I W F")
        row.repeat(p - r, "I W")
        row.repeat(r, "W")
    actions = cut_stages(first_microbatches(rows, num_microbatches), chunks_per_rank)
    return Schedule("zb-h1", neighbouring_placement(p, chunks_per_rank), num_microbatches, actions)


def zb_h2(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 1) -> Schedule:
    """Return ZB-H2: no bubble within a rank's own span, at twice the memory of 1F1B.

    ::

        rank 0: F0 F1 F2 I0 W0 I1 W1 I2 W2
        rank 1:    F0 I0 F1 I1 F2 I2 W0 W1 W2

    For tW <= tF and 2 tW <= tF + tI the makespan is m(tF + tI + tW) + (p - 1) max(tF, tF + tI - 2tW). At unit costs
    that is ZB-H1's, but no rank is idle between its first and its last action, so the next training step could follow
    without a gap. At its peak, rank r holds the activations of 2(p - r) - 1 microbatches and, for 2r more, the part
    that W needs.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1. For fewer than 2p - 1 microbatches, the schedule of 2p - 1 is cut.
    chunks_per_rank : int
        At least 1. Rank r has that many adjacent stages, from ``r * chunks_per_rank`` on, and runs them as one.

    Returns
    -------
    Schedule

    References
    ----------
    Qi et al. 2023, "Zero bubble pipeline parallelism", figure 3 (bottom).

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> timeline = simulate(schedules.zb_h2(4, 8))
    >>> timeline.makespan, [timeline.idle_within_span(rank) for rank in range(4)], timeline.peak_activations
    (27.0, [0.0, 0.0, 0.0, 0.0], (7, 7, 7, 7))
    """
    check_counts(num_ranks, num_microbatches, chunks_per_rank)
    p, m = num_ranks, max(num_microbatches, 2 * num_ranks - 1)
    rows = [Row([rank]) for rank in range(p)]
    for r, row in enumerate(rows):
        ahead = 2 * (p - r) - 1
        row.repeat(ahead, "F")
        row.repeat(2 * r, "I F")
        row.repeat(m - 2 * p + 1, "I W F")
        row.repeat(ahead, "I W")
        row.repeat(2 * r, "W")
    actions = cut_stages(first_microbatches(rows, num_microbatches), chunks_per_rank)
    return Schedule("zb-h2", neighbouring_placement(p, chunks_per_rank), num_microbatches, actions)


def interleaved_zb(
    num_ranks: int, num_microbatches: int, chunks_per_rank: int = 2, microbatch_group_size: int | None = None
) -> Schedule:
    """Return interleaved 1F1B with a split backward: ZB-H1 with several chunks on each rank.

    ::

        stages 0 and 2 are on rank 0, stages 1 and 3 on rank 1
        rank 0: 0F0 0F1 2F0 2F1     2I0 2W0 2I1 2W1 0I0 0W0 0I1 0W1
        rank 1:     1F0 1F1 3F0 3I0 3F1 3I1 3W0 1I0 3W1 1I1 1W0 1W1

    The warm-up of rank r is w = min((v - 1)g + p - 1 - r, m v) forwards, where g is the size of the largest group of
    microbatches. For m >= p and tW <= tF the makespan is m(tF + tI + tW) + (p - 1)(tF + max(0, tI - tW)) / v, and the
    largest idle time within a rank's own span is (p - 1)(tF + tI - tW) / v. At its peak, rank r holds (v - 1)g + p - r
    chunks and, for r more, the part that W needs.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1.
    chunks_per_rank : int
        At least 1. Chunk j of rank r is stage ``j * num_ranks + r``.
    microbatch_group_size : int, optional
        The smallest number of microbatches that a rank runs through one chunk before it switches to the next chunk.
        The number of ranks is the default and the minimum. All groups have nearly the same size.

    Returns
    -------
    Schedule

    References
    ----------
    Qi et al. 2023, "Zero bubble pipeline parallelism"; PyTorch, ``ScheduleInterleavedZeroBubble``.

    Examples
    --------
    A chunk is half of a rank's work. ZB-H1 takes 27 units.

    >>> from minipipe import Costs, schedules, simulate
    >>> simulate(schedules.interleaved_zb(4, 8, chunks_per_rank=2), Costs(0.5, 0.5, 0.5)).makespan
    25.5
    """
    check_counts(num_ranks, num_microbatches, chunks_per_rank)
    groups = microbatch_groups(num_ranks, num_microbatches, microbatch_group_size)
    ahead = (chunks_per_rank - 1) * max(map(len, groups))
    rows = []
    for rank in range(num_ranks):
        stages = range(rank, num_ranks * chunks_per_rank, num_ranks)
        forwards = deque(order_table(ActionKind.FORWARD, stages, groups))
        inputs = order_table(ActionKind.BACKWARD_INPUT, stages[::-1], groups)
        weights = deque(action._replace(kind=ActionKind.BACKWARD_WEIGHT) for action in inputs)
        warmup = min(ahead + num_ranks - 1 - rank, len(forwards))
        row: list[Action] = [forwards.popleft() for _ in range(warmup)]
        for i, action in enumerate(inputs):
            if forwards:
                row.append(forwards.popleft())
            row.append(action)
            if i >= rank:
                row.append(weights.popleft())
        rows.append((*row, *weights))
    placement = looped_placement(num_ranks, chunks_per_rank)
    return Schedule("interleaved-zb", placement, num_microbatches, tuple(rows))
