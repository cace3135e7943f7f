"""Activation functions as layers."""

from __future__ import annotations

from minipipe import functional
from minipipe.nn.module import Module
from minipipe.tensor import Tensor


class ReLU(Module):
    """x where it is positive, 0 elsewhere.

    Examples
    --------
    >>> from minipipe import Tensor, nn
    >>> nn.ReLU()(Tensor([-1.0, 2.0]))
    Tensor([0., 2.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        return functional.relu(x)


class Tanh(Module):
    """The hyperbolic tangent of each element.

    Examples
    --------
    >>> from minipipe import Tensor, nn
    >>> nn.Tanh()(Tensor([0.0, 100.0]))
    Tensor([0., 1.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        return functional.tanh(x)


class Sigmoid(Module):
    """1 / (1 + e^-x) of each element.

    Examples
    --------
    >>> from minipipe import Tensor, nn
    >>> nn.Sigmoid()(Tensor([0.0, 100.0]))
    Tensor([0.5, 1. ])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        return functional.sigmoid(x)


class SiLU(Module):
    """x times the sigmoid of x; see :func:`minipipe.functional.silu`.

    Examples
    --------
    >>> from minipipe import Tensor, nn
    >>> nn.SiLU()(Tensor([0.0, 100.0]))
    Tensor([  0., 100.])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        return functional.silu(x)


class GELU(Module):
    """x times the probability that a normal number is smaller; see :func:`minipipe.functional.gelu`.

    Parameters
    ----------
    approximate : bool
        Whether to take the faster form with tanh.

    Examples
    --------
    The two forms differ in the fourth digit.

    >>> from minipipe import Tensor, nn
    >>> x = Tensor(1.0)
    >>> round(nn.GELU()(x).item(), 4), round(nn.GELU(approximate=True)(x).item(), 4)
    (0.8413, 0.8412)
    """

    def __init__(self, approximate: bool = False) -> None:
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        return functional.gelu(x, self.approximate)

    def describe(self) -> str:
        """Say whether it approximates."""
        return "approximate=True" if self.approximate else ""
