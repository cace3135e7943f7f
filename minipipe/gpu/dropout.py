"""Dropout by a kernel that draws the random numbers of NumPy's Philox on the device."""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Arrays, array_module
from minipipe.core.autograd.modes import Key
from minipipe.gpu.kernels import computed, over_eights, over_elements

_dropped = over_eights("dropout.dropped", num_outputs=2)
_kept = over_elements("dropout.kept", num_outputs=1)


@partial(backend.on_host, reads_values=False)
def words_of(like: Array, key: tuple[int, ...]) -> Array:
    """Return the key of a draw as an array of the module of ``like``.

    A kernel reads it when it runs: a graph draws anew each time it is launched.
    """
    seed, *counter = key
    words = np.array([seed % 2**64, *counter], np.uint64)
    return array_module(like).asarray(words)


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


def kept(g: Array, keep: Array, probability: float) -> Array:
    """Return the gradient of dropout."""
    return computed(_kept, g, keep, float(probability))
