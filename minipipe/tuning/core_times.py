"""Costs of ranks that share cores: what their actions take of a core, and how much of the cores the ranks get.

Where ranks outnumber cores, an action seems longer whenever its rank loses the core. So its cost is the time for which
its thread had a core, which sharing does not stretch. The same clock tells the overhead between two actions.

Ranks do not get all of the cores: those that wait look for messages, the system moves a rank to an idle core late, and
other programs run. So the cores that the ranks get are fitted: as many as let the simulation of the steps that were
measured take as long as they took.
"""

from __future__ import annotations

import socket
import warnings
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter, thread_time
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from minipipe.comm import ProcessGroup, Request
from minipipe.comm.job.host import core_times, cores
from minipipe.execution.batch import Batch
from minipipe.execution.checks import part_of
from minipipe.execution.executor import Executor, Step
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.action_table import Program
from minipipe.schedules.analysis.dependencies import Value
from minipipe.schedules.simulation.costs import Costs, Hosts
from minipipe.schedules.simulation.simulator import simulate
from minipipe.schedules.simulation.timeline import Timeline

_MUCH = 0.2  # of the time of all ranks


class CoreWatch:
    """Since it was made: for how long this rank had a core, and for how long it waited for one, in seconds.

    Where a host has as many cores as ranks, none has to wait. Where it has fewer and nobody else wants them, all of its
    cores work for the ranks while one of them waits: the ranks together wait at most (ranks / cores - 1) times as long
    as they have a core. What is beyond that went to other programs, or to a limit that the system sets.
    """

    def __init__(self) -> None:
        self._begun = np.array([*core_times(), perf_counter()])

    def elapsed(self) -> np.ndarray:
        """Return the seconds with a core, waiting for one, and of all; shape (3,)."""
        return np.array([*core_times(), perf_counter()]) - self._begun

    def warn(self, group: ProcessGroup, hosts: Hosts | None) -> None:
        """Warn on rank 0, if the ranks waited for cores by far longer than sharing them explains. Collective.

        Parameters
        ----------
        group : ProcessGroup
        hosts : Hosts or None
            None where every rank has a core.
        """
        times = np.array(group.all_gather(self.elapsed(), what=part_of("measure_costs")))
        had, waited, wall = times.sum(axis=0)
        explained = 0.0
        for number, num_cores in enumerate(() if hosts is None else hosts.cores):
            ranks = np.equal(hosts.of_rank if hosts else (), number)
            explained += max(0.0, ranks.sum() / num_cores - 1) * times[ranks, 0].sum()
        if group.rank == 0 and waited - explained > _MUCH * wall:
            sharing = f"; that they share cores explains {explained:.3f} s of it at most" if hosts else ""
            warnings.warn(
                f"These costs were measured on a busy machine: of {wall:.3f} s on all ranks, the ranks had a core for "
                f"{had:.3f} s of processor time, and waited for one for {waited:.3f} s{sharing}. A prediction from "
                "them may be far from what is measured, now and later; measure again when no other program runs.",
                stacklevel=4,
            )


_KINDS = (ActionKind.FORWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)
_MOST_CORES, _NAME = 1024, 64  # of a host; bytes of its name
_ROUNDS = 30  # of bisection: more than the times are worth
# Of what a wait takes of a core, this part counts as overhead: some looks for a message are taken on a core that
# another rank has a use for, some on an idle one. Worked out from one run of all schedules, the median error of the
# predicted makespans was 3 and 11 % for 4 and 8 ranks on two cores with none of it, 6 and 7 % with half, 8 and 9 % with
# all. Measured with half: 6.7 and 4.1 %.
_OF_WAITS = 0.5


def crowded_hosts(group: ProcessGroup, xp: ModuleType) -> Hosts | None:
    """Return the hosts of all ranks, if one of them has more ranks than cores; otherwise None. Collective.

    Parameters
    ----------
    group : ProcessGroup
    xp : module
        The array module that computes. On a GPU it is not the cores that actions share: None.
    """
    if xp.__name__ == "cupy":
        return None
    told = np.zeros(_NAME + _MOST_CORES, np.uint8)
    name = socket.gethostname().encode()[:_NAME]
    told[: len(name)] = list(name)
    told[_NAME + np.array([core % _MOST_CORES for core in cores()])] = 1
    everybody = group.all_gather(told, what=part_of("measure_costs"))
    names = [part[:_NAME].tobytes() for part in everybody]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    usable = np.zeros((len(numbers), _MOST_CORES), np.uint8)
    for name_there, part in zip(names, everybody):
        usable[numbers[name_there]] |= part[_NAME:]
    hosts = Hosts(tuple(numbers[name] for name in names), tuple(map(float, usable.sum(axis=1))))
    return hosts if hosts.are_shared(()) else None


