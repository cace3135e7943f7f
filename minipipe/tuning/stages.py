"""Costs measured on ranks: the times of a pipeline's actions, the memory of its stages,
and messages.

If ranks outnumber cores, the wall time of an action includes the time in which its rank
had no core. Its cost is therefore the time for which its thread had a core, which
sharing does not stretch. The same clock measures the overhead between two actions.

Ranks do not get all of the cores: waiting ranks poll for messages, the system moves a
rank to an idle core late, and other programs run. The number of cores is therefore
fitted, such that the simulation of the measured steps takes as long as they did. A
watch warns if other programs had the cores.

Messages are measured between the ranks at hand or between ranks that mpirun starts.
Ping-pong gives the bandwidth. Latency, overhead and cores are measured in a small
pipeline over all ranks, because working ranks poll for messages between actions and may
share cores.

``mpirun -n 4 python -m minipipe.tuning.stages`` prints the costs of messages as JSON.
"""

from __future__ import annotations

import json
import socket
import sys
import warnings
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial, wraps
from itertools import chain
from statistics import median
from time import perf_counter, thread_time
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from minipipe.comm import ProcessGroup, init_process_group, objects, spawn
from minipipe.comm.job.guard import run_job
from minipipe.comm.job.host import core_times, launcher_of_ranks
from minipipe.core.comm.host import cores
from minipipe.core.execution.executor import Executor, Handlers, Pending
from minipipe.core.execution.record import Record
from minipipe.core.nn.sequential import parameters_of
from minipipe.core.schedules.action import (
    REDUCE_GRAD,
    Action,
    ActionKind,
    F,
    I,
    L,
    O,
    R,
    U,
    W,
)
from minipipe.core.schedules.action_table import Program, Schedule
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.core.specs import COUNT
from minipipe.core.values import Handler
from minipipe.errors import LaunchError
from minipipe.execution.batch import Batch, arrays_of
from minipipe.execution.building import build_stages
from minipipe.execution.checks.calls import part_of
from minipipe.execution.meter import MemoryMeter
from minipipe.execution.objective import BatchObjective
from minipipe.execution.plan import Plan
from minipipe.execution.row_handlers import handlers_of
from minipipe.execution.samples import samples
from minipipe.execution.sums import GradientSums
from minipipe.execution.timeline import gather_timeline
from minipipe.nn import Linear, MSELoss, Sequential
from minipipe.nn.fully_sharded import WholeLayers
from minipipe.schedules.analysis.replicas import pipelines_of
from minipipe.schedules.sequential import one_microbatch
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.fitting import fit_messages
from minipipe.schedules.simulation.simulator import simulate
from minipipe.schedules.simulation.timeline import Timeline
from minipipe.schedules.transforms import freeze_stages, split_backward
from minipipe.simulation.hosts import Hosts
from minipipe.tuning.memory import gradient_bytes

_MUCH = 0.2  # of the time of all ranks


