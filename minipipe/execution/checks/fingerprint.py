"""A number for a batch that costs microseconds: enough to notice that two ranks were given different ones."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any
from zlib import crc32

import numpy as np

from minipipe.autograd.backend import is_array
from minipipe.data.draws import take_last_draw
from minipipe.execution.samples import Microbatches, Replicated
from minipipe.pytree import flattened
from minipipe.tensor import Tensor

_GOLDEN_RATIO = (1 + 5**0.5) / 2
_MOST_ELEMENTS = 32  # of each array; so many pages of a file are touched at most


def fingerprint(batch: Any) -> int | None:
    """Return a number for inputs or targets: from their form, shapes, dtypes, and some elements of each array.

    Local. Two batches that differ in a few samples may have the same number; two that were drawn apart hardly ever do.
    Of arrays that are not NumPy's only form, shape and dtype count: a GPU would have to wait.

    Parameters
    ----------
    batch : array of shape (samples, ...), bundle, or Microbatches

    Returns
    -------
    int or None
        Above 0, the same in every process. None where nothing was given that could be compared.

    Examples
    --------
    >>> x = np.arange(1000.0).reshape(100, 10)
    >>> fingerprint(x) == fingerprint(x.copy()), fingerprint(x) == fingerprint(x + 1)
    (True, False)
    >>> fingerprint(x) == fingerprint((x,)), fingerprint(None)
    (False, None)
    """
    if type(batch) is np.ndarray:  # the quick way for the commonest batch
        form, positions = _form(batch.shape, batch.dtype)
        if positions is not None and batch.flags.c_contiguous:
            return crc32(batch.take(positions).tobytes(), form) or 1
    if batch is None or callable(batch):
        return None
    found = 0
    try:
        for part in batch.parts if isinstance(batch, Microbatches) else [batch]:
            leaves, form = flattened(part)
            if form is not None:
                found = crc32(repr((form, [isinstance(leaf, Replicated) for leaf in leaves])).encode(), found)
            for leaf in leaves:
                found = _of_leaf(leaf, found)
    except (TypeError, ValueError, IndexError):  # it is no batch, and this rank need not give one
        return None
    return found or 1


def batch_marks(inputs: Any, targets: Any) -> dict[str, int | None]:
    """Return what of a batch all ranks must have alike, None where this rank does not know it. Local.

    Where a rank has only the inputs and another only the targets, it is the draw that tells whether they belong
    together.

    Examples
    --------
    >>> list(batch_marks(np.ones(2), None)), batch_marks(None, None)["inputs"]
    (['inputs', 'targets', 'batch of data'], None)
    """
    return {"inputs": fingerprint(inputs), "targets": fingerprint(targets), "batch of data": take_last_draw()}


def _of_leaf(leaf: Any, before: int) -> int:
    leaf = leaf.value if isinstance(leaf, Replicated) else leaf
    leaf = leaf.data if isinstance(leaf, Tensor) else leaf
    if is_array(leaf) and not isinstance(leaf, np.ndarray):
        return crc32(f"{tuple(leaf.shape)} {leaf.dtype}".encode(), before)
    return _of_array(np.asarray(leaf), before)


def _of_array(array: np.ndarray, before: int) -> int:
    form, positions = _form(array.shape, array.dtype)
    # Neither way copies the array.
    elements = array.take(positions) if array.flags.c_contiguous else array.flat[positions]
    return crc32(elements.tobytes(), form ^ before)


@lru_cache(maxsize=256)
def _form(shape: tuple[int, ...], dtype: np.dtype) -> tuple[int, Any]:
    """Return a number for a shape and a dtype, and the positions of the elements to look at.

    They are those of a small array, and spread over a large one: over its rows evenly, and over the columns of the last
    axis by turns, or by multiples of the golden ratio where there are many. Texts and objects have none: None, which
    cannot be taken.
    """
    size, turns = prod(shape), np.arange(_MOST_ELEMENTS)
    if size <= _MOST_ELEMENTS:
        positions = np.arange(size)
    else:
        width = shape[-1]
        columns = turns % width if width <= _MOST_ELEMENTS else (turns * _GOLDEN_RATIO % 1 * width).astype(np.int64)
        positions = turns * (size // width) // _MOST_ELEMENTS * width + columns
    return crc32(f"{shape} {dtype}".encode()), None if dtype.kind in "OSU" else positions