class CoreTimes(NamedTuple):
    """For how long ranks had a core in one step, in seconds.

    Attributes
    ----------
    actions : array of shape (3, num_stages)
        The mean of an F, an I and a W, by stage; 0 where there is none.
    overhead : float
        Between two actions, the mean of all ranks; of waits for messages, half.
    """

    actions: np.ndarray
    overhead: float


class CoreClock:
    """An observer of one run: for how long its thread has a core, in its actions and between them.

    Make it just before the run, and call :meth:`gather` just after it.

    Parameters
    ----------
    num_stages : int
    """

    def __init__(self, num_stages: int) -> None:
        self._spent, self._ran = np.zeros((2, len(_KINDS), num_stages))
        self.waited, self._begun = 0.0, thread_time()

    def watch(self, action: Action, step: Step) -> Step:
        """Return a step whose time on a core is measured, without its wait for a message."""
        if action.kind in (ActionKind.RECV_F, ActionKind.RECV_B):
            value = Value.carried_by(action)

            def receive(executor: Executor, batch: Batch) -> None:
                step(executor, batch)
                executor.box[value] = _TimedRequest(executor.box[value], self)

            return receive
        if action.kind not in _KINDS:
            return step
        place = _KINDS.index(action.kind), action.stage

        def compute(executor: Executor, batch: Batch) -> None:
            start, waited = thread_time(), self.waited
            step(executor, batch)
            self._spent[place] += thread_time() - start - (self.waited - waited)
            self._ran[place] += 1

        return compute

    def gather(self, group: ProcessGroup) -> CoreTimes:
        """Return the times of all ranks. Collective."""
        between = thread_time() - self._begun - self._spent.sum() - (1 - _OF_WAITS) * self.waited
        mine = np.stack([self._spent, self._ran, np.full_like(self._spent, between)])
        spent, ran, overhead = np.add.reduce(group.all_gather(mine, what=part_of("measure_costs")))
        return CoreTimes(spent / np.maximum(ran, 1), float(overhead[0, 0] / ran.sum()))


class _TimedRequest(NamedTuple):
    """A request whose wait is counted apart: the time that it takes of a core does not belong to an action."""

    request: Request
    clock: CoreClock

    def wait(self) -> Any:
        start = thread_time()
        message = self.request.wait()
        self.clock.waited += thread_time() - start
        return message


def costs_on_shared_cores(
    costs: Costs, hosts: Hosts, program: Program, timelines: Sequence[Timeline], times: Sequence[CoreTimes]
) -> Costs:
    """Return costs as they were measured on cores that ranks share, without the sharing, and with the cores. Local.

    They stay as they are where even the fastest actions took by far more time than they had a core: then they wait for
    something else, such as a sleep or a device, and sharing is not what stretches them.

    Parameters
    ----------
    costs : Costs
        As measured, by a clock on the wall.
    hosts : Hosts
    program : Program
        What ran.
    timelines : sequence of Timeline
        One for each step.
    times : sequence of CoreTimes
        Likewise.
    """
    actions = np.median([step.actions for step in times], axis=0)
    if _fastest(timelines, actions.shape[1]).sum() > 2 * _crowd(hosts) * actions.sum():
        return costs
    forward, backward_input, backward_weight = actions.tolist()
    alone = replace(
        costs,
        forward=forward,
        backward_input=backward_input,
        backward_weight=backward_weight,
        overhead=median(step.overhead for step in times),
    )
    return _with_cores(alone, hosts, program, median(timeline.makespan for timeline in timelines))


def _fastest(timelines: Sequence[Timeline], num_stages: int) -> np.ndarray:
    """Return the shortest time of an F, an I and a W on the wall, by stage; shape (3, num_stages)."""
    fastest = np.full((len(_KINDS), num_stages), np.inf)
    for action, start, end in (span for timeline in timelines for row in timeline.spans for span in row):
        place = _KINDS.index(action.kind), action.stage
        fastest[place] = min(fastest[place], end - start)
    return np.where(np.isfinite(fastest), fastest, 0.0)


def _crowd(hosts: Hosts) -> float:
    """Return how many ranks there are for a core, where there are most."""
    return max(hosts.of_rank.count(host) / number for host, number in enumerate(hosts.cores))


def _with_cores(costs: Costs, hosts: Hosts, program: Program, makespan: float) -> Costs:
    """Return the costs with as many of the cores as let the program take this long: all, if it is shorter with all."""

    def with_part(part: float) -> Costs:
        if len(hosts.cores) == 1:
            return replace(costs, cores=part * hosts.cores[0])
        return replace(costs, cores=tuple(part * number for number in hosts.cores), hosts=hosts.of_rank)

    low, high = 0.0, 1.0
    if simulate(program, with_part(high)).makespan >= makespan:
        return with_part(high)
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        if simulate(program, with_part(middle)).makespan > makespan:
            low = middle
        else:
            high = middle
    return with_part(high)
