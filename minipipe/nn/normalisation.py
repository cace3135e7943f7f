"""Layers that normalise over the last axis."""

from __future__ import annotations

from typing import Any

from minipipe import functional
from minipipe.nn.initialisers import constant
from minipipe.nn.module import Module, check_lengths
from minipipe.nn.parameter import Parameter
from minipipe.tensor import Tensor


class LayerNorm(Module):
    """Mean 0 and variance 1 over the last axis, then * weight + bias; see :func:`minipipe.functional.layer_norm`.

    Parameters
    ----------
    width : int
        Length of the last axis.
    epsilon : float
        Added to the variance.
    dtype : dtype, optional
        float32 by default.

    Attributes
    ----------
    weight : Parameter of shape (width,)
        Begins at 1.
    bias : Parameter of shape (width,)
        Begins at 0.

    Examples
    --------
    >>> from minipipe import Tensor, nn
    >>> nn.LayerNorm(2)(Tensor([[1.0, 3.0], [5.0, 105.0]])).numpy().round(3)
    array([[-1.,  1.],
           [-1.,  1.]], dtype=float32)
    """

    def __init__(self, width: int, epsilon: float = 1e-5, dtype: Any = None) -> None:
        check_lengths("LayerNorm", width=width)
        self.epsilon = epsilon
        self.weight = Parameter((width,), constant(1.0), dtype)
        self.bias = Parameter((width,), constant(0.0), dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape, (..., width)."""
        return functional.layer_norm(x, self.weight, self.bias, self.epsilon)

    def describe(self) -> str:
        """Name the width."""
        return str(self.weight.shape[0])


class RMSNorm(Module):
    """Mean square 1 over the last axis, then * weight; see :func:`minipipe.functional.rms_norm`.

    Parameters
    ----------
    width : int
        Length of the last axis.
    epsilon : float
        Added to the mean square.
    dtype : dtype, optional
        float32 by default.

    Attributes
    ----------
    weight : Parameter of shape (width,)
        Begins at 1.

    Examples
    --------
    >>> from minipipe import Tensor, nn
    >>> nn.RMSNorm(2)(Tensor([[1.0, 7.0]])).numpy().round(3)
    array([[0.2, 1.4]], dtype=float32)
    """

    def __init__(self, width: int, epsilon: float = 1e-5, dtype: Any = None) -> None:
        check_lengths("RMSNorm", width=width)
        self.epsilon = epsilon
        self.weight = Parameter((width,), constant(1.0), dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape, (..., width)."""
        return functional.rms_norm(x, self.weight, self.epsilon)

    def describe(self) -> str:
        """Name the width."""
        return str(self.weight.shape[0])
