"""Time against memory: what schedules take of both, the best of them, and bounds below which there is none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple

from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.schedules.analysis.bounds import lower_bound
from minipipe.schedules.analysis.workload import Objective, Workload, fits
from minipipe.schedules.placement import check_sizes, neighbouring_placement, v_placement
from minipipe.schedules.schedule import Schedule
from minipipe.schedules.simulation.comparison import figures, table
from minipipe.schedules.simulation.costs import Costs

PLACEMENTS = MappingProxyType({"straight": neighbouring_placement, "V": v_placement})  # for which there are bounds
_PIECES = 8  # of a microbatch: steps of the bounds, where amounts of memory are no multiples of one
_ROUNDING = 1e-6  # by which a limit of memory is below the next one


class Choice(NamedTuple):
    """A schedule as a point.

    Attributes
    ----------
    name : str
    placement : str
        ``"straight"``, ``"looped"``, ``"V"`` or ``"other"``.
    memory : float
        The peak of the fullest rank, in the memory unit of the costs.
    bubble : float
        The fraction of total rank time that is not work: idle, or lost where ranks share cores.
    makespan : float
        In the time unit of the costs.
    is_searched : bool
        Whether a search found it; otherwise it is a named one.
    """

    name: str
    placement: str
    memory: float
    bubble: float
    makespan: float
    is_searched: bool = False


class Tradeoff(NamedTuple):
    """Schedules for one batch, as points, and the bounds below them.

    Attributes
    ----------
    num_ranks, num_microbatches : int
    choices : tuple of Choice
    bounds : mapping of str to tuple of (float, float)
        By placement, the corners (memory, bubble) of a curve of steps: no schedule with this placement that holds at
        most so much has a smaller bubble. Memory grows, and the last corner is that of unlimited memory.
    counts_microbatches : bool
        Whether memory is in microbatches, each counted for all layers of its rank.
    """

    num_ranks: int
    num_microbatches: int
    choices: tuple[Choice, ...]
    bounds: Mapping[str, tuple[tuple[float, float], ...]]
    counts_microbatches: bool = True


def tradeoff(num_ranks: int, num_microbatches: int, costs: Costs | None = None) -> Tradeoff:
    """Return what the named schedules that train take of time and memory, and the least that there can be.

    Parameters
    ----------
    num_ranks : int
        At least 2: one rank has no bubble.
    num_microbatches : int
    costs : Costs, optional
        Of each rank's whole share, as for :func:`minipipe.schedules.table`.

    Raises
    ------
    ScheduleError
        Code ``parameters``, for fewer than two ranks or a count below 1; ``costs``, where activations take no memory
        or actions no time.

    Notes
    -----
    The bounds are of makespans with a split backward, for straight stages and for a V. Where stages hold different
    amounts, or I and W do, a step is an eighth of a microbatch long, and as high as the bound at its right end.

    Examples
    --------
    >>> of_four = tradeoff(4, 8)
    >>> [choice.name for choice in pareto_front(of_four.choices)]
    ['sequential', 'v-min', 'v-half', 'interleaved-zb']
    >>> memory, bubble = of_four.bounds["straight"][-1]
    >>> f"{memory:g} microbatches, {bubble:.1%}"
    '4 microbatches, 11.1%'
    """
    check_sizes(num_ranks, num_microbatches)
    if num_ranks < 2:
        message = f"num_ranks is {num_ranks}; expected at least 2, because one rank has no bubble."
        raise ScheduleError.of(ScheduleCode.PARAMETERS, message)
    costs = costs or Costs()
    if not any(costs.memory(num_ranks).activation):
        raise ScheduleError.of(ScheduleCode.COSTS, "activation is 0; expected memory, to compare it with time.")
    rows = [row for row in table(num_ranks, num_microbatches, costs) if row["error"] is None]
    work = _work(costs, num_ranks, num_microbatches)
    if not work:
        raise ScheduleError.of(ScheduleCode.COSTS, "F, I and W take no time; expected some, to compare it with memory.")
    choices = [_choice(row["schedule"], row, work) for row in rows if row["schedule"] != "forward-only"]
    most = max(choice.memory for choice in choices)
    bounds = {
        name: tuple(_bound(costs, placed(num_ranks), num_microbatches, most)) for name, placed in PLACEMENTS.items()
    }
    return Tradeoff(num_ranks, num_microbatches, tuple(choices), bounds, _counts_microbatches(costs))


def searched_choice(schedule: Schedule, costs: Costs) -> Choice:
    """Return the point of a schedule that a search has found, under the costs of each rank's whole share.

    Raises
    ------
    ScheduleError
        Code ``costs``, for costs of another number of stages; the verifier's codes, for a schedule that is not legal.

    Examples
    --------
    >>> from minipipe import schedules
    >>> searched_choice(schedules.v_half(4, 8), Costs())[:3]
    ('v-half', 'V', 3.0)
    """
    work = _work(costs, schedule.num_ranks, schedule.num_microbatches)
    return _choice(schedule.name, figures(schedule, costs), work, is_searched=True)


def pareto_front(choices: Iterable[Choice]) -> list[Choice]:
    """Return the choices than which none has less memory and no larger bubble, or a smaller bubble and no more memory.

    Of several at one point it returns the first.

    Examples
    --------
    >>> many = [Choice("a", "V", 2, 0.3, 9), Choice("b", "V", 1, 0.4, 9), Choice("c", "V", 2, 0.4, 9)]
    >>> [choice.name for choice in pareto_front(many)]
    ['b', 'a']
    """
    best: list[Choice] = []
    for choice in sorted(choices, key=lambda choice: (choice.memory, choice.bubble)):
        if not best or choice.bubble < best[-1].bubble:
            best.append(choice)
    return best


def _choice(name: str, found: Mapping[str, Any], work: float, is_searched: bool = False) -> Choice:
    memory, makespan = max(found["peak_memory"]), found["makespan"]
    return Choice(name, found["placement"], memory, 1 - work / makespan, makespan, is_searched)


def _work(costs: Costs, num_ranks: int, num_microbatches: int) -> float:
    """Return the time of the work of a rank by itself, the mean over all ranks."""
    workload = costs.workload(range(num_ranks), num_microbatches)
    return sum(map(workload.work, range(num_ranks))) / num_ranks


def _bound(costs: Costs, placement: Sequence[int], num_microbatches: int, most: float) -> Iterator[tuple[float, float]]:
    """Yield the corners of the bound for one placement, for limits from a microbatch to the most memory of a choice."""
    num_ranks = 1 + max(placement)
    share, own = max(costs.memory(num_ranks).activation), costs.cut(len(placement) // num_ranks)
    footprint = own.memory(len(placement))
    is_whole = len({*footprint.activation, *footprint.weight_activation}) == 1 and not any(footprint.transient)
    # Where all amounts are alike, only their multiples are ever held. Otherwise a step has the height of its right end.
    step, holds = (footprint.activation[0], 0.0) if is_whole else (share / _PIECES, (1 - _ROUNDING) * share / _PIECES)
    work = _work(costs, num_ranks, num_microbatches)
    unlimited = _least_bubble(work, own.workload(placement, num_microbatches))
    last, memory = inf, share
    while fits(memory, most) and last > unlimited:
        with suppress(ScheduleError):  # not even one microbatch fits
            bubble = _least_bubble(work, own.workload(placement, num_microbatches, memory + holds))
            if bubble < last:
                yield memory, bubble
            last = min(last, bubble)
        memory += step


def _least_bubble(work: float, workload: Workload) -> float:
    return 1 - work / lower_bound(workload, Objective.MAKESPAN).value


def _counts_microbatches(costs: Costs) -> bool:
    return (costs.activation, costs.weight_activation, costs.transient_activation) == (1.0, None, 0.0)
