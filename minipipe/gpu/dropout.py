"""Dropout by a kernel that draws the random numbers of NumPy's Philox on the device."""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Arrays, array_module
from minipipe.core.autograd.modes import Key
from minipipe.gpu.kernels import launch, over_elements

_THREADS = 128
_ELEMENTS = 8 * _THREADS
"""Elements of a block, as in the source."""


@partial(backend.on_host, reads_values=False)
def words_of(like: Array, key: tuple[int, ...]) -> Array:
    """Return the key of a draw as an array of the module of ``like``.

    A kernel reads it when it runs: a graph draws anew each time it is launched.
    """
    seed, *counter = key
    words = np.array([seed % 2**64, *counter], np.uint64)
    return array_module(like).asarray(words)


@partial(backend.kernel, num_outputs=2)
def _dropped(
    array: Array,
    words: Array,
    inner: int,
    place: int,
    count: int,
    probability: float,
    result: Array,
    keep: Array,
) -> None:
    blocks = -(-array.size // _ELEMENTS)
    part = array.size, inner, place, count
    inputs = array, words, *part, probability
    launch("dropout.dropped", array, blocks, _THREADS, *inputs, result, keep)


def dropped(
    array: Array, probability: float, key: Key, part: tuple[int, int] = (0, 1)
) -> Arrays:
    """Return what ``functional.dropping.dropped`` returns, with the same bits."""
    xp = array_module(array)
    result = xp.empty(array.shape, dtype=array.dtype)
    keep = xp.empty(array.shape, dtype=bool)
    words = words_of(array, key)
    numbers = prod(array.shape[-3:]), *part, float(probability)
    _dropped(backend.contiguous(array), words, *numbers, result, keep)
    return result, keep


_kept = over_elements("dropout.kept", num_outputs=1)


def kept(g: Array, keep: Array, probability: float) -> Array:
    """Return the gradient of dropout."""
    result = array_module(g).empty(g.shape, dtype=g.dtype)
    _kept(backend.contiguous(g), keep, float(probability), result)
    return result
