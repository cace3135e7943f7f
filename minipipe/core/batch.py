"""A call, and its batch as far as a rank has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.execution.payload import Payload
from minipipe.core.objective import Objective


@dataclass
class Call:
    """The arguments of a call, and its results.

    Attributes
    ----------
    name : str
        The method.
    inputs, targets : object
        As the user has passed them.
    objective : Objective
    result : object
        The loss or, without one, the outputs.
    """

    name: str
    inputs: Any
    targets: Any
    objective: Objective
    result: Any = field(default=None, init=False)


@dataclass
class Batch:
    """One batch, as far as this rank has it.

    Attributes
    ----------
    call : str
        The method that received it.
    sizes : tuple of int
        The numbers of samples of its microbatches.
    inputs : sequence of Payload or None
        By microbatch, if this rank has the first stage.
    objective : Objective
        Processes the outputs on the last stage; if this rank has that stage, it also
        holds the targets.
    step : int
        The number of this call of step, evaluate or predict. It travels with every
        message, so that ranks out of step are noticed.
    training_step : int
        Counts the steps that were taken before; random numbers in the model depend on
        it, and on the seed.
    seed : int
    """

    call: str
    sizes: tuple[int, ...]
    inputs: Sequence[Payload] | None
    objective: Objective
    step: int
    training_step: int
    seed: int

    def input(self, microbatch: int) -> Payload:
        """Return a microbatch of the inputs, as the first stage takes it."""
        assert self.inputs is not None
        return self.inputs[microbatch]


def concatenated(parts: Sequence[Payload], axis: int = 0) -> Payload:
    """Return payloads of one structure as one, in NumPy's memory.

    Examples
    --------
    >>> parts = [Payload([np.zeros(2)], [True]), Payload([np.ones(1)], [True])]
    >>> concatenated(parts).arrays
    [array([0., 0., 1.])]
    """
    rows = zip(*(map(backend.to_numpy, part.arrays) for part in parts))
    return parts[0]._replace(arrays=[np.concatenate(row, axis=axis) for row in rows])
