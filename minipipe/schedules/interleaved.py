"""Several chunks of layers on each rank: stage after stage, the microbatches go round the ranks more than once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.one_f_one_b import warmup_then_pairs
from minipipe.schedules.placement import check_counts, looped_placement
from minipipe.schedules.schedule import Schedule

__all__ = ["interleaved_1f1b", "looped_bfs", "microbatch_groups", "order_table"]


def interleaved_1f1b(
    num_ranks: int, num_microbatches: int, chunks_per_rank: int = 2, microbatch_group_size: int | None = None
) -> Schedule:
    """Return interleaved 1F1B: each rank holds several chunks of layers, and takes them in turn.

    ::

        rank 0 holds stages 0 and 2, rank 1 holds stages 1 and 3
        rank 0: 0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1     2B2     2B3 0B2 0B3
        rank 1:     1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3

    Each chunk takes 1/v of the time, so the pipeline fills and drains v times faster: for m >= p the time is
    (m v + p - 1)(tF + tB) / v. The price is v times the messages and more activations: rank r holds
    min(2(p - r - 1) + (v - 1)g + 1, m v) chunks, where g is the size of the largest group of microbatches.

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
    Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters", figure 4.

    Examples
    --------
    A chunk is half of a rank's work, so its F takes half a unit. 1F1B takes 33 units.

    >>> from minipipe import Costs, schedules, simulate
    >>> simulate(schedules.interleaved_1f1b(4, 8, chunks_per_rank=2), Costs(0.5, 0.5, 0.5)).makespan
    28.5
    """
    check_counts(num_ranks, num_microbatches, chunks_per_rank)
    groups = microbatch_groups(num_ranks, num_microbatches, microbatch_group_size)
    ahead = (chunks_per_rank - 1) * max(map(len, groups))
    rows = []
    for rank in range(num_ranks):
        stages = range(rank, num_ranks * chunks_per_rank, num_ranks)
        forwards = order_table(ActionKind.FORWARD, stages, groups)
        backwards = order_table(ActionKind.BACKWARD, stages[::-1], groups)
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
        forwards = order_table(ActionKind.FORWARD, stages, [range(num_microbatches)])
        backwards = order_table(ActionKind.BACKWARD, stages[::-1], [range(num_microbatches)])
        rows.append(tuple(forwards + backwards))
    return Schedule("looped-bfs", looped_placement(num_ranks, chunks_per_rank), num_microbatches, tuple(rows))


def order_table(kind: ActionKind, stages: Sequence[int], groups: Sequence[range]) -> list[Action]:
    """Return, for each group of microbatches, for each chunk, for each microbatch of the group, an action.

    Examples
    --------
    >>> print(*order_table(ActionKind.FORWARD, stages=[0, 2], groups=[range(0, 2), range(2, 4)]))
    0F0 0F1 2F0 2F1 0F2 0F3 2F2 2F3
    """
    return [Action(stage, kind, k) for group in groups for stage in stages for k in group]


def microbatch_groups(num_ranks: int, num_microbatches: int, group_size: int | None = None) -> list[range]:
    """Return the groups in which the microbatches go over the ranks: of the given size or more, as equal as can be.

    Groups as large as the number of ranks are enough: when the last microbatch of a group has left a chunk, the first
    one has come to the next chunk.

    Raises
    ------
    ScheduleError
        Code ``parameters``, for a group size below the number of ranks.

    Examples
    --------
    >>> microbatch_groups(num_ranks=4, num_microbatches=9)
    [range(0, 4), range(4, 9)]
    >>> microbatch_groups(num_ranks=4, num_microbatches=9, group_size=8)
    [range(0, 9)]
    """
    size = num_ranks if group_size is None else group_size
    if not isinstance(size, int) or size < num_ranks:
        message = (
            f"microbatch_group_size is {size!r}; expected a whole number, at least {num_ranks}: with smaller groups "
            f"the {num_ranks} ranks may wait for each other in a cycle."
        )
        raise ScheduleError.of(ScheduleCode.PARAMETERS, message)
    count = max(1, num_microbatches // size)
    starts = [i * num_microbatches // count for i in range(count + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]