class CoreWatch:
    """Measures for how long this rank has a core, and for how long it waits for one, in
    seconds since it was made.

    If a host has as many cores as ranks, no rank has to wait. If it has fewer, and no
    other program wants them, all cores work for the ranks while one of them waits: the
    ranks together wait at most (ranks / cores - 1) times as long as they have a core.
    More waiting is due to other programs, or to a limit set by the system.
    """

    def __init__(self) -> None:
        self._begun = np.array([*core_times(), perf_counter()])

    def elapsed(self) -> np.ndarray:
        """Return the seconds with a core, the seconds waiting for one, and the wall
        time; shape (3,).
        """
        return np.array([*core_times(), perf_counter()]) - self._begun

    def warn(self, group: ProcessGroup, hosts: Hosts | None) -> None:
        """Warn on rank 0 if the ranks waited for cores much longer than sharing
        explains. Collective.

        Parameters
        ----------
        group : ProcessGroup
        hosts : Hosts or None
            None if every rank has a core.
        """
        gathered = group.all_gather(self.elapsed(), what=part_of("measure_costs"))
        times = np.array(gathered)
        had, waited, wall = times.sum(axis=0)
        explained = 0.0
        if hosts is not None:
            for number, num_cores in enumerate(hosts.cores):
                ranks = np.equal(hosts.of_rank, number)
                crowding = max(0.0, ranks.sum() / num_cores - 1)
                explained += crowding * times[ranks, 0].sum()
        if group.rank == 0 and waited - explained > _MUCH * wall:
            sharing = ""
            if hosts:
                sharing = f"; sharing cores explains at most {explained:.3f} s of it"
            had_cores = f"the ranks had a core for {had:.3f} s of processor time"
            warnings.warn(
                f"These costs were measured on a busy machine: of {wall:.3f} s on all "
                f"ranks, {had_cores}, and waited for one for {waited:.3f} s{sharing}. "
                "Predictions from them may be inaccurate; measure again when no other "
                "program runs.",
                stacklevel=4,
            )


_KINDS = F, I, W, R
_PARTS = 2**12  # of the cores: finer than the precision of the times
# This part of the core time of waits counts as overhead: ranks poll for messages on
# cores that other ranks need, and on idle ones. Worked out from one run of all
# schedules, the median error of the predicted makespans was 3 and 11 % for 4 and 8
# ranks on two cores with none of it, 6 and 7 % with half, 8 and 9 % with all. Measured
# with half: 6.7 and 4.1 %.
_OF_WAITS = 0.5


def crowded_hosts(group: ProcessGroup, xp: ModuleType) -> Hosts | None:
    """Return the hosts of all ranks, if one of them has more ranks than cores;
    otherwise None. Collective.

    Parameters
    ----------
    group : ProcessGroup
    xp : module
        The array module that computes. On a GPU, where actions do not share cores, the
        result is None.
    """
    if xp.__name__ == "cupy":
        return None
    usable: dict[str, set[int]] = {}  # by the name of a host
    own_host = [socket.gethostname(), sorted(cores())]
    gathered = objects.gather(group, own_host, "measure_costs")
    for name, numbers in gathered:
        usable.setdefault(name, set()).update(numbers)
    names = list(usable)
    of_rank = tuple(names.index(name) for name, _ in gathered)
    hosts = Hosts(of_rank, tuple(float(len(each)) for each in usable.values()))
    return hosts if hosts.are_shared(()) else None


class CoreTimes(NamedTuple):
    """The core times of all ranks in one step, in seconds.

    Attributes
    ----------
    actions : array of shape (4, num_stages)
        By stage, the mean time of an F, an I, a W and an R; 0 if there is none.
    overhead : float
        The time between two actions, the mean of all ranks, including half of the waits
        for messages.
    """

    actions: np.ndarray
    overhead: float


class CoreClock:
    """An observer of runs: for how long its thread has a core, in the actions of a run
    and between them.

    Call :meth:`start` just before a run, and :meth:`stop` just after it.

    Parameters
    ----------
    num_stages : int
    """

    is_printed = True  # it observes compiled rows as well

    def __init__(self, num_stages: int) -> None:
        self._num_stages = num_stages

    def start(self) -> None:
        """Begin a run."""
        self._spent, self._ran = np.zeros((2, len(_KINDS), self._num_stages))
        self.waited = 0.0
        self._begun = thread_time()

    def stop(self) -> None:
        """End the run."""
        self._elapsed = thread_time() - self._begun

    def handlers(self, handlers: Handlers) -> Handlers:
        """Return handlers whose waits for messages are counted apart."""
        receives = (ActionKind.RECV_F, ActionKind.RECV_B)
        return {**handlers, **{kind: self._apart(handlers[kind]) for kind in receives}}

    def _apart(self, handler: Handler) -> Handler:
        @wraps(handler)
        def receive(executor: Executor, action: Action) -> Pending:
            return _TimedWait(handler(executor, action), self)

        return receive

    def begin(self, executor: Executor, action: Action) -> None:
        """Note when an action begins."""
        self._start = thread_time()
        self._waited_before = self.waited

    def end(self, executor: Executor, action: Action) -> None:
        """Add the time for which its thread had a core, without its wait for a
        message.
        """
        if action.kind in _KINDS:
            place = _KINDS.index(action.kind), action.stage
            waited = self.waited - self._waited_before
            self._spent[place] += thread_time() - self._start - waited
            self._ran[place] += 1

    def gather(self, group: ProcessGroup) -> CoreTimes:
        """Return the times of all ranks. Collective."""
        between = self._elapsed - self._spent.sum() - (1 - _OF_WAITS) * self.waited
        mine = np.stack([self._spent, self._ran, np.full_like(self._spent, between)])
        gathered = group.all_gather(mine, what=part_of("measure_costs"))
        spent, ran, overhead = np.add.reduce(gathered)
        return CoreTimes(spent / np.maximum(ran, 1), float(overhead[0, 0] / ran.sum()))


