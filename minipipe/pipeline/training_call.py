"""The arguments of a call, and its results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minipipe.core.autograd.backend import Array
from minipipe.core.batch import Call
from minipipe.execution.batch import Batch
from minipipe.execution.objective import BatchObjective


@dataclass
class TrainingCall(Call):
    """The arguments of a call that computes a batch, and its results.

    Its ``result`` is a BatchLoss or PendingLoss or, without a loss, the outputs.

    Attributes
    ----------
    objective : BatchObjective
    is_training : bool
        The mode of the pipeline.
    num_steps : int
        The number of steps taken before.
    waits : bool
        Whether the call waits for its loss.
    accumulates : bool
        Whether gradients are added to the gradients of earlier steps.
    batch : Batch or None
        Made of the inputs and targets already, or by the handshake.
    earlier : dict of str to array
        The gradients of earlier steps, of parameters that several ranks share.
    is_agreed : bool
        Whether all ranks have agreed on the call, and the step has begun.
    is_computed : bool
        Whether all gradients of the step are known.
    input_gradients : array, pytree or None
    """

    objective: BatchObjective
    is_training: bool
    num_steps: int
    waits: bool = True
    accumulates: bool = False
    batch: Batch | None = None
    earlier: dict[str, Array | None] | None = None
    is_agreed: bool = False
    is_computed: bool = False
    input_gradients: Any = None

    @property
    def label(self) -> str:
        """The method, with the argument that all ranks must pass alike."""
        if self.accumulates:
            return f"{self.name}(accumulate=True)"
        return self.name
