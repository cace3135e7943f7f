"""One batch, as far as a rank has it, and the results that its microbatches make
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minipipe.autograd.memory import buffer_of
from minipipe.core import batch as core
from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.batch import concatenated as concatenated
from minipipe.core.execution.payload import Payload
from minipipe.errors import TensorError
from minipipe.execution.objective import BatchObjective
from minipipe.execution.samples import Microbatches, copied


@dataclass
class Batch(core.Batch):
    """One batch, as far as this rank has it.

    Attributes
    ----------
    inputs : sequence of Payload or None
        ``ABSENT`` for microbatches that only other replicas have.
    objective : BatchObjective
    is_cut : bool
        Whether it came as microbatches.
    num_slices : int
        The number of slices into which each of its sequences is divided.
    form_of_inputs : int
        A number for the shapes and dtypes of the inputs, the same on all ranks.
    form : object
        The same object for batches that differ only by their numbers; None if that is
        not known.
    """

    objective: BatchObjective
    is_cut: bool = False
    num_slices: int = 1
    form_of_inputs: int = 0
    form: object = None

    # -- results, in NumPy's memory ----------------------------------------------------

    def outputs(self) -> Payload | None:
        """Return the outputs of the batch, if the objective has any; see
        :meth:`returned`.

        Raises
        ------
        TensorError
            Code ``shape``, if they make no array.
        """
        kept = self.objective.outputs
        parts = [kept[k] for k in sorted(kept)]
        if not parts:
            return None
        if self.is_cut:
            own = [array for part in parts for array in part.arrays]
            arrays = [np.array(backend.to_numpy(array)) for array in own]
            treedefs = [part.treedef for part in parts]
            return Payload(arrays, [True] * len(arrays), treedefs)
        n = self.num_slices
        if n > 1:
            starts = range(0, len(parts), n)
            parts = [concatenated(parts[i : i + n], axis=1) for i in starts]
        _check_shapes(parts, self.sizes[::n])
        return concatenated(parts)

    def returned(self, outputs: Payload) -> Any:
        """Return the outputs of the batch as a user gets them: an array, a pytree, or
        microbatches of those.
        """
        return Microbatches(outputs.rebuilt()) if self.is_cut else outputs.rebuilt()

    def input_gradients(self, by_microbatch: dict[int, Payload]) -> Any:
        """Take out the gradients of the inputs, and return them as the same pytree as
        the inputs.

        They are None for whole numbers. Gradients of a replicated array are added up in
        ascending order of microbatches.

        Parameters
        ----------
        by_microbatch : dict of int to Payload
            The gradients of the arrays; None for an array that was not used.
        """
        rows = []
        inputs = self.inputs or []
        for k, part in enumerate(inputs):
            own = by_microbatch.pop(k).arrays
            rows.append(list(map(_gradient, part.arrays, own)))
        if self.is_cut:  # copies, since two inputs that were added have one gradient
            found = [part.rebuilt(row) for part, row in zip(inputs, rows)]
            return Microbatches(list(map(copied, found)))
        first = inputs[0]
        columns = list[Any]()
        for i, column in enumerate(zip(*rows)):
            if column[0] is None:
                columns.append(None)
            elif i in first.replicated:
                columns.append(sum(column[1:], column[0].copy()))
            else:
                columns.append(np.concatenate(column))
        return first.rebuilt(columns)


def arrays_of(batch: core.Batch) -> list[Array]:
    """Return the memory of the inputs and targets that this rank has; microbatches are
    views of it.
    """
    read = batch.inputs, batch.objective.targets
    parts = [part for given in read for part in (given or ())]
    buffers = [buffer_of(array) for part in parts for array in part.arrays]
    return [*{id(buffer): buffer for buffer in buffers}.values()]


def _check_shapes(parts: Sequence[Payload], sizes: Sequence[int]) -> None:
    shapes = [[array.shape for array in part.arrays] for part in parts]
    expected = [[(n, *shape[1:]) for shape in shapes[0]] for n in sizes]
    if shapes != expected:
        message = (
            f"The outputs of the microbatches have shapes {shapes}, which do not form "
            "one array (samples, ...); pass the batch as minipipe.Microbatches to get "
            "microbatches."
        )
        raise TensorError("shape", message)


def _gradient(array: Array, gradient: Array | None) -> np.ndarray | None:
    if not backend.is_floating(array.dtype):
        return None
    if gradient is None:
        return np.zeros_like(backend.to_numpy(array))
    return backend.to_numpy(gradient)
