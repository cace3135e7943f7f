"""Schedules in slots, in each of which a microbatch moves by a stage: waves, and two
pipelines in opposite directions.

A wave goes to the last stage and back to the first. Chimera's rule builds waves for one
or several pipelines, and for any placement in which no two pipelines need the same slot
of a rank.

In a bidirectional schedule, two pipelines have the same weights; one goes down the
ranks, the other up. Every stage has two replicas, on the ranks r and p - 1 - r, so that
each rank holds twice the weights. The first half of the microbatches goes down the
ranks, the other half up. If their number is odd, one more goes down; with a single
microbatch there are no replicas.
"""

from __future__ import annotations

from collections.abc import Sequence

from minipipe.core.schedules.action import Action, B, F
from minipipe.core.schedules.action_table import Schedule
from minipipe.core.schedules.placement import check_sizes
from minipipe.errors import misuse
from minipipe.schedules.placements import (
    check_two_chunks,
    pipelines_placement,
    v_placement,
)
from minipipe.schedules.v_shaped import dualpipe_v


def in_slots(
    name: str, pipelines: Sequence[Sequence[int]], unit: int, num_microbatches: int
) -> Schedule:
    """Return the schedule of microbatches that move by a stage in each slot.

    With S stages, microbatch i of a unit has its F on stage s in slot s + 2i, and its B
    in slot 2S - 1 - s + 2i. The next unit begins 2S slots later. Each rank runs its
    actions in the order of their slots.

    Parameters
    ----------
    name : str
    pipelines : sequence of sequence of int
        For each pipeline, the rank of each stage. No rank may get two actions in one
        slot.
    unit : int
        The microbatches of a pipeline that follow each other in every other slot.
    num_microbatches : int
        They are divided between the pipelines as equally as possible; the first
        pipeline gets the first ones.
    """
    num_stages = len(pipelines[0])
    per_pipeline = -(-num_microbatches // len(pipelines))
    # by rank
    slots: list[list[tuple[int, Action]]] = [[] for _ in range(1 + max(pipelines[0]))]
    for k in range(num_microbatches):
        pipeline, place = divmod(k, per_pipeline)
        start = 2 * num_stages * (place // unit) + 2 * (place % unit)
        for stage, rank in enumerate(pipelines[pipeline]):
            last = start + 2 * num_stages - 1
            slots[rank].append((start + stage, Action(stage, F, k)))
            slots[rank].append((last - stage, Action(stage, B, k)))
    rows = tuple(tuple(action for _, action in sorted(row)) for row in slots)
    placement = pipelines_placement(pipelines, num_microbatches)
    return Schedule(name, placement, num_microbatches, rows)


def hanayo(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 2) -> Schedule:
    """Return Hanayo: stages in waves over the ranks, each wave once down and once up,
    without a second copy of weights.

    ::

        stages 0 and 3 are on rank 0, stages 1 and 2 on rank 1
        rank 0: 0F0 0F1     3F0 3B0 3F1 3B1 0B0     0B1
        rank 1:     1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1

    Two chunks on each rank are one wave: Chimera's row of rank r on 2p ranks. More
    chunks are more waves, and smaller bubbles. Microbatches follow each other in units
    of p, by the slots of :func:`in_slots`.

    For m a multiple of p, with w waves, the makespan is m(tF + tB) + (p - 1)/w (min(tF,
    tB) + (m/p) abs(tB - tF)), and rank r holds (2w - 1)p + 1 + r chunks, at most as
    much as 1F1B's first rank.

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
        Code ``value``, for a count below 1 or an odd number of chunks.

    Notes
    -----
    The paper derives its first wave from Chimera, by swapping halves of the two
    pipelines, and draws p microbatches. Here, further waves follow the same slots, and
    further microbatches form further units. The result was not compared with the
    authors' lists of actions.

    References
    ----------
    Liu et al. 2023, "Hanayo: harnessing wave-like pipeline parallelism for enhanced
    large model training efficiency", section 3.

    Examples
    --------
    1F1B takes 21 units; a unit is the time of an action over all chunks of a rank.

    >>> from minipipe import Costs, schedules, simulate
    >>> [
    ...     simulate(schedules.hanayo(4, 4, 2 * w), Costs().cut(2 * w)).makespan
    ...     for w in (1, 2, 4)
    ... ]
    [18.0, 15.0, 13.5]
    """
    check_sizes(num_ranks, num_microbatches, chunks_per_rank)
    if chunks_per_rank % 2:
        hint = "hanayo has two chunks for each wave, so expected an even number."
        raise misuse(f"chunks_per_rank is {chunks_per_rank}; {hint}")
    waves = v_placement(num_ranks, num_waves=chunks_per_rank // 2)
    return in_slots("hanayo", [waves], num_ranks, num_microbatches)


def chimera(num_ranks: int, num_microbatches: int) -> Schedule:
    """Return Chimera: two 1F1B pipelines in opposite directions, each in bubbles of the
    other.

    ::

        stage s is on ranks s and 3 - s; microbatches 0 and 1 go down the ranks, 2 and 3 up
        rank 0: 0F0 0F1     3F2 3B2 3F3 3B3 0B0     0B1
        rank 1:     1F0 2F2 1F1 2F3 2B2 1B0 2B3 1B1
        rank 2:     1F2 2F0 1F3 2F1 2B0 1B2 2B1 1B3
        rank 3: 0F2 0F3     3F0 3B0 3F1 3B1 0B2     0B3

    Each direction runs its microbatches in units of p/2. On stage s, microbatch i of a
    unit has its F in slot s + 2i and its B in slot 2p - 1 - s + 2i; the next unit
    begins 2p slots later. The two directions never need a slot of one rank at once.

    For m a multiple of p, the makespan is m(tF + tB) + (p - 2)(min(tF, tB) + (m/p)
    abs(tB - tF)); if F and B take one unit each, it is 2m + p - 2. Rank r holds the
    activations of p/2 + 1 + min(r, p - 1 - r) microbatches, and the weights of two
    stages.

    Parameters
    ----------
    num_ranks : int
        An even number.
    num_microbatches : int
        At least 1. A unit that is left over is divided between the directions as evenly
        as possible.

    Returns
    -------
    Schedule

    Raises
    ------
    ScheduleError
        Code ``value``, for a count below 1 or an odd number of ranks.

    Notes
    -----
    If a backward takes longer than a forward, units leave bubbles between them. The
    paper fills them with "forward doubling" or "backward halving", which are not
    implemented; neither are more than two pipelines.

    References
    ----------
    Li and Hoefler 2021, "Chimera: efficiently training large-scale neural networks with
    bidirectional pipelines", figure 3 and section 3.5 (direct concatenation).

    Examples
    --------
    1F1B takes 33 units.

    >>> from minipipe import schedules, simulate
    >>> timeline = simulate(schedules.chimera(4, 8))
    >>> timeline.makespan, timeline.peak_activations
    (30.0, (3, 4, 4, 3))
    """
    _check_even("chimera", num_ranks, num_microbatches)
    pipelines = _both_ways(range(num_ranks))
    return in_slots("chimera", pipelines, num_ranks // 2, num_microbatches)


def bitpipe(
    num_ranks: int, num_microbatches: int, chunks_per_rank: int = 2
) -> Schedule:
    """Return BitPipe: two V-shaped pipelines in opposite directions, for half of
    Chimera's bubble.

    ::

        stages 0 and 3 are on ranks 0 and 1, and so are stages 1 and 2
        rank 0: 0F0 1F1 2F1 3F0 3B0 2B1 1B1 0B0
        rank 1: 0F1 1F0 2F0 3F1 3B1 2B0 1B0 0B1

    In the downward pipeline, rank r has the stages r and 2p - 1 - r, as in a V. In the
    upward pipeline it has the stages p - 1 - r and p + r. The slots are Chimera's, for
    2p stages: p/2 microbatches of each direction form a unit.

    For m a multiple of p, the makespan is m(tF + tB) + (p/2 - 1)(min(tF, tB) + (m/p)
    abs(tB - tF)), and rank r holds 3p/2 + 1 + min(r, p - 1 - r) chunks, which are half
    stages, and the weights of two whole ones.

    Parameters, result and errors are as in :func:`chimera`; ``chunks_per_rank`` is 2,
    for each direction.

    Notes
    -----
    The order follows the authors' program, which concatenates units. Their "early
    forwarding", for more microbatches, is not implemented.

    References
    ----------
    Wu, Chen and Yu 2024, "BitPipe: bidirectional interleaved pipeline parallelism for
    accelerating large models training".

    Examples
    --------
    Chimera takes 16 units, and 1F1B 21; a unit is the time of an action over all chunks
    of a rank.

    >>> from minipipe import Costs, schedules, simulate
    >>> simulate(schedules.bitpipe(4, 4), Costs().cut(2)).makespan
    14.0
    """
    check_two_chunks("bitpipe", num_ranks, num_microbatches, chunks_per_rank)
    _check_even("bitpipe", num_ranks, num_microbatches)
    pipelines = _both_ways(v_placement(num_ranks))
    return in_slots("bitpipe", pipelines, num_ranks // 2, num_microbatches)


def dualpipe(num_ranks: int, num_microbatches: int, joined: bool = False) -> Schedule:
    """Return DualPipe: forwards of one direction alternate with backwards of the other,
    to overlap their messages.

    ::

        stage s is on ranks s and 1 - s; microbatches 0 and 1 go down the ranks, 2 and 3 up
        rank 0: 0F0 1F2 0F1 1B2 1F3 0B0 1B3 0I1 0W1
        rank 1: 0F2 1F0 0F3 1B0 1F1 0B2 1B1 0I3 0W3

    The ranks r and p - 1 - r each run the row of rank r of :func:`dualpipe_v` on p/2
    ranks, in opposite directions. A backward is split only if that saves time. For even
    m >= 2p, if F, I and W take one unit each, the makespan is 3m + p/2 - 1. Every rank
    is idle for at most p/2 - 1 units within its span, and holds at most p + 1
    microbatches and the weights of two stages.

    With ``joined``, forwards are overlapped with backwards as in :func:`dualpipe_v`. If
    an overlapped pair takes tP and tF = tI >= tW, the ranks in the middle are then idle
    for (p/2 - 1)(tP + tB - 3tW), the authors' formula, and no other rank is idle for
    longer.

    For fewer than 2p microbatches, the schedule for 2p is truncated, in both
    directions. Parameters, result and errors are as in :func:`chimera`.

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V3 technical report", figure 5; the order follows their
    ``DualPipe.step``.

    Examples
    --------
    1F1B takes 81 units.

    >>> from minipipe import schedules, simulate
    >>> timeline = simulate(schedules.dualpipe(8, 20))
    >>> timeline.makespan, set(timeline.peak_activations)
    (63.0, {9})
    """
    _check_even("dualpipe", num_ranks, num_microbatches)
    p = num_ranks
    num_down = (num_microbatches + 1) // 2
    half = dualpipe_v(p // 2, num_down, joined=joined)
    rows: list[list[Action]] = [[] for _ in range(p)]
    overlaps = set()
    for rank, row in enumerate(rows):
        for action in half.actions[min(rank, p - 1 - rank)]:
            first = 0 if action.stage == rank else num_down
            moved = action._replace(microbatch=first + action.microbatch)
            if moved.microbatch < num_microbatches:
                row.append(moved)
                if action in half.overlaps:
                    overlaps.add(moved)
    placement = pipelines_placement(_both_ways(range(p)), num_microbatches)
    actions = tuple(map(tuple, rows))
    return Schedule(
        "dualpipe", placement, num_microbatches, actions, overlaps=frozenset(overlaps)
    )


def _both_ways(down: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Return the placements of a pipeline and of one in the opposite direction."""
    return down, [max(down) - rank for rank in down]


def _check_even(name: str, num_ranks: int, num_microbatches: int) -> None:
    check_sizes(num_ranks, num_microbatches)
    if num_ranks % 2:  # both directions would need one slot of a rank
        raise misuse(f"num_ranks is {num_ranks}; {name} takes an even number.")
