"""The costs of the stages of a pipeline, measured on their ranks: the times of actions, and the memory they hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from minipipe.comm import ProcessGroup
from minipipe.errors import ArgumentError
from minipipe.execution.batch import Batch
from minipipe.execution.checks import part_of
from minipipe.execution.executor import Executor, Observer
from minipipe.execution.observers import MemoryMeter
from minipipe.execution.record import Record
from minipipe.execution.timeline import gather_timeline
from minipipe.schedules.action import ActionKind
from minipipe.schedules.action_table import Program
from minipipe.schedules.analysis.lowering import lower
from minipipe.schedules.sequential import one_microbatch
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.transforms import freeze_stages, split_backward
from minipipe.tuning.core_times import CoreClock, CoreWatch, costs_on_shared_cores, crowded_hosts

MakeExecutor = Callable[[Program], Executor]


class MemoryPerMicrobatch(NamedTuple):
    """The bytes that one microbatch holds, by stage; the names are those of :class:`minipipe.Costs`.

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
    >>> Costs(**MemoryPerMicrobatch((800, 400), (200, 100), (0, 0))._asdict(), memory_unit="bytes").weight_activation
    (200, 100)
    """

    activation: tuple[int, ...]
    weight_activation: tuple[int, ...]
    transient_activation: tuple[int, ...]


def measure_memory(make_executor: MakeExecutor, program: Program, batch: Batch) -> MemoryPerMicrobatch:
    """Run the first microbatch of a batch alone, with each backward in halves; return the bytes held on each stage.

    Collective; leaves no gradients.

    Parameters
    ----------
    make_executor : function
        ``program -> Executor``, over this rank's stages.
    program : Program
        Says on which rank each stage is.
    batch : Batch
    """
    frozen = range(program.num_stages) if program.is_forward_only else program.frozen
    alone = freeze_stages(one_microbatch(program.placement, program.num_ranks), frozen)
    executor = make_executor(lower(alone))
    alone_batch = replace(batch, slices=batch.slices[:1])
    meter = MemoryMeter(alone_batch.arrays)
    _run_without_trace(executor, alone_batch, meter)
    return _gather_memory(executor.group, meter, program.num_stages)


def measure_costs(make_executor: MakeExecutor, program: Program, batch: Batch, num_steps: int) -> Costs:
    """Run a batch several times, with each backward in halves; return the costs that were measured.

    Collective; leaves no gradients, and changes no parameter. Parameters are those of :func:`measure_memory`, and the
    number of steps after one that is not measured. ``core_times.py`` describes the costs of ranks that share cores.
    Rank 0 warns where other programs had the cores.

    Raises
    ------
    ArgumentError
        Code ``value``.
    """
    if not isinstance(num_steps, int) or num_steps < 1:
        raise ArgumentError("value", f"num_steps is {num_steps!r}; expected a whole number, at least 1.")
    executor, timelines, times = make_executor(lower(split_backward(program.schedule))), [], []
    hosts = crowded_hosts(executor.group, executor.xp)
    watch = CoreWatch()
    for _ in range(num_steps + 1):
        executor.group.barrier()
        clocks = [] if hosts is None else [CoreClock(executor.program.num_stages)]
        record = _run_without_trace(executor, batch, *clocks)
        times += [clock.gather(executor.group) for clock in clocks]  # first: what comes between is counted as overhead
        timelines.append(gather_timeline(executor.group, [record], executor.program))
    watch.warn(executor.group, hosts)
    costs = Costs.measured(*timelines[1:])
    if hosts is not None:
        costs = costs_on_shared_cores(costs, hosts, executor.program, timelines[1:], times[1:])
    memory = measure_memory(make_executor, program, batch)
    return replace(costs, **memory._asdict(), memory_unit="bytes")


def _run_without_trace(executor: Executor, batch: Batch, *observers: Observer) -> Record:
    for stage in executor.stages.values():
        stage.begin()
    record = executor.run(batch, *observers)
    for stage in executor.stages.values():
        stage.begin()
    return record


def _gather_memory(group: ProcessGroup, meter: MemoryMeter, num_stages: int) -> MemoryPerMicrobatch:
    """Return the bytes held by each stage after F, after I, and during recomputation, in a step of one microbatch.

    Collective.
    """
    mine = np.zeros((3, num_stages), np.int64)
    for action, (after, recomputed) in meter.held_bytes.items():
        if action.kind is ActionKind.FORWARD:
            mine[0, action.stage] = after
        elif action.kind is ActionKind.BACKWARD_INPUT:
            mine[1, action.stage], mine[2, action.stage] = after, recomputed
    gathered = group.all_gather(mine, what=part_of("measure_memory"))
    activation, weight_activation, recomputed = np.add.reduce(gathered)
    transient = np.maximum(recomputed - activation, 0)
    return MemoryPerMicrobatch(*(tuple(map(int, held)) for held in (activation, weight_activation, transient)))