class _TimedWait(Pending):
    """A value whose wait is counted apart: the time that it takes of a core does not
    belong to an action.
    """

    def __init__(self, value: Pending, clock: CoreClock) -> None:
        self._value = value
        self._clock = clock

    def wait(self) -> Any:
        """Return the value."""
        start = thread_time()
        value = self._value.wait()
        self._clock.waited += thread_time() - start
        return value


def costs_on_shared_cores(
    costs: Costs,
    hosts: Hosts,
    program: Program,
    timelines: Sequence[Timeline],
    times: Sequence[CoreTimes],
    group: ProcessGroup | None = None,
) -> Costs:
    """Return costs that were measured on shared cores without the effect of sharing,
    and with the cores. Collective in a group, local without one.

    They are unchanged if even the fastest actions took much longer than they had a
    core: then actions wait for something else, such as a sleep or a device.

    Parameters
    ----------
    costs : Costs
        The measured costs, in wall time.
    hosts : Hosts
    program : Program
        The program that ran.
    timelines : sequence of Timeline
        One for each step.
    times : sequence of CoreTimes
        One for each step.
    group : ProcessGroup, optional
        Ranks that share the cores: one of them simulates, for all.
    """
    actions = np.median([step.actions for step in times], axis=0)
    # ranks for each core
    counts = enumerate(hosts.cores)
    crowd = max(hosts.of_rank.count(host) / number for host, number in counts)
    if _fastest(timelines, actions.shape[1]).sum() > 2 * crowd * actions.sum():
        return costs
    names = ("forward", "backward_input", "backward_weight")
    of_stages: dict[str, Any] = dict(zip(names, actions.tolist()))
    overhead = median(step.overhead for step in times)
    alone = replace(costs, **of_stages, overhead=overhead)
    makespan = median(timeline.makespan for timeline in timelines)
    part = np.ones(1)
    if group is None or group.rank == 0:
        part[0] = _part_of_cores(alone, hosts, program, makespan)
    if group is not None:
        part = group.broadcast(part, what=part_of("measure_costs"))
    return _with_cores(alone, hosts, part.item())


def _fastest(timelines: Sequence[Timeline], num_stages: int) -> np.ndarray:
    """Return the shortest wall time of an F, an I, a W and an R, by stage; shape (4,
    num_stages).
    """
    fastest = np.full((len(_KINDS), num_stages), np.inf)
    rows = (row for timeline in timelines for row in timeline.spans)
    for action, start, end in (span for row in rows for span in row):
        place = _KINDS.index(action.kind), action.stage
        fastest[place] = min(fastest[place], end - start)
    return np.where(np.isfinite(fastest), fastest, 0.0)


