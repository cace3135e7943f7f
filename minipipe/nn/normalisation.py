"""Layers that normalise within each sample.

There is no BatchNorm. Its mean and variance are those of a batch, and a pipeline computes one microbatch at a time: the
statistics, and with them the loss and every gradient, would depend on how the batch is cut. No number of microbatches
could give the result of another one, or of the whole batch. Statistics of one sample do not know what lies beside it.
"""

from __future__ import annotations

from typing import Any

from minipipe import functional
from minipipe.errors import ArgumentError
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


class GroupNorm(Module):
    """Mean 0 and variance 1 over each group of channels, then * weight + bias.

    It takes the place of BatchNorm in networks of convolutions, and that of instance normalisation with as many groups
    as channels; see :func:`minipipe.functional.group_norm`.

    Parameters
    ----------
    num_groups : int
        Divides num_channels.
    num_channels : int
        Length of the second axis.
    epsilon : float
        Added to the variance.
    dtype : dtype, optional
        float32 by default.

    Attributes
    ----------
    weight : Parameter of shape (num_channels,)
        Begins at 1.
    bias : Parameter of shape (num_channels,)
        Begins at 0.

    Raises
    ------
    ArgumentError
        Code ``value``.

    References
    ----------
    Wu, He 2018, "Group normalization".

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> layer = nn.GroupNorm(num_groups=2, num_channels=6)
    >>> layer(Tensor(np.ones((4, 6, 8, 8), np.float32))).shape
    (4, 6, 8, 8)
    """

    def __init__(self, num_groups: int, num_channels: int, epsilon: float = 1e-5, dtype: Any = None) -> None:
        check_lengths("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        if num_groups < 1 or num_channels % num_groups:
            raise ArgumentError(
                "value",
                f"GroupNorm: {num_channels} channels cannot be divided into {num_groups} groups; expected a divisor.",
            )
        self.num_groups = num_groups
        self.epsilon = epsilon
        self.weight = Parameter((num_channels,), constant(1.0), dtype)
        self.bias = Parameter((num_channels,), constant(0.0), dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape, (n, num_channels, *spatial)."""
        return functional.group_norm(x, self.num_groups, self.weight, self.bias, self.epsilon)

    def describe(self) -> str:
        """Name groups and channels."""
        return f"{self.num_groups}, {self.weight.shape[0]}"


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
