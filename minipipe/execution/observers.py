"""Observers of an executor: neighbouring W computed together, a journal on standard error, a meter of held bytes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from time import perf_counter

from minipipe.autograd import Node, WeightWork
from minipipe.autograd.backend import Array
from minipipe.autograd.memory import held_bytes, observe_recomputation
from minipipe.comm import ProcessGroup
from minipipe.execution.batch import Batch
from minipipe.execution.executor import Executor, Observer, Step
from minipipe.execution.offloading import Offloading
from minipipe.execution.stage import Stage
from minipipe.functional.over_rows import stacked
from minipipe.nn.fully_sharded import persistent_arrays
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.transforms import neighbouring_weights

_WITHOUT_TIME = (ActionKind.REDUCE_GRAD, ActionKind.OFFLOAD, ActionKind.LOAD)
_BACKWARD = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)


class StackedWeights:
    """Lets the last of several neighbouring W of a stage compute the weight gradients of all of them.

    Parameters
    ----------
    row : sequence of Action
        The actions of this rank.
    """

    def __init__(self, row: Sequence[Action]) -> None:
        self._together = neighbouring_weights(row)

    def watch(self, action: Action, step: Step) -> Step:
        """Return a step that takes the work of its neighbours too; or, for any but the last, one that leaves it."""
        microbatches = self._together.get(action, [action.microbatch])

        def leave(executor: Executor, batch: Batch) -> None:
            executor.note(executor.stages[action.stage], perf_counter())

        def run_together(executor: Executor, batch: Batch) -> None:
            waiting = executor.stages[action.stage].weight_work
            waiting[action.microbatch] = stacked([waiting.pop(k) for k in microbatches])
            step(executor, batch)
            executor.record.share_time_of_last(len(microbatches))

        return leave if not microbatches else step if len(microbatches) == 1 else run_together


def observers_of(row: Sequence[Action], stacks_weights: bool) -> list[Observer]:
    """Return the observers of a training row: offloading, stacking, and debug output."""
    return [*Offloading(row).observers, *([StackedWeights(row)] if stacks_weights else ()), *journal()]


def journal() -> tuple[Observer, ...]:
    """Return the observers that ``MINIPIPE_DEBUG`` requests: a :class:`Journal`, or none."""
    return () if os.environ.get("MINIPIPE_DEBUG", "0") in ("", "0") else (Journal(),)


class Journal:
    """Writes a line to standard error as each action begins: the last line of a rank is its current action."""

    def watch(self, action: Action, step: Step) -> Step:
        """Return a step that writes its line first, in one call, so that lines of several ranks do not mix."""

        def write_and_run(executor: Executor, batch: Batch) -> None:
            group: ProcessGroup = executor.group
            now = datetime.now().strftime("%H:%M:%S.%f")
            with suppress(Exception):  # standard error is closed, full, or None
                sys.stderr.write(f"[rank {group.name()}] {now} {group.activity.words()}\n")
            step(executor, batch)

        return write_and_run


class MemoryMeter:
    """Measures the bytes held by this rank's stages during one run. Slow: it walks through every graph.

    Parameters
    ----------
    not_counted : sequence of array
        The batch itself.

    Attributes
    ----------
    held_bytes : dict of Action to (int, int)
        By computation, the bytes that its stage held after it, and the most during a recomputation (0 if it did not
        recompute).
    """

    def __init__(self, not_counted: Sequence[Array]) -> None:
        self.held_bytes: dict[Action, tuple[int, int]] = {}
        self._not_counted = not_counted
        self._held: dict[int, int] = {}  # bytes, by stage
        self._recomputed = 0  # the most bytes that the current action's stage held while it recomputed something

    def watch(self, action: Action, step: Step) -> Step:
        """Return a step after which the bytes are measured, for computations; the record gets them as well."""
        if action.kind.is_communication or action.kind in _WITHOUT_TIME:
            return step

        def run_and_measure(executor: Executor, batch: Batch) -> None:
            stage = executor.stages[action.stage]
            if action.kind in _BACKWARD:
                self.observe(stage, action.microbatch)
            step(executor, batch)
            self.held_bytes[action], of_rank = self.measure(action, stage)
            executor.record.memory.append(of_rank)

        return run_and_measure

    def observe(self, stage: Stage, microbatch: int) -> None:
        """Note the bytes held by a stage whenever the backward of a microbatch recomputes a part of its graph."""
        graph = stage.graph_of(microbatch)
        observe_recomputation(graph, partial(self._note_recomputed, stage, graph))

    def _note_recomputed(self, stage: Stage, graph: list[Node], recomputed: list[Node]) -> None:
        held = self._bytes_of([*stage.held, *graph, *recomputed], stage)
        self._recomputed = max(self._recomputed, held)

    def measure(self, action: Action, stage: Stage) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the bytes held after an action, and at most while it ran: by its stage, and by all stages.

        For its stage, the second is 0 if nothing was recomputed. An array that two stages hold counts for both.
        """
        before = self._held.get(action.stage, 0)
        after = self._held[action.stage] = self._bytes_of(stage.held, stage)
        recomputed, self._recomputed = self._recomputed, 0
        others = sum(self._held.values()) - after
        return (after, recomputed), (others + after, others + max(before, after, recomputed))

    def _bytes_of(self, graphs: Iterable[Node | WeightWork], stage: Stage) -> int:
        """Return the bytes that graphs of a stage hold, without parameters and the batch itself."""
        return held_bytes(graphs, [*persistent_arrays(stage.module), *self._not_counted])
