"""Activation functions as layers."""

from __future__ import annotations

from minipipe import functional
from minipipe.nn.module import Module
from minipipe.tensor import Tensor

__all__ = ["GELU", "ReLU", "SiLU", "Sigmoid", "Tanh"]


class ReLU(Module):
    """x where it is positive, 0 elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        return functional.relu(x)


class Tanh(Module):
    """The hyperbolic tangent of each element."""

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        return functional.tanh(x)


class Sigmoid(Module):
    """1 / (1 + e^-x) of each element."""

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        return functional.sigmoid(x)


class SiLU(Module):
    """x times the sigmoid of x; see :func:`minipipe.functional.silu`."""

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        return functional.silu(x)


class GELU(Module):
    """x times the probability that a normal number is smaller; see :func:`minipipe.functional.gelu`.

    Parameters
    ----------
    approximate : bool
        Whether to take the faster form with tanh.
    """

    def __init__(self, approximate: bool = False) -> None:
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        return functional.gelu(x, self.approximate)

    def describe(self) -> str:
        """Say whether it approximates."""
        return "approximate=True" if self.approximate else ""
