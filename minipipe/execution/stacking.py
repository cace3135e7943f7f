"""Neighbouring W of a stage, computed together as one product for each weight."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from minipipe.core.execution.executor import Executor, Handlers
from minipipe.core.execution.record import Record
from minipipe.core.schedules.action import Action, W
from minipipe.core.values import Value, takes
from minipipe.functional.over_rows import stacked
from minipipe.schedules.transforms import neighbouring_weights


class StackedWeights:
    """Lets the last of several neighbouring W of a stage compute the weight gradients
    of all of them.

    Parameters
    ----------
    row : sequence of Action
        The actions of this rank.
    """

    def __init__(self, row: Sequence[Action]) -> None:
        self._together = neighbouring_weights(row)

    def handlers(self, handlers: Handlers) -> Handlers:
        """Return handlers whose last W of several neighbours computes all of them."""
        self._weight = handlers[W]
        return {**handlers, W: self._run}

    def begin(self, executor: Executor, action: Action) -> None:
        """Observe nothing."""

    def end(self, executor: Executor, action: Action) -> None:
        """Divide the time of the last W among all."""
        microbatches = self._together.get(action, ())
        if len(microbatches) > 1:
            share_time_of_last(executor.record, len(microbatches))

    @takes("rest")
    def _run(self, executor: Executor, action: Action, rest: Any) -> None:
        stage = action.stage
        k = action.microbatch
        microbatches = self._together.get(action, [k])
        waiting = executor.graphs[stage]
        waiting[Value("rest", stage, k)] = rest
        if microbatches:
            works = [waiting.pop(Value("rest", stage, other)) for other in microbatches]
            self._weight(executor, action, stacked(works))


def share_time_of_last(record: Record, count: int) -> None:
    """Give each of the last computations an equal part of their time: the very last did
    the work of all.
    """
    together = record.ran[-count:]
    start = float(together[0][0])
    end = float(together[-1][1])
    times = [start + (end - start) * i / count for i in range(count + 1)]
    record.ran[-count:] = [
        (*part, held) for part, (_, _, held) in zip(pairwise(times), together)
    ]
