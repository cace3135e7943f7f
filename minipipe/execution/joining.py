"""What microbatches gave, behind each other: their outputs, and the gradients of their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minipipe.autograd import backend
from minipipe.autograd.backend import Array
from minipipe.errors import TensorError
from minipipe.execution.samples import Microbatches, Pieces, Samples


def joined(parts: Sequence[Samples], slices: Sequence[slice], is_cut: bool) -> Samples:
    """Return the outputs of microbatches as those of their batch, in NumPy's memory.

    Parameters
    ----------
    parts : sequence of Samples
    slices : sequence of slice
        Where they lie in the batch.
    is_cut : bool
        Whether the batch came as microbatches: then the result is a list of them.

    Raises
    ------
    TensorError
        Code ``shape``, where they make no array.

    Examples
    --------
    >>> joined([Samples([np.zeros(2)]), Samples([np.ones(1)])], [slice(0, 2), slice(2, 3)], is_cut=False).arrays
    [array([0., 0., 1.])]
    """
    if is_cut:
        arrays = [np.array(backend.to_numpy(array)) for part in parts for array in part.arrays]
        return Samples(arrays, [part.form for part in parts])
    shapes = [[array.shape for array in part.arrays] for part in parts]
    lengths = [part.stop - part.start for part in slices]
    if any((n, *first[1:]) != shape for n, row in zip(lengths, shapes) for shape, first in zip(row, shapes[0])):
        message = f"The outputs of the microbatches have shapes {shapes}, which make no array of shape (samples, ...)"
        raise TensorError("shape", f"{message}; give the batch as minipipe.Microbatches, and you get such.")
    rows = zip(*(map(backend.to_numpy, part.arrays) for part in parts))
    return Samples([np.concatenate(row) for row in rows], parts[0].form)


def returned(found: Samples, is_cut: bool) -> Any:
    """Return joined outputs in the form in which a user gets them."""
    return Microbatches(found.rebuilt()) if is_cut else found.rebuilt()


def joined_gradients(inputs: Samples | Pieces, slices: Sequence[slice], gradients: Sequence[list[Any]]) -> Any:
    """Return the gradients of a batch of inputs, in NumPy's memory and in the form that the inputs have.

    They are None for whole numbers. Those of a replicated array are added up in ascending order of microbatches.

    Parameters
    ----------
    inputs : Samples or Pieces
    slices : sequence of slice
        The microbatches.
    gradients : sequence of list of array
        By microbatch, those of the arrays; None for an array that was not used.
    """
    parts = [inputs.cut(part) for part in slices]
    rows = [list(map(_gradient, part.arrays, own)) for part, own in zip(parts, gradients)]
    if isinstance(inputs, Pieces):
        return Microbatches(part.rebuilt(row) for part, row in zip(parts, rows))
    columns: list[Any] = list(zip(*rows))
    for i, column in enumerate(columns):
        if column[0] is None:
            columns[i] = None
        elif i in inputs.replicated:
            columns[i] = sum(column[1:], column[0])
        else:
            columns[i] = np.concatenate(column)
    return inputs.rebuilt(columns)


def _gradient(array: Array, gradient: Array | None) -> np.ndarray | None:
    if not backend.is_floating(array.dtype):
        return None
    return np.zeros_like(backend.to_numpy(array)) if gradient is None else backend.to_numpy(gradient)
