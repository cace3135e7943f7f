"""Search for partition, placement and schedule together, with offload on request.

A choice is a placement, the layers of each stage, and whether activations may be
offloaded. Choices are weighed in the order of their lower bounds: first a cheap one,
the work of the busiest rank, then the largest known one. Each gets a short search, and
the best get longer ones (successive halving). As soon as the next bound reaches the
best value, all other choices are pruned: none of them is better.

The lower bound of the result holds for every schedule of every choice. Only layers of
the same order, the placements passed, and unsliced microbatches are choices;
recomputation, replicas and the memory of weights are not weighed. If there are too many
partitions, all up to some work of the busiest rank are choices, and this work bounds
the others. With offload the bound ignores the memory limit and the time of copies, and
the schedules are searched within larger limits and given copies afterwards, so a gap
may remain.

References
----------
2025, "AdaPtis", arXiv 2509.23722: partition, placement and schedule weighed together.
2025, "OptPipe", arXiv 2510.05186: schedule and offload in one program. Both were read
second hand; nothing of their numbers is used.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from math import inf
from time import perf_counter
from typing import Any, NamedTuple

from minipipe.core.schedules.action import Action, I, W
from minipipe.core.schedules.action_table import Schedule
from minipipe.core.specs import SCHEDULE_COUNT
from minipipe.errors import ScheduleError, counted, misuse
from minipipe.schedules.analysis.workload import (
    ROUNDING,
    Objective,
    Workload,
    check_memory,
    fits,
)
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.evaluation import value_of
from minipipe.schedules.simulation.simulator import simulate
from minipipe.schedules.simulation.timeline import Timeline
from minipipe.schedules.transforms import offloaded
from minipipe.search.certificate import Certificate
from minipipe.search.clock import schedule_of
from minipipe.search.finding import checked
from minipipe.search.gallery import known_bound
from minipipe.search.heuristic import Search

LAYERS = SCHEDULE_COUNT._replace(maximum=1000)  # of a model, for this search
_SUMS = ("forward", "backward_input", "backward_weight", "activation", "weights")
_WORK = (1.0, 1.02, 1.05, 1.1, 1.2, 1.4, 1.7, 2.0, 3.0, inf)  # of the least possible
_MOST = 2000  # partitions of a placement
_FIRST = 130  # evaluations of the first search: all sweeps and policies
_VIRTUAL = (1.5, 2.0, 3.0)  # memory limits of schedules that are then offloaded


class JointResult(NamedTuple):
    """The best choice that was found, and a bound on all choices.

    Attributes
    ----------
    best : Certificate
        Its schedule, with O and L if it offloads; its workload and value. No schedule
        of any choice is below the ``bound``.
    costs : Costs
        By stage.
    sizes : tuple of int
        By stage, its number of layers.
    is_offloaded : bool
    choices, searched, waiting, impossible : int
        The numbers of choices: in all; searched; left although their bounds are below
        the value, because a limit ended the search; without a schedule, for lack of
        memory. The others were pruned: their bounds are not below the value.
    is_complete : bool
        Whether every partition was a choice.
    """

    best: Certificate
    costs: Costs
    sizes: tuple[int, ...]
    is_offloaded: bool
    choices: int
    searched: int
    waiting: int
    impossible: int
    is_complete: bool


class _Choice:
    """A choice: its workload, its bound, and its searches once they have begun."""

    def __init__(
        self, costs: Costs, sizes: tuple[int, ...], workload: Workload, offloads: bool
    ) -> None:
        self.costs = costs
        self.sizes = sizes
        self.workload = workload
        self.offloads = offloads
        work = map(workload.work, range(workload.num_ranks))
        self.bound = max(work) * (1 - ROUNDING)
        self.is_bounded = False
        self.searches: list[Search] = []
        self.value = inf
        self.schedule: Schedule | None = None
        self.found_by = ""

    def find_bound(self, objective: Objective) -> bool:
        """Find the largest known bound; return whether a schedule may exist."""
        workload = self.workload
        self.is_bounded = True
        if self.offloads:
            unlimited = (inf,) * workload.num_ranks
            workload = workload._replace(memory_limit=unlimited)
        elif not _has_memory(workload):
            return False
        self.bound = max(self.bound, known_bound(workload, objective).value)
        return True

    def improve(
        self, objective: Objective, evaluations: int, seconds: float, seed: int
    ) -> None:
        """Search, or go on searching, for a better schedule."""
        if not self.searches:
            problems = self._larger() if self.offloads else [self.workload]
            for problem in problems:
                self.searches.append(Search(problem, objective, self.bound, seed))
        for search in self.searches:
            each = max(evaluations // len(self.searches), 1)
            best = search.run(search.evaluations + each, seconds)
            workload = search.problem.workload
            schedule = schedule_of(best.run.orders, workload, "found")
            found_by = best.found_by
            if self.offloads:
                schedule = self._offloaded(schedule) or schedule
                found_by = f"{found_by}, offloaded"
            timeline = simulate(schedule, self.costs)
            value = value_of(timeline, objective)
            if value < self.value and self._fits(timeline):
                self.schedule = schedule
                self.value = value
                self.found_by = found_by

    def _larger(self) -> list[Workload]:
        """Return the workload with larger limits of memory, for offload."""
        problems = []
        for factor in _VIRTUAL:
            larger = tuple(factor * limit for limit in self.workload.memory_limit)
            problems.append(self.workload._replace(memory_limit=larger))
        return [problem for problem in problems if _has_memory(problem)]

    def _fits(self, timeline: Timeline) -> bool:
        peaks = timeline.peak_memory or (inf,)
        return all(map(fits, peaks, self.workload.memory_limit))

    def _offloaded(self, schedule: Schedule) -> Schedule | None:
        """Return the schedule with the least copies that fits the memory limit.

        Between I and W nothing is offloaded, so W also runs right after its I.
        """
        smallest = min(self.workload.footprint.activation)
        most = max(map(len, schedule.actions)) // 3  # pairs of a rank
        if smallest:
            most = min(most, int(max(self.workload.memory_limit) / smallest))
        for num_held in range(most, 0, -1):
            for ordered in (schedule, _with_early_weights(schedule)):
                table = offloaded(ordered, num_held)
                if self._fits(simulate(table, self.costs)):
                    return table
        return None

    @property
    def is_closed(self) -> bool:
        """Whether its schedule is as good as its bound."""
        return self.value <= self.bound * (1 + ROUNDING)


def _with_early_weights(schedule: Schedule) -> Schedule:
    """Return the schedule with each W right after its I."""
    rows = []
    for row in schedule.actions:
        early: list[Action] = []
        for action in row:
            if action.kind is not W:
                early.append(action)
            if action.kind is I:
                early.append(action._replace(kind=W))
        rows.append(tuple(early))
    return replace(schedule, actions=tuple(rows))


def _has_memory(workload: Workload) -> bool:
    """Whether each rank can hold one microbatch."""
    try:
        check_memory(workload)
    except ScheduleError:
        return False
    return True


def find_joint(
    costs: Costs,
    num_layers: int,
    placements: Sequence[Sequence[int]],
    num_microbatches: int,
    memory_limit: float | None = None,
    objective: Objective = Objective.SPAN,
    offload: bool = False,
    evaluations: int = 20_000,
    seconds: float = inf,
    seed: int = 0,
    watch: Callable[[Callable[[], str]], object] = lambda describe: None,
) -> JointResult:
    """Return the best partition, placement and schedule found, with a bound on all.

    Local; no messages, one core.

    Parameters
    ----------
    costs : Costs
        By layer instead of by stage; ``message_size`` of a layer counts if it is the
        last of its stage.
    num_layers : int
    placements : sequence of placements
        The placements to weigh: for each the rank of each stage.
    num_microbatches : int
    memory_limit : float, optional
        The most that a rank may hold of activations.
    objective : Objective
    offload : bool
        Whether choices with offload are weighed, at ``costs.copy_bandwidth``.
    evaluations : int
        The most schedules that all searches try together. It and the seed determine the
        result, unless the clock ends the search.
    seconds : float
        The time limit.
    seed : int
    watch : function
        Called with a function that returns a progress message.

    Returns
    -------
    JointResult

    Raises
    ------
    ScheduleError
        Code ``value``, if there are fewer layers than stages, if no choice fits the
        memory, or for offload without a limit; the codes of
        :meth:`minipipe.Costs.workload`.

    Examples
    --------
    The last layer is slow; alone it makes a stage, and the others share two ranks.

    >>> costs = Costs(forward=[1, 1, 1, 1, 2], backward_input=[1, 1, 1, 1, 2])
    >>> costs = replace(costs, backward_weight=[1, 1, 1, 1, 2])
    >>> joint = find_joint(costs, 5, [(0, 1, 2)], num_microbatches=6)
    >>> joint.best.value, joint.best.gap, joint.sizes, joint.choices, joint.searched
    (36.0, 0.0, (2, 2, 1), 6, 1)
    """
    begun = perf_counter()
    LAYERS.check("num_layers", num_layers)
    objective = checked(objective, None, evaluations)
    if offload and memory_limit is None:
        raise misuse("offload needs a memory_limit; without one, nothing is offloaded.")
    choices: list[_Choice] = []
    rest = inf
    for placement in placements:
        partitions, left = _partitions(costs, num_layers, placement)
        rest = min(rest, num_microbatches * left)
        for sizes in partitions:
            of_stages = costs_of_stages(costs, sizes)
            workload = of_stages.workload(placement, num_microbatches, memory_limit)
            for offloads in (False, True)[: 1 + offload]:
                choices.append(_Choice(of_stages, sizes, workload, offloads))
    weighing = _Weighing(objective, begun + seconds, seed)
    watch(weighing.describe)
    for offloads in (False, True)[: 1 + offload]:
        group = [choice for choice in choices if choice.offloads is offloads]
        weighing.run(group, evaluations // (1 + offload))
    result = _result(weighing, choices, objective, rest)
    best = result.best._replace(seconds=perf_counter() - begun)
    return result._replace(best=best)


def _result(
    weighing: _Weighing, choices: list[_Choice], objective: Objective, rest: float
) -> JointResult:
    """Return the best choice; ``rest`` is a bound on all partitions left out."""
    best = weighing.best
    if best is None or best.schedule is None:
        hint = "use more ranks, more memory or offload"
        raise misuse(f"No schedule of any choice was found within its memory; {hint}.")
    others = [choice.bound for choice in (*weighing.waiting, *weighing.searched)]
    left = sum(map(weighing.is_below, weighing.waiting))
    bound = min(best.value, rest, *others)
    claim = (objective, best.value, bound, "the least bound of all choices")
    found = (best.schedule, best.workload, *claim, best.found_by, 0.0)
    numbers = (len(choices), len(weighing.searched), left, weighing.impossible)
    choice = (best.costs, best.sizes, best.offloads)
    return JointResult(Certificate(*found), *choice, *numbers, rest == inf)


class _Weighing:
    """The choices that wait, and those searched.

    Attributes
    ----------
    waiting, searched : list of _Choice
    best : _Choice or None
    impossible : int
        The number of choices whose memory permits no schedule.
    """

    def __init__(self, objective: Objective, deadline: float, seed: int) -> None:
        self.waiting: list[_Choice] = []
        self.searched: list[_Choice] = []
        self.best: _Choice | None = None
        self.impossible = 0
        self._objective = objective
        self._deadline = deadline
        self._seed = seed
        self._left = 0

    @property
    def value(self) -> float:
        """The best value; infinite at the beginning."""
        return inf if self.best is None else self.best.value

    def describe(self) -> str:
        """Return a progress message."""
        done = f"searched {counted(len(self.searched), 'choice')}"
        return f"{done}; the best has {self.value:g}"

    def run(self, group: list[_Choice], evaluations: int) -> None:
        """Search choices until all others are pruned, or a limit is reached."""
        group.sort(key=lambda choice: choice.bound)
        self._left = evaluations
        searched: list[_Choice] = []
        while choice := self._next(group):
            if searched and (self._left <= evaluations // 2 or self._is_late):
                break
            searched.append(group.pop(0))
            self._improve(choice, _FIRST)
        number = 2 * _FIRST
        while self._left > 0 and not self._is_late:
            hopeful = [each for each in searched if self._may_improve(each)]
            if not hopeful:
                break
            hopeful.sort(key=lambda choice: choice.value)
            for choice in hopeful[: max(1, len(hopeful) // 2)]:
                self._improve(choice, number)
            number *= 2
        self.searched += searched
        self.waiting += group

    def _next(self, group: list[_Choice]) -> _Choice | None:
        """Return the choice with the least bound; None, if no schedule of the group is
        below the best value.
        """
        while group and self.is_below(group[0]):
            if group[0].is_bounded:
                return group[0]
            choice = group.pop(0)
            if choice.find_bound(self._objective):
                insort(group, choice, key=lambda each: each.bound)
            else:
                self.impossible += 1
        return None

    @property
    def _is_late(self) -> bool:
        return perf_counter() >= self._deadline

    def is_below(self, choice: _Choice) -> bool:
        """Whether a schedule of a choice may be below the best value."""
        return choice.bound < self.value * (1 - ROUNDING)

    def _may_improve(self, choice: _Choice) -> bool:
        return self.is_below(choice) and not choice.is_closed

    def _improve(self, choice: _Choice, evaluations: int) -> None:
        number = min(evaluations, max(self._left, 1))
        seconds = max(self._deadline - perf_counter(), 0.0)
        choice.improve(self._objective, number, seconds, self._seed)
        self._left -= number
        if choice.value < self.value:
            self.best = choice


def costs_of_stages(costs: Costs, sizes: Sequence[int]) -> Costs:
    """Return costs by stage from costs by layer, given the layers of each stage.

    Examples
    --------
    >>> costs = Costs(forward=[1, 2, 3], message_size=[5, 6, 0])
    >>> of_stages = costs_of_stages(costs, (2, 1))
    >>> of_stages.forward, of_stages.backward_input, of_stages.message_size
    ((3.0, 3.0), (2.0, 1.0), (6.0, 0.0))
    """
    ends = accumulate(sizes)
    parts = [range(end - size, end) for size, end in zip(sizes, ends)]

    def merged(name: str, merge: Callable[[list[float]], float]) -> tuple[float, ...]:
        values = costs.by_stage(name, sum(sizes), "layer")
        return tuple(merge([values[layer] for layer in part]) for part in parts)

    names = [*_SUMS]
    if costs.weight_activation is not None:
        names.append("weight_activation")
    changes: dict[str, Any] = {name: merged(name, sum) for name in names}
    changes["transient_activation"] = merged("transient_activation", max)
    changes["message_size"] = merged("message_size", lambda values: values[-1])
    return replace(costs, **changes)


# -- partitions ------------------------------------------------------------------------


def _partitions(
    costs: Costs, num_layers: int, placement: Sequence[int]
) -> tuple[list[tuple[int, ...]], float]:
    """Return all partitions up to some work of the busiest rank for a microbatch, and
    the least work of all others; infinite, if there are none.

    Raises
    ------
    ScheduleError
        Code ``value``, if there are fewer layers than stages.
    """
    if len(placement) > num_layers:
        problem = f"The placement has {counted(len(placement), 'stage')}, and there"
        raise misuse(f"{problem} are {counted(num_layers, 'layer')}.")
    names = ("forward", "backward_input", "backward_weight")
    times = (costs.by_stage(name, num_layers, "layer") for name in names)
    work = [sum(each) for each in zip(*times)]
    least = max(sum(work) / (1 + max(placement)), max(work))
    kept: list[tuple[int, ...]] = []
    reached = least
    for factor in _WORK:
        finder = _Partitions(work, placement, least * factor * (1 + ROUNDING))
        found = list(finder.all())
        if finder.has_stopped and kept:
            return kept, reached
        kept = found or kept
        if finder.has_stopped:
            return kept, least
        reached = least * factor
    return kept, inf


class _Partitions:
    """Enumerates partitions in which no rank has more than some work."""

    def __init__(
        self, work: Sequence[float], placement: Sequence[int], most: float
    ) -> None:
        self._work = work
        self._placement = placement
        self._most = most
        self._loads = [0.0] * (1 + max(placement))
        self._found = 0
        self._tried = 0

    @property
    def has_stopped(self) -> bool:
        """Whether there are too many to enumerate."""
        return self._found > _MOST or self._tried > 50 * _MOST

    def all(self, first: int = 0, sizes: int = 0) -> Iterator[tuple[int, ...]]:
        """Yield the sizes of the stages after some number of sizes, for the layers from
        one on.
        """
        self._tried += 1
        left = len(self._work) - first
        stages_left = len(self._placement) - sizes
        if not stages_left:
            self._found += 1
            yield ()
            return
        rank = self._placement[sizes]
        begin = self._loads[rank]
        for size in range(1, left - stages_left + 2):
            self._loads[rank] += self._work[first + size - 1]
            if self._loads[rank] > self._most or self.has_stopped:
                break
            if stages_left > 1 or size == left:
                for others in self.all(first + size, sizes + 1):
                    yield (size, *others)
        self._loads[rank] = begin
