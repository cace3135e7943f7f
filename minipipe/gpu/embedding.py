"""The gradient of an embedding by one kernel."""

from __future__ import annotations

from functools import partial

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, array_module
from minipipe.gpu.kernels import launch

_THREADS = 128
_COLUMNS = 4 * _THREADS
"""Columns of a block, as in the source."""
_MOST_UNSORTED = 1 << 14
"""More ids are sorted first: each block would read all of them."""


@partial(backend.kernel, num_outputs=1)
def add_rows(rows: Array, ids: Array, is_sorted: int, result: Array) -> None:
    """Write the sum of the rows of each id into the row of the result that it names."""
    num_rows, width = rows.shape
    blocks = num_rows * -(-width // _COLUMNS)
    numbers = num_rows, width, is_sorted
    launch("embedding.add_rows", rows, blocks, _THREADS, ids, rows, *numbers, result)


def gradient_of_weight(g: Array, ids: Array, shape: tuple[int, int]) -> Array:
    """Return zeros of a shape with each row of g added to the row that its id names.

    It has the bits of ``functional.embedding.add_rows``.
    """
    xp = array_module(g)
    rows = backend.contiguous(backend.reshape(g, (-1, shape[1])))
    if backend.is_half(g.dtype):
        rows = backend.as_array(rows, xp.float32)
    ids = backend.as_array(backend.reshape(ids, (-1,)), xp.int64)
    is_sorted = rows.shape[0] > _MOST_UNSORTED
    if is_sorted:
        order = xp.argsort(ids, kind="stable")
        ids = xp.take(ids, order)
        rows = xp.take(rows, order, axis=0)
    result = xp.zeros(shape, dtype=rows.dtype)
    add_rows(rows, backend.contiguous(ids), int(is_sorted), result)
    return backend.as_array(result, g.dtype)
