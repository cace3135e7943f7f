"""A certificate: a schedule, the question that it answers, and how good it can be at most."""

from __future__ import annotations

from typing import NamedTuple

from minipipe.analysis.workload import Objective, Workload
from minipipe.schedules.schedule import Schedule


class Certificate(NamedTuple):
    """A schedule found for a workload, with a bound below which no schedule can be.

    Attributes
    ----------
    schedule : Schedule
    workload : Workload
    objective : Objective
        What ``value`` and ``bound`` count.
    value : float
        Of the schedule, in the unit of the times.
    bound : float
        No schedule of the workload has less.
    bound_by : str
        What proves the bound: the name of a bound of ``analysis/bounds.py``, or of an exact search.
    found_by : str
        What found the schedule.
    seconds : float
        The time that the search took.
    """

    schedule: Schedule
    workload: Workload
    objective: Objective
    value: float
    bound: float
    bound_by: str
    found_by: str
    seconds: float

    @property
    def gap(self) -> float:
        """How far the value is above the bound, relative to the bound: 0 where the schedule is proved optimal."""
        return self.value / self.bound - 1 if self.bound else 0.0