def _part_of_cores(
    costs: Costs, hosts: Hosts, program: Program, makespan: float
) -> float:
    """Return the fraction of the cores with which the program takes this long; at most
    1.
    """

    def is_enough(parts: int) -> bool:
        shared = _with_cores(costs, hosts, parts / _PARTS)
        return simulate(program, shared).makespan <= makespan

    return (1 + bisect_left(range(1, _PARTS), True, key=is_enough)) / _PARTS


def _with_cores(costs: Costs, hosts: Hosts, part: float) -> Costs:
    """Return the costs with this fraction of the cores."""
    if len(hosts.cores) == 1:
        return replace(costs, cores=part * hosts.cores[0])
    shares = tuple(part * number for number in hosts.cores)
    return replace(costs, cores=shares, hosts=hosts.of_rank)


MakeExecutor = Callable[..., Executor]


class MemoryPerMicrobatch(NamedTuple):
    """The bytes that one microbatch holds, by stage; the names are as in
    :class:`minipipe.Costs`.

    Attributes
    ----------
    activation : tuple of int
        From F until B or I.
    weight_activation : tuple of int
        From I until W.
    transient_activation : tuple of int
        In addition to ``activation`` while its B or I runs: recomputed activations.

    Examples
    --------
    >>> from minipipe import Costs
    >>> Costs(
    ...     **MemoryPerMicrobatch((800, 400), (200, 100), (0, 0))._asdict(),
    ...     memory_unit="bytes",
    ... ).weight_activation
    (200, 100)
    """

    activation: tuple[int, ...]
    weight_activation: tuple[int, ...]
    transient_activation: tuple[int, ...]


def measure_memory(
    make_executor: MakeExecutor, program: Program, batch: Batch
) -> MemoryPerMicrobatch:
    """Run the first microbatch of a batch alone, with each backward in halves; return
    the bytes held on each stage.

    Collective; leaves no gradients.

    Parameters
    ----------
    make_executor : function
        ``(program, handlers=…) -> Executor``, over this rank's stages.
    program : Program
        The program that places each stage on a rank; if a stage has replicas, the first
        one runs.
    batch : Batch
    """
    frozen: Collection[int] = program.frozen
    if program.is_forward_only:
        frozen = range(program.num_stages)
    placement = next(iter(pipelines_of(program)))
    alone = freeze_stages(one_microbatch(placement, program.num_ranks), frozen)
    executor = make_executor(lower(alone))
    meter = MemoryMeter(arrays_of(batch))
    # its graphs
    modules = [stage.module for stage in executor.stages.values()]
    whole = [WholeLayers(module, is_alone=True) for module in modules]  # its graphs
    try:
        for layers in whole:
            layers.wait()
        _run_without_trace(executor, batch, meter)
    finally:
        for layers in whole:
            layers.release()
    mine = np.zeros((3, program.num_stages), np.int64)
    for action, (after, recomputed) in meter.held_bytes.items():
        if action.kind is F:
            mine[0, action.stage] = after
        elif action.kind is I:
            mine[1:, action.stage] = after, recomputed
    held = np.add.reduce(
        executor.group.all_gather(mine, what=part_of("measure_memory"))
    )
    held[2] = np.maximum(held[2] - held[0], 0)  # beyond what is held after F
    return MemoryPerMicrobatch(*map(tuple, held.tolist()))


