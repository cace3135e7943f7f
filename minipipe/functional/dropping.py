"""Dropout: random elements become 0."""

from __future__ import annotations

from functools import partial

import numpy as np

from minipipe.core.autograd.backend import (
    Array,
    Arrays,
    array_module,
    masked,
    moved,
    on_host,
)
from minipipe.core.autograd.modes import Key, next_key
from minipipe.core.familiar import with_hints
from minipipe.core.functional.operands import as_real
from minipipe.core.specs import Spec
from minipipe.core.tensor import Operand, Tensor, op
from minipipe.errors import TensorError

_PROBABILITY = Spec(float, minimum=0, below=1, error=TensorError, code="out-of-range")


@with_hints
def dropout(a: Operand, probability: float) -> Tensor:
    """Return a with each element set to 0 with a probability, and the others scaled up
    so that the mean stays.

    The mask depends on (seed, layer, step, microbatch) alone; see
    :func:`minipipe.random_key`.

    Parameters
    ----------
    a : Tensor of any shape
    probability : float
        At least 0, less than 1.

    Raises
    ------
    TensorError
        Codes ``out-of-range`` and ``missing``.

    References
    ----------
    Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from
    overfitting".

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, functional, random_key
    >>> with random_key(seed=0, step=3):
    ...     y = functional.dropout(Tensor(np.ones(100)), 0.5)
    >>> sorted(set(y.numpy().tolist()))
    [0.0, 2.0]
    """
    a = as_real(a)
    check_probability("dropout", probability)
    if not probability:
        return a
    return _dropout(a, probability=probability, key=next_key())


def check_probability(name: str, probability: float) -> None:
    """Refuse a probability with which nothing, or everything, could not be dropped.

    Raises
    ------
    TensorError
        Code ``out-of-range``.
    """
    _PROBABILITY.check(f"{name}: the probability", probability)


@op(saves="keep", in_float32=True)
def _dropout(a: Array, *, probability: float, key: Key) -> Arrays:
    return dropped(a, probability, key)


def dropped(
    array: Array, probability: float, key: Key, part: tuple[int, int] = (0, 1)
) -> Arrays:
    """Return an array after dropout, and which elements are kept.

    With ``part`` (i, count) the array is part i of all heads, the last axis but two,
    for which the mask is drawn.
    """
    keep = uniform(array, key, part) >= probability
    return _kept(array, keep, probability), keep


def _kept(g: Array, keep: Array, probability: float) -> Array:
    """Return an array, or a gradient, of which only some elements are kept, and scaled
    up.
    """
    return masked(g, keep) * (1 / (1 - probability))


_dropout.gradients(a=_kept)


@partial(on_host, reads_values=False)
def uniform(like: Array, key: tuple[int, ...], part: tuple[int, int] = (0, 1)) -> Array:
    """Return random numbers from [0, 1) in float32, of the shape and module of
    ``like``, that depend on ``key`` alone.

    They are drawn on the host for every module, so that a GPU gets the very numbers of
    a CPU. With ``part`` (i, count) they are part i of those for an array that has count
    times as many heads, the last axis but two.
    """
    place, count = part
    if count == 1:
        shape = like.shape
    else:
        shape = (*like.shape[:-3], like.shape[-3] * count, *like.shape[-2:])
    seed, layer, *counter = key
    # A list with a number of 64 bits would pass through float64.
    words = np.array([seed % 2**64, layer], np.uint64)
    # The generator counts the numbers that it draws in the lowest 64 bits of the
    # counter.
    bits = np.random.Philox(key=words, counter=[0, *counter])
    drawn = np.random.Generator(bits).random(shape, dtype=np.float32)
    if count > 1:
        drawn = np.split(drawn, count, axis=-3)[place]
    return moved(drawn, array_module(like))
