"""Zero bubble: the backward in two halves. I sends the gradient on at once; W waits for idle time.

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

__all__ = ["interleaved_zb", "zb_h1", "zb_h2"]


def zb_h1(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 1) -> Schedule:
    """Return ZB-H1: 1F1B's memory and a third of its bubble.

    ::

        rank 0: F0 F1    I0 W0 F2 I1 W1 I2 W2
        rank 1:    F0 I0 F1 I1 W0 F2 I2 W1 W2

    For tW <= tF the time is m(tF + tI + tW) + (p - 1)(tF + max(0, tI - tW)), at unit costs 3m + p - 1. Rank r holds
    (p - r) activations, and of r more what W needs.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1. With fewer microbatches than ranks, the first of them.
    chunks_per_rank : int
        At least 1. Rank r holds the neighbouring stages from ``r * chunks_per_rank`` on, and runs them as one.

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
    """Return ZB-H2: no bubble within a rank's own span, for twice the memory of 1F1B.

    ::

        rank 0: F0 F1 F2 I0 W0 I1 W1 I2 W2
        rank 1:    F0 I0 F1 I1 F2 I2 W0 W1 W2

    For tW <= tF and 2 tW <= tF + tI the time is m(tF + tI + tW) + (p - 1) max(tF, tF + tI - 2tW): at unit costs that of
    ZB-H1, but each rank works from its first action to its last without a pause, so that the next step could follow
    at once. Rank r holds 2(p - r) - 1 activations, and of 2r more what W needs.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1. With fewer than 2p - 1 microbatches, the first of them.
    chunks_per_rank : int
        At least 1. Rank r holds the neighbouring stages from ``r * chunks_per_rank`` on, and runs them as one.

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
    """Return interleaved 1F1B with the backward in two halves: ZB-H1 with several chunks on each rank.

    ::

        rank 0 holds stages 0 and 2, rank 1 holds stages 1 and 3
        rank 0: 0F0 0F1 2F0 2F1     2I0 2W0 2I1 2W1 0I0 0W0 0I1 0W1
        rank 1:     1F0 1F1 3F0 3I0 3F1 3I1 3W0 1I0 3W1 1I1 1W0 1W1

    Rank r begins with w = min((v - 1)g + p - 1 - r, m v) forwards, g the size of the largest group of microbatches.
    For m >= p and tW <= tF the time is m(tF + tI + tW) + (p - 1)(tF + max(0, tI - tW)) / v, and the largest idle time
    within a rank's own span is (p - 1)(tF + tI - tW) / v. Rank r holds (v - 1)g + p - r chunks, and of r more what W
    needs.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1.
    chunks_per_rank : int
        At least 1. Chunk j of rank r is stage ``j * num_ranks + r``.
    microbatch_group_size : int, optional
        The least number of microbatches that a chunk takes before the next chunk does; by default, and at least, the
        number of ranks. Groups are as equal as can be.

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
