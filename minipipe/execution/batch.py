"""One batch, as far as a rank has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minipipe.autograd import backend
from minipipe.autograd.backend import Array
from minipipe.execution.objective import BatchObjective
from minipipe.execution.payload import Payload
from minipipe.execution.samples import Pieces, Portion, Samples, joined_gradients


@dataclass
class Batch:
    """One batch, as far as this rank has it.

    Attributes
    ----------
    call : str
        The method that received it.
    slices : list of slice
        The microbatches, along the first axis.
    inputs : Samples, Pieces, Portion or None
        Arrays of shape (samples, ...), if this rank has the first stage.
    objective : BatchObjective
        Processes the outputs on the last stage; if this rank has that stage, it also holds the targets.
    step : int
        The number of this call of step, evaluate or predict. It travels with every message, so that ranks out of step
        are noticed.
    training_step : int
        Counts the steps that were taken before; random numbers in the model depend on it, and on the seed.
    seed : int
    is_cut : bool
        Whether it came as microbatches.
    inputs_require_grad : bool
        Whether to compute the gradients of the inputs.
    num_slices : int
        The number of slices into which each of its sequences is divided.
    """

    call: str
    slices: list[slice]
    inputs: Samples | Pieces | Portion | None
    objective: BatchObjective
    step: int
    training_step: int
    seed: int
    is_cut: bool
    inputs_require_grad: bool
    num_slices: int = 1

    def input(self, microbatch: int) -> Payload:
        """Return a microbatch of the inputs, as the first stage takes it."""
        assert self.inputs is not None
        part = self.inputs.cut(self.slices[microbatch])
        assert part is not None  # intake has checked this
        wanted = [False] * len(part.arrays)
        if self.inputs_require_grad:
            wanted = [backend.is_floating(array.dtype) for array in part.arrays]
        return Payload(part.arrays, wanted, part.form)

    @property
    def arrays(self) -> list[Array]:
        """The inputs and targets that this rank has."""
        return [array for given in (self.inputs, self.objective.targets) if given is not None for array in given.arrays]

    def input_gradients(self, by_microbatch: dict[int, Payload]) -> Any:
        """Take out the gradients of the inputs, as their pytree, if they are requested and this rank has the inputs."""
        if not self.inputs_require_grad or not isinstance(self.inputs, Samples | Pieces):
            return None
        gradients = [by_microbatch.pop(k).arrays for k in range(len(self.slices))]
        return joined_gradients(self.inputs, self.slices, gradients)
