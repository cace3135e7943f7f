"""Optimisers: they change the parameters of this rank, and need no messages."""

from __future__ import annotations

from collections.abc import Iterable

from minipipe import backend
from minipipe.backend import Array
from minipipe.errors import ParameterError
from minipipe.nn.parameter import Parameter

__all__ = ["SGD"]


class SGD:
    """Stochastic gradient descent with momentum and weight decay.

    Local; no messages. Roughly: ``v = momentum * v + gradient + weight_decay * p; p -= learning_rate * v``, which is
    PyTorch's form. No parameters at all are fine: a rank may hold only layers without any.

    Parameters
    ----------
    parameters : iterable of Parameter
    learning_rate : float
        Above 0; may be changed between steps.
    momentum : float
        At least 0, below 1.
    weight_decay : float
        At least 0.

    Raises
    ------
    ValueError
        When a number is out of its range.
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        learning_rate: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        if not learning_rate > 0:
            raise ValueError(f"learning_rate is {learning_rate}; expected more than 0.")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum is {momentum}; expected at least 0 and less than 1.")
        if not weight_decay >= 0:
            raise ValueError(f"weight_decay is {weight_decay}; expected at least 0.")
        self.parameters = list(parameters)
        for parameter in self.parameters:
            if not isinstance(parameter, Parameter):
                raise TypeError(
                    f"An optimiser takes parameters; {type(parameter).__name__} is none. Give model.parameters() or "
                    "pipeline.parameters(), or a list: [model.weight]."
                )
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self._velocity: list[Array | None] = [None] * len(self.parameters)

    def step(self) -> None:
        """Change every parameter that has a gradient, in place.

        Raises
        ------
        ParameterError
            Code ``uninitialised``, when not one parameter has values: these are not the ones that are trained.
        """
        if self.parameters and not any(parameter.is_filled for parameter in self.parameters):
            raise ParameterError(
                "uninitialised",
                "None of these parameters has values. A pipeline trains copies of the model's layers: give "
                "pipeline.parameters() to the optimiser, not model.parameters().",
            )
        for i, parameter in enumerate(self.parameters):
            change = parameter.grad
            if change is None:
                continue
            if self.weight_decay:
                change = change + self.weight_decay * parameter.data
            if self.momentum:
                change = self._accelerated(i, change)
            parameter.data -= self.learning_rate * change

    def _accelerated(self, i: int, change: Array) -> Array:
        velocity = self._velocity[i]
        if velocity is None:
            velocity = self._velocity[i] = backend.copy(change)
        else:
            velocity *= self.momentum
            velocity += change
        return velocity

    def zero_grad(self) -> None:
        """Forget every gradient. After ``pipeline.step`` this is not needed: it overwrites them."""
        for parameter in self.parameters:
            parameter.zero_grad()