def measure_costs(
    make_executor: MakeExecutor,
    plan: Plan,
    batch: Batch,
    num_steps: int,
    sums: GradientSums | None = None,
    warns: bool = True,
) -> Costs:
    """Run a batch several times, with each backward in halves; return the costs that
    were measured.

    Collective; leaves no gradients, and changes no parameter. Parameters are as in
    :func:`measure_memory`, with a plan; the number of steps after two that are not
    measured; the gradient all-reduces over replicas; and whether rank 0 warns if other
    programs had the cores.

    Raises
    ------
    ArgumentError
        Code ``value``.
    """
    num_steps = COUNT.check("num_steps", num_steps)
    program = lower(split_backward(_of_costs(plan.schedule)))
    handlers = handlers_of((), plan.is_half)
    timelines = []
    times = []
    if U in plan.schedule.kinds:
        sums = None
    if sums is not None:
        handlers = sums.handlers(handlers)
    executor = make_executor(program, handlers=handlers)
    hosts = crowded_hosts(executor.group, executor.xp)
    clocks: list[CoreClock] = []
    if hosts is not None:
        clocks.append(CoreClock(executor.program.num_stages))
    for clock in clocks:
        executor = make_executor(program, handlers=clock.handlers(handlers))
    watch = CoreWatch()
    for _ in range(num_steps + 2):
        executor.group.barrier()
        record = _run_without_trace(executor, batch, *clocks, sums=sums)
        times += [clock.gather(executor.group) for clock in clocks]
        timelines.append(gather_timeline(executor.group, [record], program))
    if warns:
        watch.warn(executor.group, hosts)
    costs = Costs.measured(*timelines[2:])
    if hosts is not None:
        costs = costs_on_shared_cores(
            costs, hosts, program, timelines[2:], times[2:], executor.group
        )
    return _with_memory(costs, make_executor, plan, batch)


def _with_memory(
    costs: Costs, make_executor: MakeExecutor, plan: Plan, batch: Batch
) -> Costs:
    memory = measure_memory(make_executor, plan.program, batch)
    parts = map(plan.part, range(plan.schedule.num_stages))
    gradients = [gradient_bytes(parameters_of(part)) for part in parts]
    return replace(
        costs, **memory._asdict(), gradient_size=gradients, memory_unit="bytes"
    )


def _of_costs(schedule: Schedule) -> Schedule:
    """Return a schedule without the actions whose time is not a cost of a stage.

    Copies to a file are concurrent with computations. Updates, with their all-reduces,
    would change parameters.
    """
    others = {O, L}
    if U in schedule.kinds:
        others |= {U, REDUCE_GRAD}
    return schedule.without_kinds(lambda kind: kind.name in others)


def _run_without_trace(
    executor: Executor, batch: Batch, *observers: Any, sums: GradientSums | None = None
) -> Record:
    for stage in executor.stages.values():
        stage.begin()
    if sums is not None:
        sums.begin(accumulate=False)
    clocks = [observer for observer in observers if isinstance(observer, CoreClock)]
    for clock in clocks:
        clock.start()
    record = executor.run(batch, *observers)
    for clock in clocks:
        clock.stop()
    if sums is not None:
        sums.finish()
    for stage in executor.stages.values():
        stage.begin()
    return record


# -- messages --------------------------------------------------------------------------

_SIZES, _REPEATS = (1 << 10, 1 << 18), 40  # bytes; the cost is a line through these two
# of the small pipeline: a layer on each rank
_WIDTH = 64
_SAMPLES = 16
_MICROBATCHES = 16
_STEPS = 10
_THREADS = "thread ranks"
_MPI = "MPI ranks"


class Messages(NamedTuple):
    """The costs of messages, and of the bookkeeping between two actions.

    Attributes
    ----------
    latency : float
        Seconds of an empty message, from the send until it is received.
    bandwidth : float
        Bytes per second.
    overhead : float
        Seconds of a rank between two actions.
    cores : float, optional
        If ranks outnumber the cores of one host, the number of cores that they get.
    measured_on : str
        A description of the measured ranks.

    Examples
    --------
    >>> Messages(latency=2e-5, bandwidth=1e9).overhead
    0.0
    """

    latency: float = 0.0
    bandwidth: float = float("inf")
    overhead: float = 0.0
    cores: float | None = None
    measured_on: str = "assumed"


