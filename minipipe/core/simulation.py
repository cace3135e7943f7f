"""Simulation of a schedule: its times, and the most that each rank holds.

``minipipe.simulate`` is the same with costs that are measured or read, ranks that share
cores and links, and several steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from minipipe.core.flow import flow_of
from minipipe.core.memory import pairs_of
from minipipe.core.times import Rates, Task, times

UNITS = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}
"""The times of computations, by kind, unless they are given."""


class Simulated(NamedTuple):
    """The result of :func:`simulate`.

    Attributes
    ----------
    tasks : list of list of Task
        By rank, in the order of its row: instructions with start and end.
    makespan : float
        From the first start to the last end.
    peak_activations : tuple of int
        By rank, the most (stage, microbatch) pairs held at once.
    """

    tasks: list[list[Task]]
    makespan: float
    peak_activations: tuple[int, ...]


def simulate(
    table: Any, units: Mapping[str, float] = UNITS, message_time: float = 0.0
) -> Simulated:
    """Return when each instruction of a legal schedule starts and ends.

    Local; no messages.

    Parameters
    ----------
    table : Schedule
        Legal.
    units : mapping of str to float
        The times of computations, by kind.
    message_time : float
        The time of a message between two ranks, in the same unit.

    Examples
    --------
    >>> from minipipe import schedules
    >>> result = simulate(schedules.one_f_one_b(4, 8))
    >>> result.makespan, result.peak_activations
    (33.0, (4, 3, 2, 1))
    """
    flow = flow_of(table)
    durations: dict[str, Sequence[float]] = {}
    for kind, time in units.items():
        durations[kind] = [time] * table.num_stages
    result = times(flow, Rates(durations, [message_time] * table.num_stages))
    held = pairs_of(flow)
    peaks = []
    for rank in range(table.num_ranks):
        peaks.append(max((int(during) for during, _ in held.levels(rank)), default=0))
    return Simulated(result.tasks, result.latest, tuple(peaks))
