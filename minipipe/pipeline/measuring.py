"""Measuring a pipeline: when its actions ran, how much memory they hold, what they cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from minipipe.analysis.dependencies import Dependencies, Value
from minipipe.analysis.lowering import lower
from minipipe.comm import ProcessGroup
from minipipe.pipeline.consistency import part_of
from minipipe.pipeline.executor import Executor
from minipipe.pipeline.microbatch import Batch
from minipipe.pipeline.record import Record
from minipipe.schedules.action import ActionKind
from minipipe.schedules.frozen import freeze_stages
from minipipe.schedules.program import Program
from minipipe.schedules.sequential import one_microbatch
from minipipe.schedules.split_backward import split_backward
from minipipe.simulation.costs import Costs
from minipipe.simulation.message import Message
from minipipe.simulation.span import Span
from minipipe.simulation.timeline import Timeline

MakeExecutor = Callable[[Program], Executor]


class MemoryPerMicrobatch(NamedTuple):
    """What one microbatch holds, in bytes by stage: the names are those of :class:`minipipe.Costs`.

    Attributes
    ----------
    activation : tuple of int
        From F until B or I.
    weight_activation : tuple of int
        From I until W.
    transient_activation : tuple of int
        Beyond ``activation`` while its B or I runs: recomputed activations.

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
    executor.measures_memory = True
    record = _run_without_trace(executor, replace(batch, slices=batch.slices[:1]))
    return _gather_memory(executor.group, record, program.num_stages)


def measure_costs(make_executor: MakeExecutor, program: Program, batch: Batch, num_steps: int) -> Costs:
    """Run a batch several times, with each backward in halves; return the costs that were measured.

    Collective; leaves no gradients, and changes no parameter. Parameters are those of :func:`measure_memory`, and the
    number of steps after one that is not measured.
    """
    executor, timelines = make_executor(lower(split_backward(program.schedule))), []
    for _ in range(num_steps + 1):
        executor.group.barrier()
        record = _run_without_trace(executor, batch)
        timelines.append(gather_timeline(executor.group, record, executor.program))
    memory = measure_memory(make_executor, program, batch)
    return replace(Costs.measured(*timelines[1:]), **memory._asdict(), memory_unit="bytes")


def _run_without_trace(executor: Executor, batch: Batch) -> Record:
    for stage in executor.stages.values():
        stage.zero_grad()
    record = executor.run(batch)
    for stage in executor.stages.values():
        stage.zero_grad()
    return record


def _gather_memory(group: ProcessGroup, record: Record, num_stages: int) -> MemoryPerMicrobatch:
    """Return the bytes held by each stage after F, after I, and during recomputation, in a step of one microbatch.

    Collective.
    """
    mine = np.zeros((3, num_stages), np.int64)
    for action, after, recomputed in record.held_bytes:
        if action.kind is ActionKind.FORWARD:
            mine[0, action.stage] = after
        elif action.kind is ActionKind.BACKWARD_INPUT:
            mine[1, action.stage], mine[2, action.stage] = after, recomputed
    gathered = group.all_gather(mine, what=part_of("measure_memory"))
    activation, weight_activation, recomputed = np.add.reduce(gathered)
    transient = np.maximum(recomputed - activation, 0)
    return MemoryPerMicrobatch(*(tuple(map(int, held)) for held in (activation, weight_activation, transient)))


def gather_timeline(group: ProcessGroup, record: Record, program: Program) -> Timeline:
    """Return the measured timeline of all ranks, in seconds from the beginning. Collective."""
    own_times = np.array([(start, end) for start, end, _ in record.ran]).reshape(-1, 2) + group.clock_offset
    times = group.all_gather(own_times, what=part_of("timeline"))
    peaks = group.all_gather(np.array([_peak_activations(record, program, group.rank)]))
    own_memory = np.array(record.memory, np.int64).reshape(-1, 2)
    memory = [held.reshape(-1, 2).T.tolist() for held in group.all_gather(own_memory)]
    origin = min(float(rank_times[0, 0]) for rank_times in times if len(rank_times))
    spans = tuple(
        tuple(Span(action, float(start) - origin, float(end) - origin) for action, (start, end) in zip(row, rank_times))
        for row, rank_times in zip(program.schedule.actions, times)
    )
    is_memory_known = all(len(after) == len(row) for (after, _), row in zip(memory, spans))  # by all ranks
    return Timeline(
        program.title,
        spans,
        tuple(int(peak[0]) for peak in peaks),
        tuple(max(during, default=0) for _, during in memory) if is_memory_known else None,
        "s",
        note=group.note,
        memory=tuple(tuple(after) for after, _ in memory) if is_memory_known else None,
        memory_during=tuple(tuple(during) for _, during in memory) if is_memory_known else None,
        measured_messages=_gather_messages(group, record, program, origin),
        is_measured=True,
    )


def _peak_activations(record: Record, program: Program, rank: int) -> int:
    """Return the most (stage, microbatch) pairs that a rank held at once; a frozen F holds its own while it runs."""
    held, peak = dict.fromkeys(program.schedule.stages_of(rank), 0), 0
    for action, (_, _, after) in zip(program.schedule.actions[rank], record.ran):
        held[action.stage] = after
        only_now = action.kind is ActionKind.FORWARD and action.stage < program.first_backward_stage
        peak = max(peak, sum(held.values()) + only_now)
    return peak


def _gather_messages(group: ProcessGroup, record: Record, program: Program, origin: float) -> tuple[Message, ...]:
    """Return every message between ranks, in the order in which they were sent. Collective.

    Every rank knows the program of all ranks, so only times need to be exchanged: of each SEND and of each RECV, in the
    order of the program.
    """
    sends, receives = _values(program, "send"), _values(program, "receive")
    sent_at = np.array([record.sent[value] for value in sends[group.rank]]) + group.clock_offset
    receipts = np.array([record.received[value] for value in receives[group.rank]]).reshape(-1, 3)
    receipts[:, :2] += group.clock_offset
    all_sent_at = group.all_gather(sent_at)
    all_receipts = group.all_gather(receipts)
    sent = {
        value: (rank, float(time) - origin)
        for rank, values in enumerate(sends)
        for value, time in zip(values, all_sent_at[rank])
    }
    as_written, messages = Dependencies(program).as_written, []
    for rank, values in enumerate(receives):
        for value, (awaited_from, arrived, size) in zip(values, all_receipts[rank].tolist()):
            source, start = sent[value]
            producer, consumer = as_written(value.producer), as_written(value.consumer)
            was_awaited = awaited_from - origin <= start
            messages.append(Message(producer, consumer, source, rank, start, arrived - origin, was_awaited, size))
    return tuple(sorted(messages, key=attrgetter("sent", "arrived")))


def _values(program: Program, half: str) -> list[list[Value]]:
    """Return, by rank, the values of its sends (``"send"``) or receives (``"receive"``), in its order."""
    messages = ([(a, Value.carried_by(a)) for a in row if a.kind.is_communication] for row in program.actions)
    return [[value for action, value in row if action == getattr(value, half)] for row in messages]
