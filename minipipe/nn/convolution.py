"""Convolutional layers.

There is no BatchNorm. Its statistics would be taken over each microbatch, so the result would depend on the number of
microbatches, and a pipelined step could not equal one process over the whole batch. Norms within one sample, such as
LayerNorm and GroupNorm, have no such trouble.
"""

from __future__ import annotations

from typing import Any

from minipipe import functional
from minipipe.backend import prod
from minipipe.functional.convolution import per_axis
from minipipe.nn.initialisers import Initialiser, he_uniform
from minipipe.nn.module import Module
from minipipe.nn.parameter import Parameter
from minipipe.tensor import Tensor


class _Convolution(Module):
    """What the convolutions share; they differ in the number of axes that the kernel moves along."""

    num_axes: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] = 0,
        bias: bool = True,
        initialiser: Initialiser | None = None,
        dtype: Any = None,
    ) -> None:
        name, axes = type(self).__name__, self.num_axes
        kernel = per_axis(name, "kernel_size", kernel_size, axes)
        channels = per_axis(name, "out_channels", out_channels, 1) + per_axis(name, "in_channels", in_channels, 1)
        self.stride: Any = per_axis(name, "stride", stride, axes)
        self.padding: Any = per_axis(name, "padding", padding, axes, 0)
        fan_in = channels[1] * prod(kernel)
        self.weight = Parameter((*channels, *kernel), initialiser or he_uniform(fan_in), dtype)
        self.bias = Parameter(channels[:1], dtype=dtype) if bias else None

    def describe(self) -> str:
        """Name channels, kernel, and the options that differ from the default."""
        out_channels, in_channels, *kernel = self.weight.shape
        parts = [str(in_channels), str(out_channels), _brief(tuple(kernel))]
        parts += [f"stride={_brief(self.stride)}"] * (set(self.stride) != {1})
        parts += [f"padding={_brief(self.padding)}"] * (set(self.padding) != {0})
        return ", ".join(parts + ["bias=False"] * (self.bias is None))


class Conv1d(_Convolution):
    """The cross-correlation of series with learnt kernels; see :func:`minipipe.functional.conv1d`.

    Parameters
    ----------
    in_channels, out_channels : int
        Lengths of the second axis before and after.
    kernel_size, stride, padding : int
    bias : bool
        Whether each output channel has a bias.
    initialiser : function, optional
        First values of the weight; by default :func:`~minipipe.nn.initialisers.he_uniform` of the number of elements
        that a kernel meets, ``in_channels * kernel_size``. The bias begins at 0.
    dtype : dtype, optional
        float32 by default.

    Attributes
    ----------
    weight : Parameter of shape (out_channels, in_channels, kernel_size)
    bias : Parameter of shape (out_channels,), or None

    Raises
    ------
    TensorError
        Code ``range``.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> nn.Conv1d(2, 6, kernel_size=3)(Tensor(np.ones((4, 2, 10), np.float32))).shape
    (4, 6, 8)
    """

    num_axes = 1

    def forward(self, x: Tensor) -> Tensor:
        """Map series of shape (n, in_channels, length) to (n, out_channels, windows)."""
        return functional.conv1d(x, self.weight, self.bias, self.stride, self.padding)


class Conv2d(_Convolution):
    """The cross-correlation of images with learnt kernels; see :func:`minipipe.functional.conv2d`.

    Parameters
    ----------
    in_channels, out_channels : int
        Lengths of the second axis before and after.
    kernel_size, stride, padding : int or (int, int)
        One for both axes, or one for each: height, then width.
    bias : bool
        Whether each output channel has a bias.
    initialiser : function, optional
        First values of the weight; by default :func:`~minipipe.nn.initialisers.he_uniform` of the number of elements
        that a kernel meets, ``in_channels * kernel height * kernel width``. The bias begins at 0.
    dtype : dtype, optional
        float32 by default.

    Attributes
    ----------
    weight : Parameter of shape (out_channels, in_channels, kernel height, kernel width)
    bias : Parameter of shape (out_channels,), or None

    Raises
    ------
    TensorError
        Code ``range``.

    Examples
    --------
    >>> Conv2d(3, 16, 3, padding=1)
    Conv2d(3, 16, 3, padding=1)
    >>> import numpy as np
    >>> from minipipe import Tensor
    >>> Conv2d(3, 16, 3, padding=1)(Tensor(np.ones((4, 3, 8, 8), np.float32))).shape
    (4, 16, 8, 8)
    """

    num_axes = 2

    def forward(self, x: Tensor) -> Tensor:
        """Map images of shape (n, in_channels, height, width) to (n, out_channels, oh, ow)."""
        return functional.conv2d(x, self.weight, self.bias, self.stride, self.padding)


class MaxPool2d(Module):
    """The largest element of each window; see :func:`minipipe.functional.max_pool2d`.

    Parameters
    ----------
    kernel_size : int or (int, int)
    stride : int or (int, int), optional
        By default ``kernel_size``.

    Raises
    ------
    TensorError
        Code ``range``.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> nn.MaxPool2d(2)(Tensor(np.ones((4, 3, 8, 8)))).shape
    (4, 3, 4, 4)
    """

    def __init__(self, kernel_size: int | tuple[int, int], stride: int | tuple[int, int] | None = None) -> None:
        self.kernel_size: Any = per_axis("MaxPool2d", "kernel_size", kernel_size, 2)
        self.stride: Any = self.kernel_size if stride is None else per_axis("MaxPool2d", "stride", stride, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Map images of shape (n, channels, height, width) to (n, channels, oh, ow)."""
        return functional.max_pool2d(x, self.kernel_size, self.stride)

    def describe(self) -> str:
        """Name the kernel, and the stride where it is another."""
        stride = f", stride={_brief(self.stride)}" if self.stride != self.kernel_size else ""
        return _brief(self.kernel_size) + stride


def _brief(values: tuple[int, ...]) -> str:
    """Write one number where all axes have the same."""
    return str(values[0]) if len(set(values)) == 1 else str(values)
