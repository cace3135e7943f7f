"""Neighbouring W of a stage, computed together as one product for each weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minipipe.core.execution.executor import Executor, Handlers
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
            executor.record.share_time_of_last(len(microbatches))

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
