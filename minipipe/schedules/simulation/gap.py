"""The gap: how far a timeline is above the best that its memory allows."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from minipipe.schedules.action import ActionKind
from minipipe.schedules.action_table import ActionTable
from minipipe.schedules.analysis.bounds import Bound, lower_bound
from minipipe.schedules.analysis.workload import Objective, Workload
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.timeline import Timeline


class Gap(NamedTuple):
    """What a schedule takes, and a bound below which no schedule of its stages and memory is.

    Attributes
    ----------
    objective : Objective
    workload : Workload
        What all schedules have to do. Each rank may hold as much as the rank of this one that holds most.
    value : float
        Makespan or longest own span, in the unit of the times.
    bound : Bound
    """

    objective: Objective
    workload: Workload
    value: float
    bound: Bound

    @property
    def relative(self) -> float:
        """How far the value is above the bound, relative to the bound; at most that is left to gain."""
        return max(0.0, self.value / self.bound.value - 1) if self.bound.value else 0.0


def gaps(schedule: ActionTable, costs: Costs, timeline: Timeline) -> tuple[Gap, ...]:
    """Return the gaps of makespan and longest own span; none for several steps, or where stages have no backward.

    Parameters
    ----------
    schedule : Schedule or Program
        One step.
    costs : Costs
    timeline : Timeline
        ``simulate(schedule, costs)``.

    Notes
    -----
    Each rank of the best schedule may hold as much as the rank of this one that holds most: ranks are equal machines.
    It may split backwards that are whole here.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> schedule = schedules.one_f_one_b(4, 8)
    >>> makespan, span = gaps(schedule, Costs(), simulate(schedule))
    >>> makespan.value, makespan.bound.value, f"{makespan.relative:.1%}"
    (33.0, 27.0, '22.2%')
    """
    if timeline.num_steps > 1 or schedule.is_forward_only or schedule.frozen:
        return ()
    memory = max(timeline.peak_memory or (inf,))
    workload = workload_of(schedule, costs, memory)
    values = {Objective.MAKESPAN: timeline.makespan, Objective.SPAN: timeline.cost}
    return tuple(
        Gap(objective, workload, value, lower_bound(workload, objective)) for objective, value in values.items()
    )


def workload_of(schedule: ActionTable, costs: Costs, memory_limit: float = inf) -> Workload:
    """Return what a schedule does. A whole backward is I and W without overhead, and never holds what only W needs.

    Parameters
    ----------
    schedule : ActionTable
    costs : Costs
    memory_limit : float
        Of each rank.

    Examples
    --------
    >>> from minipipe import schedules
    >>> workload_of(schedules.gpipe(2, 4), Costs(overhead=0.5)).overhead
    0.0
    """
    workload = costs.workload(schedule.placement, schedule.num_microbatches)
    workload = workload._replace(memory_limit=(memory_limit,) * schedule.num_ranks)
    if ActionKind.BACKWARD not in schedule.kinds:
        return workload
    activation, weight_activation, _ = workload.footprint
    least = tuple(map(min, zip(activation, weight_activation)))
    return workload._replace(overhead=0.0, footprint=workload.footprint._replace(weight_activation=least))
