"""What a step left behind on every rank, gathered: when each action ran, and what was held."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from minipipe.comm import ProcessGroup
from minipipe.pipeline.agreement import part_of
from minipipe.pipeline.executor import Record
from minipipe.schedules import ActionKind, Schedule, Span, Timeline

__all__ = ["MemoryPerMicrobatch", "gather_memory", "gather_timeline"]


class MemoryPerMicrobatch(NamedTuple):
    """What one microbatch holds, in bytes by stage: the names are those of :class:`minipipe.Costs`.

    Attributes
    ----------
    activation : tuple of int
        From F until B or I.
    weight_activation : tuple of int
        From I until W.
    """

    activation: tuple[int, ...]
    weight_activation: tuple[int, ...]


def gather_memory(group: ProcessGroup, record: Record, num_stages: int, timeout: float | None) -> MemoryPerMicrobatch:
    """Return what each stage held after F and after I of a step with one microbatch. Collective."""
    mine = np.zeros((2, num_stages), np.int64)
    for action, nbytes in record.held_bytes:
        if action.kind in (ActionKind.FORWARD, ActionKind.BACKWARD_INPUT):
            mine[int(action.kind is ActionKind.BACKWARD_INPUT), action.stage] = nbytes
    gathered = group.all_gather(mine, timeout=timeout, what=part_of("measure_memory"))
    activation, weight_activation = np.add.reduce(gathered)
    return MemoryPerMicrobatch(tuple(map(int, activation)), tuple(map(int, weight_activation)))


def gather_timeline(group: ProcessGroup, record: Record, schedule: Schedule, timeout: float | None) -> Timeline:
    """Return what every rank did, and when, in seconds from the beginning. Collective."""
    own_times = np.array([(span.start, span.end) for span in record.spans]).reshape(-1, 2)
    times = group.all_gather(own_times, timeout=timeout, what=part_of("timeline"))
    peaks = group.all_gather(np.array([record.peak_activations, record.peak_memory or 0]), timeout=timeout)
    origin = min(float(rank_times[0, 0]) for rank_times in times if len(rank_times))
    compute = schedule.without_communication().actions
    spans = tuple(
        tuple(Span(action, float(start) - origin, float(end) - origin) for action, (start, end) in zip(row, rank_times))
        for row, rank_times in zip(compute, times)
    )
    activations = tuple(int(peak[0]) for peak in peaks)
    measured = tuple(int(peak[1]) for peak in peaks) if record.peak_memory is not None else None
    return Timeline(schedule.name, spans, activations, measured, "s", note=group.note)
