"""Measuring the bytes that stages hold after each action, for the executor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from minipipe.autograd import Node, WeightWork
from minipipe.autograd.backend import Array
from minipipe.autograd.memory import held_bytes, observe_recomputation
from minipipe.execution.stage import Stage
from minipipe.schedules.action import Action


class MemoryMeter:
    """Measures the bytes held by this rank's stages during one run. Slow: it walks through every graph.

    Parameters
    ----------
    not_counted : sequence of array
        The batch itself.
    """

    def __init__(self, not_counted: Sequence[Array]) -> None:
        self._not_counted = not_counted
        self._held: dict[int, int] = {}  # bytes, by stage
        self._recomputed = 0  # the most bytes that the present action's stage held when something was computed again

    def observe(self, stage: Stage, microbatch: int) -> None:
        """Note the bytes held by a stage whenever the backward of a microbatch recomputes a part of its graph."""
        graph = stage.graph_of(microbatch)
        observe_recomputation(graph, partial(self._note_recomputed, stage, graph))

    def _note_recomputed(self, stage: Stage, graph: list[Node], recomputed: list[Node]) -> None:
        held = self._bytes_of([*stage.held, *graph, *recomputed], stage)
        self._recomputed = max(self._recomputed, held)

    def measure(self, action: Action, stage: Stage) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the bytes held after an action, and at most while it ran: by its stage, and by all stages.

        Of its stage, the second is 0 where nothing was computed again. An array that two stages hold counts for both.
        """
        before = self._held.get(action.stage, 0)
        after = self._held[action.stage] = self._bytes_of(stage.held, stage)
        recomputed, self._recomputed = self._recomputed, 0
        others = sum(self._held.values()) - after
        return (after, recomputed), (others + after, others + max(before, after, recomputed))

    def _bytes_of(self, graphs: Iterable[Node | WeightWork], stage: Stage) -> int:
        """Return the bytes that graphs of a stage hold, without parameters and the batch itself."""
        return held_bytes(graphs, [*(p.data for p in stage.parameters.values()), *self._not_counted])
