"""Schedules beyond the named ones, and what no schedule can be below: where advice asks the search and the bounds."""

from __future__ import annotations

from math import floor, inf

from minipipe.analysis.workload import Workload
from minipipe.errors import ScheduleError
from minipipe.schedules.schedule import Schedule
from minipipe.simulation.costs import Costs
from minipipe.simulation.greedy import greedy


def searched_schedule(costs: Costs, workload: Workload) -> Schedule | None:
    """Return a schedule made for a workload, or None where none is found within its memory.

    It is the greedy one, whose limit counts (stage, microbatch) pairs: as many of the largest as fit.

    Parameters
    ----------
    costs : Costs
        Those of the workload.
    workload : Workload
    """
    limits = []
    for rank, limit in enumerate(workload.memory_limit):
        own = [stage for stage, owner in enumerate(workload.placement) if owner == rank]
        footprint = workload.footprint
        pair = max(footprint.activation[s] + footprint.transient[s] for s in own)
        all_pairs = workload.num_microbatches * len(own)
        limits.append(all_pairs if limit == inf or not pair else min(all_pairs, floor(limit / pair)))
    try:
        return greedy(workload.num_microbatches, costs, workload.placement, limits, priority="IFW")
    except ScheduleError as error:
        if not error.problems[0].code.is_misuse:
            raise
        return None


def least_makespan(workload: Workload) -> tuple[float, str]:
    """Return a time below which no schedule of a workload is, and what says so: the rank that has most to do.

    Parameters
    ----------
    workload : Workload

    Examples
    --------
    >>> least_makespan(Costs(forward=[1, 3]).workload((0, 1), num_microbatches=4))
    (20.0, 'the work of rank 1')
    """
    work = [workload.work(rank) for rank in range(workload.num_ranks)]
    return max(work), f"the work of rank {work.index(max(work))}"
