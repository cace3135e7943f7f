"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, ClassVar

from minipipe.autograd.backend import Array, array_module
from minipipe.nn.parameter import Parameter
from minipipe.optim.blocks import blocks
from minipipe.optim.optimiser import Optimiser
from minipipe.optim.parameter_group import ParameterGroup


class SGD(Optimiser):
    """Stochastic gradient descent with momentum and weight decay.

    Local; no messages. Roughly: ``v = momentum * v + gradient + weight_decay * p; p -= learning_rate * v``, which is
    PyTorch's form. No parameters at all are fine: a rank may hold only layers without any.

    Parameters
    ----------
    parameters : iterable of Parameter, or of dict
        A dict is a group with numbers of its own: ``{"parameters": [...], "learning_rate": 0.1}``.
    learning_rate : float
        At least 0; may be changed between steps.
    momentum : float
        At least 0, below 1. At 0 no velocity is kept.
    weight_decay : float
        At least 0.

    Raises
    ------
    ArgumentError
        Code ``value``: when a number is out of its range, or the groups are not well formed (see :class:`Optimiser`).
        Code ``type``: when something is no parameter.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import nn, optim
    >>> weight = nn.Parameter(np.array([1.0, 2.0]))
    >>> weight.grad = np.array([1.0, -4.0])
    >>> optim.SGD([weight], learning_rate=0.5).step()
    >>> weight.data
    array([0.5, 4. ])
    """

    __slots__ = ()
    kept: ClassVar[Mapping[str, float]] = {"velocity": -inf}

    def __init__(
        self,
        parameters: Iterable[Parameter] | Iterable[Mapping[str, Any]],
        learning_rate: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, learning_rate=learning_rate, momentum=momentum, weight_decay=weight_decay)

    def _update(self, data: Array, gradient: Array, state: dict[str, Any], group: ParameterGroup) -> None:
        if not group.momentum:
            for p, g in blocks(data, gradient):
                p -= group.learning_rate * with_decay(g, p, group.weight_decay)
            return
        if "velocity" not in state:
            state["velocity"] = array_module(data).zeros_like(data)
        for p, g, v in blocks(data, gradient, state["velocity"]):
            v *= group.momentum
            v += with_decay(g, p, group.weight_decay)
            p -= group.learning_rate * v


def with_decay(gradient: Array, data: Array, weight_decay: float) -> Array:
    """Return the gradient of the loss plus ``weight_decay / 2`` times the sum of the squared values."""
    return gradient + weight_decay * data if weight_decay else gradient
