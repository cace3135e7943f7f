"""Bidirectional schedules: two pipelines with the same weights, one down the ranks and one up.

Every stage has two replicas: of p stages, stage s is on the ranks s and p - 1 - s, so that each rank holds the weights
of two stages. The first half of the microbatches goes down the ranks, the other half up. Of an odd number, one more
goes down; a single one has no replicas.
"""

from __future__ import annotations

from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.schedules.action import Action, B, F
from minipipe.schedules.action_table import Schedule
from minipipe.schedules.placement import check_sizes
from minipipe.schedules.v_shaped import dualpipe_v


def chimera(num_ranks: int, num_microbatches: int) -> Schedule:
    """Return Chimera: two 1F1B pipelines in opposite directions, each in bubbles of the other.

    ::

        stage s is on ranks s and 3 - s; microbatches 0 and 1 go down the ranks, 2 and 3 up
        rank 0: 0F0 0F1     3F2 3B2 3F3 3B3 0B0     0B1
        rank 1:     1F0 2F2 1F1 2F3 2B2 1B0 2B3 1B1
        rank 2:     1F2 2F0 1F3 2F1 2B0 1B2 2B1 1B3
        rank 3: 0F2 0F3     3F0 3B0 3F1 3B1 0B2     0B3

    Each direction runs its microbatches in units of p/2. On stage s, microbatch i of a unit has its F in slot s + 2i
    and its B in slot 2p - 1 - s + 2i; the next unit begins 2p slots later. The two directions never need a slot of one
    rank at once.

    For m a multiple of p, the makespan is m(tF + tB) + (p - 2)(min(tF, tB) + (m/p) abs(tB - tF)); where F and B take
    one unit each, it is 2m + p - 2. Rank r holds the activations of p/2 + 1 + min(r, p - 1 - r) microbatches, and the
    weights of two stages.

    Parameters
    ----------
    num_ranks : int
        An even number.
    num_microbatches : int
        At least 1. A unit that is left over is divided between the directions as evenly as possible.

    Returns
    -------
    Schedule

    Raises
    ------
    ScheduleError
        Code ``parameters``, for a count below 1 or an odd number of ranks.

    Notes
    -----
    Where a backward takes longer than a forward, units leave bubbles between them. The paper fills them with "forward
    doubling" or "backward halving", which are not here; nor are more than two pipelines.

    References
    ----------
    Li and Hoefler 2021, "Chimera: efficiently training large-scale neural networks with bidirectional pipelines",
    figure 3 and section 3.5 (direct concatenation).

    Examples
    --------
    1F1B takes 33 units.

    >>> from minipipe import schedules, simulate
    >>> timeline = simulate(schedules.chimera(4, 8))
    >>> timeline.makespan, timeline.peak_activations
    (30.0, (3, 4, 4, 3))
    """
    _check_even("chimera", num_ranks, num_microbatches)
    p, num_down = num_ranks, _num_down(num_microbatches)
    slots: list[list[tuple[int, Action]]] = [[] for _ in range(p)]
    for k in range(num_microbatches):
        unit, i = divmod(k % num_down, p // 2)
        for stage in range(p):
            start = 2 * p * unit + 2 * i
            own = slots[stage if k < num_down else p - 1 - stage]
            own += [(start + stage, Action(stage, F, k)), (start + 2 * p - 1 - stage, Action(stage, B, k))]
    rows = tuple(tuple(action for _, action in sorted(own)) for own in slots)
    return Schedule("chimera", _both_ways(p, num_microbatches), num_microbatches, rows)


def dualpipe(num_ranks: int, num_microbatches: int) -> Schedule:
    """Return DualPipe: forwards of one direction alternate with backwards of the other, to overlap their messages.

    ::

        stage s is on ranks s and 1 - s; microbatches 0 and 1 go down the ranks, 2 and 3 up
        rank 0: 0F0 1F2 0F1 1B2 1F3 0B0 1B3 0I1 0W1
        rank 1: 0F2 1F0 0F3 1B0 1F1 0B2 1B1 0I3 0W3

    The ranks r and p - 1 - r each run the row of rank r of :func:`dualpipe_v` on p/2 ranks, in opposite directions. A
    backward is split only if that saves time. For even m >= 2p, if F, I and W take one unit each, the makespan is
    3m + p/2 - 1. Every rank is idle for at most p/2 - 1 units within its span, and holds at most p + 1 microbatches and
    the weights of two stages.

    For fewer than 2p microbatches, the schedule of 2p is cut, in both directions. Parameters, result and errors are
    those of :func:`chimera`.

    References
    ----------
    DeepSeek-AI 2024, "DeepSeek-V3 technical report", figure 5; the order is that of their ``DualPipe.step``.

    Examples
    --------
    1F1B takes 81 units.

    >>> from minipipe import schedules, simulate
    >>> timeline = simulate(schedules.dualpipe(8, 20))
    >>> timeline.makespan, set(timeline.peak_activations)
    (63.0, {9})
    """
    _check_even("dualpipe", num_ranks, num_microbatches)
    p, num_down = num_ranks, _num_down(num_microbatches)
    half = dualpipe_v(p // 2, num_down)
    rows = []
    for rank in range(p):
        row = half.actions[min(rank, p - 1 - rank)]
        directed = (a if a.stage == rank else a._replace(microbatch=a.microbatch + num_down) for a in row)
        rows.append(tuple(action for action in directed if action.microbatch < num_microbatches))
    return Schedule("dualpipe", _both_ways(p, num_microbatches), num_microbatches, tuple(rows))


def _num_down(num_microbatches: int) -> int:
    return (num_microbatches + 1) // 2


def _both_ways(num_ranks: int, num_microbatches: int) -> tuple[int | tuple[int, ...], ...]:
    """Return the placement of stages on two ranks each; of a single microbatch, the pipeline down alone."""
    if num_microbatches == 1:
        return tuple(range(num_ranks))
    return tuple((rank, num_ranks - 1 - rank) for rank in range(num_ranks))


def _check_even(name: str, num_ranks: int, num_microbatches: int) -> None:
    check_sizes(num_ranks, num_microbatches)
    if num_ranks % 2:
        hint = f"{name} has two pipelines in opposite directions, and takes an even number."
        raise ScheduleError.of(ScheduleCode.PARAMETERS, f"num_ranks is {num_ranks}; {hint}")
