"""Dropout: the one operation that draws random numbers."""

from __future__ import annotations

from collections.abc import Callable

from minipipe.autograd import backend
from minipipe.autograd.backend import Array
from minipipe.autograd.random_key import next_key
from minipipe.errors import TensorError
from minipipe.functional.precision import in_float32
from minipipe.tensor import Operand, Tensor, as_real, record


def dropout(a: Operand, probability: float) -> Tensor:
    """Return a with each element set to 0 with a probability, and the others scaled up so that the mean stays.

    The mask depends on (seed, layer, step, microbatch) alone; see :func:`minipipe.random_key`.

    Parameters
    ----------
    a : Tensor of any shape
    probability : float
        At least 0, less than 1.

    Raises
    ------
    TensorError
        Codes ``range`` and ``no-random-key``.

    References
    ----------
    Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from overfitting".

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
    if backend.is_half(a.dtype) and probability:
        return in_float32(dropout, a, probability=probability)
    drop = drawn("dropout", a.data, probability)
    return a if drop is None else record(drop(a.data), (a, drop))


def drawn(name: str, like: Array, probability: float) -> Callable[[Array], Array] | None:
    """Return what dropout does here to arrays of the shape of ``like``, and to their gradients; None for nothing.

    Parameters
    ----------
    name : str
        Of the operation, for the error.
    like : array of any shape
    probability : float

    Raises
    ------
    TensorError
        Codes ``range`` and ``no-random-key``.
    """
    if not 0 <= probability < 1:
        raise TensorError("range", f"{name}: the probability is {probability}; expected at least 0 and less than 1.")
    if probability == 0:
        return None
    keep = backend.uniform(like, next_key()) >= probability
    scale = 1 / (1 - probability)
    return lambda array: backend.masked(array, keep) * scale
