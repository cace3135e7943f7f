"""Schedules beyond the named ones, and what no schedule can be below: where advice asks the search and the bounds."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from minipipe.errors import ScheduleError
from minipipe.schedules.action_table import Schedule
from minipipe.schedules.analysis.bounds import lower_bound
from minipipe.schedules.analysis.workload import Objective, Workload
from minipipe.schedules.search.finding import find_schedule

_ACTIONS_A_SECOND = 200_000  # of schedules that are tried, on one core of 2024
_SLOWEST = 4  # times as long as that core the search may take


def searched_schedule(workload: Workload, seconds: float) -> Schedule | None:
    """Return a schedule that was searched for a workload, or None where one microbatch is beyond its memory.

    Parameters
    ----------
    workload : Workload
    seconds : float
        How much to search, above 0: as many schedules are tried as in so long a time on a quiet core. So what is found
        does not depend on the machine or its load, unless they make it more than four times slower: then it ends.

    Examples
    --------
    >>> from minipipe import Costs
    >>> searched_schedule(Costs().workload((0, 1), num_microbatches=4, memory_limit=0.5), seconds=0.1) is None
    True
    """
    try:
        evaluations = int(seconds * _ACTIONS_A_SECOND / (3 * workload.num_stages * workload.num_microbatches)) + 1
        limit = _SLOWEST * seconds
        return find_schedule(workload, Objective.MAKESPAN, limit, evaluations=evaluations).schedule
    except ScheduleError as error:
        if not error.problems[0].code.is_misuse:
            raise
        return None


def least_makespan(workload: Workload, cores: float | Sequence[float] | None) -> tuple[float, str]:
    """Return a time below which no schedule of a workload is, and the reason.

    Parameters
    ----------
    workload : Workload
    cores : float or sequence of float, optional
        How much of the cores the ranks share; by host, if there are several.

    Examples
    --------
    >>> from minipipe import Costs
    >>> workload = Costs(forward=[1, 3]).workload((0, 1), num_microbatches=4)
    >>> least_makespan(workload, cores=None)[0], least_makespan(workload, cores=1)
    (21.0, (32.0, 'All ranks together compute for 32 on cores that they share.'))
    """
    bound = lower_bound(workload, Objective.MAKESPAN)
    work = sum(map(workload.work, range(workload.num_ranks)))
    shared = float(np.sum(cores)) if cores is not None else inf
    if work / shared > bound.value:
        return work / shared, f"All ranks together compute for {work:g} on cores that they share."
    return bound.value, bound.reason