def measure_messages(group: ProcessGroup, measured_on: str) -> Messages:
    """Measure messages between neighbours, one pair after another, and then in a small
    pipeline over all ranks.

    Collective. Rank 0 returns the result of all pairs, the others an empty one.

    Parameters
    ----------
    group : ProcessGroup
    measured_on : str
        The description of the ranks for the result.
    """
    pairs = (_pair(group, rank) for rank in range(group.size - 1))
    samples = np.array([*chain.from_iterable(pairs)]).reshape(-1, 2)
    gathered = group.all_gather(
        samples, what="the times of messages, which are measured for schedule='auto',"
    )
    at_work = _costs_at_work(group)
    hosts = crowded_hosts(group, np)
    if group.rank:
        return Messages()
    pooled = chain.from_iterable(of_rank.tolist() for of_rank in gathered)
    latency, bandwidth = fit_messages([(size, time) for size, time in pooled])
    cores: float | None = None
    if isinstance(at_work.cores, float):
        cores = at_work.cores
    elif hosts is not None and len(hosts.cores) == 1:
        cores = hosts.cores[0]
    return Messages(
        max(latency, at_work.latency), bandwidth, at_work.overhead, cores, measured_on
    )


def _pair(group: ProcessGroup, first: int) -> list[tuple[float, float]]:
    """Send arrays to the next rank and back; return, on the first rank of the pair,
    (bytes, seconds of one message).
    """
    group.barrier()
    second = first + 1
    quartiles = []
    sizes = _SIZES if group.rank in (first, second) else ()
    for size in sizes:
        array = np.zeros(size, np.uint8)
        times = []
        for _ in range(_REPEATS):
            start = perf_counter()
            if group.rank == first:
                group.send(array, second)
                group.recv(second)
            else:
                group.send(group.recv(first), first)
            times.append((perf_counter() - start) / 2)
        # The lower quartile: another program on the core makes some messages late.
        if group.rank == first:
            quartiles.append((float(size), sorted(times)[_REPEATS // 4]))
    group.barrier()
    return quartiles


def _costs_at_work(group: ProcessGroup) -> Costs:
    """Return the costs of a pipeline with small layers, one on each rank.
    Collective.
    """
    model = Sequential(*(Linear(_WIDTH, _WIDTH) for _ in range(group.size)))
    plan = Plan(model, num_ranks=group.size, num_microbatches=_MICROBATCHES)
    stages = build_stages(plan, group.rank, seed=0)
    sizes = (_SAMPLES,) * _MICROBATCHES
    objective = BatchObjective(MSELoss())
    ones = samples(np.ones((sum(sizes), _WIDTH), np.float32), "inputs").cut(sizes)
    objective.begin(sizes, ones)
    batch = Batch("measure_costs", sizes, ones, objective, 0, 0, 0)
    handlers = handlers_of(())
    make_executor = partial(
        Executor, stages=stages, group=group, xp=np, handlers=handlers
    )
    # advice says how busy it was
    return measure_costs(make_executor, plan, batch, _STEPS, warns=False)


def messages_of_this_machine(num_ranks: int) -> Messages:
    """Measure messages between ranks that mpirun starts or, without mpirun, between
    thread ranks.

    Local; starts processes. The result says which ranks were measured.

    Parameters
    ----------
    num_ranks : int

    Raises
    ------
    LaunchError
        Code ``unavailable``, if mpirun cannot start the ranks.
    """
    command = launcher_of_ranks()
    if command is None:
        return spawn(lambda group: measure_messages(group, _THREADS), num_ranks)[0]
    python = [sys.executable, "-m", "minipipe.tuning.stages"]
    program = [command, "-n", str(num_ranks), *python]
    done = run_job(program)
    if done.code:
        failure = f"{command} -n {num_ranks} cannot start ranks to measure messages"
        raise LaunchError("unavailable", f"{failure}: {done.cause}")
    return Messages(**json.loads(done.out.splitlines()[-1]))


def main() -> None:
    """Measure as one rank of a job; rank 0 prints."""
    with init_process_group() as group:
        found = measure_messages(group, _MPI)
        if group.rank == 0:
            print(json.dumps(found._asdict()))


if __name__ == "__main__":
    main()
