"""Stochastic gradient descent, in place, in pieces that fit the cache."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, array_module
from minipipe.core.autograd.modes import next_order
from minipipe.core.errors import ArgumentError
from minipipe.core.nn.parameter import Parameter

_BLOCK_SIZE = 1 << 16  # elements: a float32 block is 256 KiB


class SGD:
    """Stochastic gradient descent with momentum and weight decay.

    Local; no messages. ``minipipe.optim.SGD`` is the same with groups of parameters,
    half precision and states that can be saved.

    Parameters
    ----------
    parameters : iterable of Parameter
    learning_rate, momentum, weight_decay : float
    nesterov : bool
        Whether gradients are taken at the point to which the velocity would carry the
        parameter next.

    Raises
    ------
    ArgumentError
        Code ``dtype``, for parameters in half precision.

    Examples
    --------
    >>> weight = Parameter(np.array([1.0, 2.0]))
    >>> weight.grad = np.array([1.0, -4.0])
    >>> SGD([weight], learning_rate=0.5).step()
    >>> weight.data
    array([0.5, 4. ])
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        learning_rate: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        self.parameters = list(parameters)
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.nesterov = nesterov
        self._states: list[dict[str, Any]] = [{} for _ in self.parameters]
        if any(backend.is_half(one.dtype) for one in self.parameters):
            message = "Parameters in half precision need optim.SGD, which keeps"
            raise ArgumentError("dtype", f"{message} their values in float32.")

    def step(self) -> None:
        """Change every parameter that has a gradient, in place."""
        now = next_order()
        for parameter, state in zip(self.parameters, self._states):
            if parameter.grad is not None:
                sgd(parameter.data, parameter.grad, state, self)
                parameter.note_change(now)


def sgd(data: Array, gradient: Array, state: dict[str, Any], rule: Any) -> None:
    """Change values by a gradient; ``rule`` has the numbers, ``state`` the velocity."""
    decay = rule.weight_decay
    if not rule.momentum:
        for p, g in blocks(data, gradient):
            p -= rule.learning_rate * (g + decay * p if decay else g)
        return
    if "velocity" not in state:
        state["velocity"] = array_module(data).zeros_like(data)
    for p, g, v in blocks(data, gradient, state["velocity"]):
        v *= rule.momentum
        g = g + decay * p if decay else g
        v += g
        p -= rule.learning_rate * (g + rule.momentum * v if rule.nesterov else v)


def blocks(*arrays: Array) -> Iterable[tuple[Array, ...]]:
    """Return the same piece of every array, piece by piece: views, to be changed in
    place.

    NumPy passes through memory once for each operation of a formula, and allocates
    every intermediate result. Piece by piece everything stays in the cache, at twice
    the speed. The bits are the same: element-wise operations round each element alone.
    Small arrays, arrays that are not contiguous and arrays of other modules come whole:
    a GPU is faster with one large operation.

    Parameters
    ----------
    arrays : arrays of one shape

    Examples
    --------
    >>> import numpy as np
    >>> x, y = np.zeros((3, 50_000)), np.ones((3, 50_000))
    >>> for a, b in blocks(x, y):
    ...     a += 2 * b
    >>> bool((x == 2).all())
    True
    """
    size = arrays[0].size
    if size <= _BLOCK_SIZE:
        return (arrays,)
    if not all(isinstance(a, np.ndarray) and a.flags.c_contiguous for a in arrays):
        return (arrays,)
    starts = range(0, size, _BLOCK_SIZE)
    pieces = [slice(start, start + _BLOCK_SIZE) for start in starts]
    flat = [array.reshape(-1) for array in arrays]
    return zip(*[map(array.__getitem__, pieces) for array in flat])
