"""Rows with the same number, added up by one kernel: the gradients of an embedding and of
an index.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Shape, array_module
from minipipe.gpu.kernels import launch

_THREADS = 128
_COLUMNS = 4 * _THREADS
"""Columns of a block, as in the source."""
_MOST_UNSORTED = 1 << 14
"""More ids are sorted first: each block would read all of them."""


@partial(backend.kernel, num_outputs=1)
def _add_rows(
    rows: Array, ids: Array, is_sorted: int, in_pairs: int, result: Array
) -> None:
    """Write the sum of the rows of each id into the row of the result that it names."""
    num_rows, width = rows.shape
    blocks = num_rows * -(-width // _COLUMNS)
    numbers = num_rows, width, is_sorted, in_pairs
    launch("embedding.add_rows", rows, blocks, _THREADS, ids, rows, *numbers, result)


def add_rows(rows: Array, ids: Array, shape: Shape, in_pairs: bool = True) -> Array:
    """Return what ``functional.embedding.add_rows`` returns, with the same bits; or add
    one row after another.
    """
    xp = array_module(rows)
    ids = backend.as_array(ids, xp.int64)
    is_sorted = rows.shape[0] > _MOST_UNSORTED
    if is_sorted:
        order = xp.argsort(ids, kind="stable")
        ids = xp.take(ids, order)
        rows = xp.take(rows, order, axis=0)
    result = xp.zeros(shape, dtype=rows.dtype)
    how = int(is_sorted), int(in_pairs)
    _add_rows(backend.contiguous(rows), backend.contiguous(ids), *how, result)
    return result


def added(values: Array, index: Any, shape: Shape) -> Array:
    """Return what ``functional.shape.added`` returns, with the same bits."""
    # the axes of which an element has a number: the first, or all
    is_rows = backend.is_array(index) and backend.is_integer(index.dtype)
    axes = shape[: 1 if is_rows else len(shape)]
    count = backend.prod(axes)
    width = backend.prod(shape[len(axes) :])
    numbers = backend.reshape(array_module(values).arange(count), axes)[index]
    rows = backend.reshape(values, (backend.prod(numbers.shape), width))
    numbers = backend.reshape(numbers, (-1,))
    total = add_rows(rows, numbers, (count, width), in_pairs=False)
    return backend.reshape(total, shape)
