"""The bytes that graphs hold: of activations, without parameters and the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from minipipe.autograd.memory import arrays_in, held_bytes, observe_recomputation
from minipipe.core.schedules.action import Action, ActionKind
from minipipe.execution.batch import arrays_of

if TYPE_CHECKING:
    from minipipe.core.autograd.backend import Array
    from minipipe.core.execution.executor import Executor
    from minipipe.core.execution.stage import Stage
    from minipipe.nn import Module

_WITHOUT_TIME = (ActionKind.REDUCE_GRAD, ActionKind.OFFLOAD, ActionKind.LOAD)
_BACKWARD = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
Graphs = list[Any]  # Node or WeightWork: the roots of graphs


class MemoryMeter:
    """Measures the bytes held by this rank's stages during one run. Slow: it walks
    through every graph.

    Parameters
    ----------
    not_counted : sequence of array, optional
        Arrays that belong to no stage; by default the batch of the executor.

    Attributes
    ----------
    held_bytes : dict of Action to (int, int)
        By computation, the bytes that its stage held after it, and the most during a
        recomputation (0 if it did not recompute).
    """

    def __init__(self, not_counted: Sequence[Array] | None = None) -> None:
        self.held_bytes: dict[Action, tuple[int, int]] = {}
        self._not_counted = not_counted
        self._held: dict[int, int] = {}  # bytes, by stage
        # the most bytes that the current action's stage held while it recomputed
        # something
        self._recomputed = 0

    def begin(self, executor: Executor, action: Action) -> None:
        """Observe what a backward recomputes."""
        if self._not_counted is None:
            self._not_counted = arrays_of(executor.batch)
        if action.kind in _BACKWARD:
            stage = executor.stages[action.stage]
            graphs = executor.graphs[action.stage]
            own = next(
                held
                for value, held in graphs.items()
                if value.microbatch == action.microbatch
            )
            self.observe(stage, own.graph, lambda: roots_of(graphs.values()))

    def end(self, executor: Executor, action: Action) -> None:
        """Measure the bytes after a computation; the record gets them as well."""
        if not action.kind.is_communication and action.kind not in _WITHOUT_TIME:
            stage = executor.stages[action.stage]
            graphs = executor.graphs[action.stage]
            self.held_bytes[action], of_rank = self.measure(
                action, stage, roots_of(graphs.values())
            )
            executor.record.memory.append(of_rank)

    def observe(
        self, stage: Stage, graph: Graphs, others: Callable[[], Graphs]
    ) -> None:
        """Note the bytes held by a stage whenever the backward of a graph recomputes a
        part of it.

        Parameters
        ----------
        stage : Stage
        graph : list of Node
            The roots of the graph.
        others : function
            Returns the roots of all other graphs that the stage holds then.
        """

        def note(recomputed: Graphs) -> None:
            held = self._bytes_of([*others(), *graph, *recomputed], stage)
            self._recomputed = max(self._recomputed, held)

        observe_recomputation(graph, note)

    def measure(
        self, action: Action, stage: Stage, held: Graphs
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the bytes held after an action, and at most while it ran: by its
        stage, and by all stages.

        For its stage, the second is 0 if nothing was recomputed. An array that two
        stages hold counts for both.
        """
        before = self._held.get(action.stage, 0)
        after = self._held[action.stage] = self._bytes_of(held, stage)
        recomputed = self._recomputed
        self._recomputed = 0
        others = sum(self._held.values()) - after
        return (after, recomputed), (
            others + after,
            others + max(before, after, recomputed),
        )

    def _bytes_of(self, graphs: Iterable[Any], stage: Stage) -> int:
        """Return the bytes that graphs of a stage hold, without parameters and the
        batch itself.
        """
        return held_bytes(
            graphs, [*persistent_arrays(stage.module), *(self._not_counted or ())]
        )


def roots_of(held: Iterable[Any]) -> Graphs:
    """Return the roots of the graphs that microbatches hold."""
    return [root for each in held if each is not None for root in each.graph]


def persistent_arrays(module: Module) -> list[Array]:
    """Return the arrays that graphs refer to but that are not activations.

    They are parameters, the memory that holds fully sharded parameters whole, and
    arrays that layers keep as attributes. Measuring and offloading leave them out,
    with their views.
    """
    found = [parameter.data for parameter in module.parameters()]
    for part in module.modules():
        found += arrays_in(vars(part))
        found += getattr(part, "whole_arrays", ())
    return found
