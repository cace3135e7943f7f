"""A choice of the joint search: layers of each stage, placement, and which stages
recompute or offload their activations; with its bound and its searches.

A stage that recomputes keeps only its input from F until I, and its I also takes the
time of F. Whether a stage does may be undecided. Every figure of such a stage is then
the smaller one of both cases, so that a bound holds for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from itertools import accumulate
from math import inf
from operator import sub
from typing import Any

from minipipe.core.schedules.action import Action, I, W
from minipipe.core.schedules.action_table import Schedule
from minipipe.errors import ScheduleError
from minipipe.schedules.analysis.activations import Footprint
from minipipe.schedules.analysis.bounds import with_copies, with_free_copies
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
from minipipe.search.clock import schedule_of
from minipipe.search.gallery import known_bound
from minipipe.search.heuristic import Search

_SUMS = ("forward", "backward_input", "backward_weight", "activation", "weights")
_VIRTUAL = (1.5, 2.0, 3.0)  # memory limits of schedules that are then offloaded
Decisions = tuple[bool | None, ...]  # by stage; None is undecided


class Recompute(StrEnum):
    """The stages that may recompute their activations.

    Examples
    --------
    >>> [each.decisions(2) for each in Recompute]
    [[(False, False)], [(False, False), (True, True)], [(None, None)]]
    """

    NONE = "none"
    UNIFORM = "uniform"  # all stages, or none
    ANY = "any"  # any of them

    def decisions(self, num_stages: int) -> list[Decisions]:
        """Return the decisions that together cover all choices."""
        firsts: dict[str, list[bool | None]] = {"none": [False], "any": [None]}
        return [(each,) * num_stages for each in firsts.get(self, [False, True])]


class Choice:
    """A choice: its workload, its bound, and its searches once they have begun.

    Parameters
    ----------
    costs : Costs
        By stage, of stages that do not recompute.
    sizes : tuple of int
        By stage, its number of layers.
    workload : Workload
        The same; its memory limits leave out the memory of weights.
    offloads : bool
        Whether activations may be offloaded.
    recomputed : tuple
        By stage, whether it recomputes; None if that is undecided.
    """

    def __init__(
        self,
        costs: Costs,
        sizes: tuple[int, ...],
        workload: Workload,
        offloads: bool,
        recomputed: Decisions,
    ) -> None:
        self._made = partial(Choice, costs, sizes, workload, offloads)
        self.costs = recomputing(costs, recomputed)
        self.sizes = sizes
        times = self.costs.by_stage("backward_input", len(sizes))
        held = Footprint(*map(tuple, self.costs.memory(len(sizes))))
        workload = workload._replace(footprint=held)
        self.workload = workload._replace(backward_input=tuple(times))
        self.offloads = offloads
        self.recomputed = recomputed
        self.bound = max(map(self.workload.work, range(workload.num_ranks)))
        self.bound *= 1 - ROUNDING
        self.is_bounded = False
        self.searches: list[Search] = []
        self.value = inf
        self.schedule: Schedule | None = None
        self.found_by = ""

    @property
    def count(self) -> int:
        """How many choices it stands for."""
        return 2 ** self.recomputed.count(None)

    @property
    def problem(self) -> tuple[object, ...]:
        """All that it decides besides recomputation."""
        return self.sizes, self.workload.placement, self.offloads

    def covers(self, other: Choice) -> bool:
        """Whether another choice is this one, or one of those that this stands for."""
        pairs = zip(self.recomputed, other.recomputed)
        decided = all(mine is None or mine is theirs for mine, theirs in pairs)
        return decided and self.problem == other.problem

    @property
    def order(self) -> tuple[float, int]:
        """The key by which choices are weighed."""
        return self.bound, self.count

    def find_bound(self, objective: Objective) -> bool:
        """Find the largest known bound; return whether a schedule may exist."""
        workload = self.workload
        self.is_bounded = True
        if self.offloads:
            if not _has_memory(with_free_copies(workload)):
                return False
            times = self.costs.copy_times(workload.num_stages)
            copying = with_copies(workload, times, objective).value
            self.bound = max(self.bound, copying)
            unlimited = (inf,) * workload.num_ranks
            workload = workload._replace(memory_limit=unlimited)
        elif not _has_memory(workload):
            return False
        self.bound = max(self.bound, known_bound(workload, objective).value)
        return True

    def decided(self) -> Iterator[Choice]:
        """Yield two choices that decide about the first undecided stage."""
        stage = self.recomputed.index(None)
        for again in (False, True):
            recomputed = list(self.recomputed)
            recomputed[stage] = again
            choice = self._made(tuple(recomputed))
            choice.bound = max(choice.bound, self.bound)
            yield choice

    def flipped(self, stages: range) -> Choice:
        """Return the choice with other decisions about some stages."""
        pairs = enumerate(self.recomputed)
        return self._made(tuple([again != (stage in stages) for stage, again in pairs]))

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


def recomputing(costs: Costs, recomputed: Decisions) -> Costs:
    """Return costs by stage if some stages recompute.

    A stage that recomputes holds its input from F until I, of the ``message_size`` of
    the stage before; the batch, the input of the first stage, does not count. Its I
    takes the time of F in addition, and as much memory as without recomputation.

    Examples
    --------
    >>> costs = recomputing(Costs(activation=4, message_size=1), (False, True))
    >>> costs.activation, costs.transient_activation, costs.backward_input
    ((4.0, 1.0), (0.0, 3.0), (1.0, 2.0))
    """
    n = len(recomputed)
    whole, after_input, transient = (list(each) for each in costs.memory(n))
    inputs = [0.0, *costs.by_stage("message_size", n)]
    times = costs.by_stage("backward_input", n)
    held = list(whole)
    for stage, again in enumerate(recomputed):
        if again is not False:
            held[stage] = min(whole[stage], inputs[stage])
            transient[stage] += whole[stage] - held[stage]
        if again:
            times[stage] += costs.by_stage("forward", n)[stage]
    return replace(
        costs,
        backward_input=tuple(times),
        activation=tuple(held),
        weight_activation=tuple(after_input),
        transient_activation=tuple(transient),
    )


def weight_memory(costs: Costs, workload: Workload, copies: float) -> tuple[float, ...]:
    """Return, by rank, the memory of the weights of its stages, with their copies.

    Examples
    --------
    >>> costs = Costs(weights=[1, 2, 3])
    >>> weight_memory(costs, costs.workload((0, 1, 0), 4), copies=4)
    (16.0, 8.0)
    """
    held = [0.0] * workload.num_ranks
    for rank, size in zip(workload.placement, costs.weight_memory(workload.num_stages)):
        held[rank] += copies * size
    return tuple(held)


def without_weights(workload: Workload, costs: Costs, copies: float) -> Workload:
    """Return a workload whose memory limits are what weights leave.

    Examples
    --------
    >>> costs = Costs(weights=[1, 2])
    >>> without_weights(costs.workload((0, 1), 4, 9), costs, copies=4).memory_limit
    (5.0, 1.0)
    """
    limits = map(sub, workload.memory_limit, weight_memory(costs, workload, copies))
    return workload._replace(memory_limit=tuple(limits))
