"""Arrays that pass between the microbatches of a stage: keys and values of slices.

The slice that computes them returns them as further results; a later slice gets them as
further inputs, after its input and the targets. Their gradients are further inputs and
results of the backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minipipe.compile.trace import plain_of
from minipipe.core.autograd.backend import Array
from minipipe.core.autograd.modes import is_grad_enabled
from minipipe.core.execution.payload import Payload
from minipipe.core.execution.stage import Stage
from minipipe.core.tensor import record
from minipipe.execution.sliced import SlicedStage


class Passed:
    """Arrays that pass between microbatches: none on most stages.

    Parameters
    ----------
    stage : Stage
    """

    def __init__(self, stage: Stage) -> None:
        self._stage: Any = stage

    def form(self, microbatch: int) -> tuple[int, ...]:
        """Return further parts of the cache key of a microbatch."""
        return ()

    def inputs(self, microbatch: int) -> list[Array]:
        """Return the arrays that a microbatch gets from earlier ones."""
        return []

    def compute_with(self, inputs: Sequence[Array] | None) -> None:
        """Let the next forward compute with these arrays instead."""

    def results(self, microbatch: int) -> list[Array]:
        """Return the arrays of its forward for later ones."""
        return []

    def keep(self, microbatch: int, results: Sequence[Array], like: Any) -> None:
        """Keep arrays for later ones, in the structure of an earlier microbatch."""

    def structure(self, microbatch: int) -> Any:
        """Return the structure of the arrays of its forward."""
        return None

    def gradients(self, microbatch: int) -> list[Array | None]:
        """Return the gradients of these arrays from later ones."""
        return []

    def take(self, microbatch: int, gradients: Sequence[Array | None]) -> None:
        """Let its backward begin with these gradients."""

    def backward(self, microbatch: int, held: Any, gradient: Payload | None) -> Payload:
        """Run the backward, but pass no gradients to earlier ones."""
        return self._stage.backward(microbatch, held, gradient)

    def backward_input(
        self, microbatch: int, held: Any, gradient: Payload | None
    ) -> tuple[Payload, Any]:
        """Run the first half of the backward, but pass no gradients to earlier ones."""
        return self._stage.backward_input(microbatch, held, gradient)

    def input_gradients(self, microbatch: int) -> list[Array | None]:
        """Return the gradients of its inputs from earlier ones, after its backward."""
        return []

    def hand_back(self, microbatch: int, gradients: Sequence[Array | None]) -> None:
        """Pass such gradients to the earlier ones."""


class PassedBySlices(Passed):
    """Keys and values that pass between the slices of a sequence."""

    def form(self, microbatch: int) -> tuple[int, ...]:
        """Return the number of a slice, and of the positions before it."""
        if not is_grad_enabled():
            return ()
        return self._stage.place_of(microbatch)

    def inputs(self, microbatch: int) -> list[Array]:
        """Return keys and values of the earlier slices."""
        if not is_grad_enabled():
            return []
        return self._stage.earlier(microbatch)

    def compute_with(self, inputs: Sequence[Array] | None) -> None:
        """Let the next forward compute with other arrays of the same values."""
        self._stage.given = None
        if is_grad_enabled():
            self._stage.given = inputs

    def results(self, microbatch: int) -> list[Array]:
        """Return the keys and values of a slice, and make its tensors plain."""
        if not is_grad_enabled():
            return []
        tensors = self._stage.own(microbatch)
        arrays = [tensor.data for tensor in tensors]
        for tensor in tensors:
            tensor.data = plain_of(tensor.data)
        return arrays

    def structure(self, microbatch: int) -> Any:
        """Return the number of tensors of each call, and of positions."""
        if not is_grad_enabled():
            return None
        carried, length = self._stage.carried[microbatch]
        return list(map(len, carried)), length

    def keep(self, microbatch: int, results: Sequence[Array], like: Any) -> None:
        """Keep the keys and values of a slice."""
        if like is not None:
            lengths, num_positions = like
            tensors = iter(map(record, results))
            carried = [tuple(next(tensors) for _ in range(n)) for n in lengths]
            self._stage.carried[microbatch] = carried, num_positions

    def gradients(self, microbatch: int) -> list[Array | None]:
        """Return the gradients of keys and values from later slices."""
        gradients = self._stage.came.get(microbatch)
        return gradients or [None] * len(self._stage.own(microbatch))

    def take(self, microbatch: int, gradients: Sequence[Array | None]) -> None:
        """Let the backward of a slice begin with these gradients."""
        self._stage.came[microbatch] = list(gradients)

    def backward(self, microbatch: int, held: Any, gradient: Payload | None) -> Payload:
        """Run the backward of one slice alone."""
        return Stage.backward(self._stage, microbatch, held, gradient)

    def backward_input(
        self, microbatch: int, held: Any, gradient: Payload | None
    ) -> tuple[Payload, Any]:
        """Run the first half of the backward of one slice alone."""
        return Stage.backward_input(self._stage, microbatch, held, gradient)

    def input_gradients(self, microbatch: int) -> list[Array | None]:
        """Return the gradients of keys and values of earlier slices."""
        return self._stage.own_gradients(microbatch)

    def hand_back(self, microbatch: int, gradients: Sequence[Array | None]) -> None:
        """Add these gradients to the ones of the earlier slices."""
        self._stage.hand_back(microbatch, gradients)


def passed_by(stage: Stage) -> Passed:
    """Return the arrays that pass between the microbatches of a stage."""
    if isinstance(stage, SlicedStage):
        return PassedBySlices(stage)
    return Passed(stage)
