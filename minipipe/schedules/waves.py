"""Waves: in every slot a microbatch moves to the next stage, forth to the last and back to the first.

The rule is Chimera's, for one pipeline or several and for any placement in which their slots never meet.
"""

from __future__ import annotations

from collections.abc import Sequence

from minipipe.errors import misuse
from minipipe.schedules.action import Action, B, F
from minipipe.schedules.action_table import Schedule
from minipipe.schedules.placement import check_sizes, pipelines_placement, v_placement


def in_slots(name: str, pipelines: Sequence[Sequence[int]], unit: int, num_microbatches: int) -> Schedule:
    """Return the schedule of microbatches that move by a stage in each slot.

    Of S stages, microbatch i of a unit has its F on stage s in slot s + 2i, and its B in slot 2S - 1 - s + 2i. The next
    unit begins 2S slots later. Each rank runs its actions in the order of their slots.

    Parameters
    ----------
    name : str
    pipelines : sequence of sequence of int
        For each pipeline, the rank of each stage. No rank may get two actions in one slot.
    unit : int
        The microbatches of a pipeline that follow each other in every other slot.
    num_microbatches : int
        They are divided between the pipelines as equally as can be, the first ones to the first pipeline.
    """
    num_stages, share = len(pipelines[0]), -(-num_microbatches // len(pipelines))
    slots: list[list[tuple[int, Action]]] = [[] for _ in range(1 + max(pipelines[0]))]  # by rank
    for k in range(num_microbatches):
        pipeline, place = divmod(k, share)
        start = 2 * num_stages * (place // unit) + 2 * (place % unit)
        for stage, rank in enumerate(pipelines[pipeline]):
            last = start + 2 * num_stages - 1
            slots[rank] += [(start + stage, Action(stage, F, k)), (last - stage, Action(stage, B, k))]
    rows = tuple(tuple(action for _, action in sorted(own)) for own in slots)
    return Schedule(name, pipelines_placement(pipelines, num_microbatches), num_microbatches, rows)


def hanayo(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 2) -> Schedule:
    """Return Hanayo: stages in waves over the ranks, each wave once down and once up, without a second copy of weights.

    ::

        stages 0 and 3 are on rank 0, stages 1 and 2 on rank 1
        rank 0: 0F0 0F1     3F0 3B0 3F1 3B1 0B0     0B1
        rank 1:     1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1

    Two chunks on each rank are one wave: Chimera's row of rank r on 2p ranks. More chunks are more waves, and smaller
    bubbles. Microbatches follow each other in units of p, by the slots of :func:`in_slots`.

    For m a multiple of p, with w waves, the makespan is m(tF + tB) + (p - 1)/w (min(tF, tB) + (m/p) abs(tB - tF)), and
    rank r holds (2w - 1)p + 1 + r chunks, at most as much as 1F1B's first rank.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1.
    chunks_per_rank : int
        Twice the number of waves.

    Returns
    -------
    Schedule

    Raises
    ------
    ScheduleError
        Code ``parameters``, for a count below 1 or an odd number of chunks.

    Notes
    -----
    The paper makes its first wave of Chimera, by swapping halves of the two pipelines, and draws p microbatches. The
    order of more waves is that of the same slots here, and more microbatches are further units. Its own lists of
    actions were not at hand to compare with.

    References
    ----------
    Liu et al. 2023, "Hanayo: harnessing wave-like pipeline parallelism for enhanced large model training efficiency",
    section 3.

    Examples
    --------
    1F1B takes 21 units of a rank's whole share.

    >>> from minipipe import Costs, schedules, simulate
    >>> [simulate(schedules.hanayo(4, 4, 2 * w), Costs().cut(2 * w)).makespan for w in (1, 2, 4)]
    [18.0, 15.0, 13.5]
    """
    check_sizes(num_ranks, num_microbatches, chunks_per_rank)
    if chunks_per_rank % 2:
        hint = "hanayo has two chunks for each wave, so expected an even number."
        raise misuse(f"chunks_per_rank is {chunks_per_rank}; {hint}")
    waves = v_placement(num_ranks, num_waves=chunks_per_rank // 2)
    return in_slots("hanayo", [waves], num_ranks, num_microbatches)
