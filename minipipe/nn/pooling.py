"""Layers that pool: one number for each window, or for each channel."""

from __future__ import annotations

from typing import Any

from minipipe import functional
from minipipe.functional.windows import per_axis
from minipipe.nn.convolution import written
from minipipe.nn.module import Module
from minipipe.tensor import Tensor


class _Pool(Module):
    """What pools share; they differ in the number of axes that a window has, and in what they take of it."""

    num_axes: int

    def __init__(self, kernel_size: int | tuple[int, ...], stride: int | tuple[int, ...] | None = None) -> None:
        name, axes = type(self).__name__, self.num_axes
        self.kernel_size: Any = per_axis(name, "kernel_size", kernel_size, axes)
        self.stride: Any = self.kernel_size if stride is None else per_axis(name, "stride", stride, axes)

    def describe(self) -> str:
        """Name the kernel, and the stride where it is another."""
        stride = f", stride={written(self.stride)}" if self.stride != self.kernel_size else ""
        return written(self.kernel_size) + stride


class MaxPool1d(_Pool):
    """The largest element of each window of a series; see :func:`minipipe.functional.max_pool1d`.

    Parameters
    ----------
    kernel_size : int
    stride : int, optional
        By default ``kernel_size``.

    Raises
    ------
    TensorError
        Code ``range``.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> nn.MaxPool1d(2)(Tensor(np.ones((4, 3, 8)))).shape
    (4, 3, 4)
    """

    num_axes = 1

    def forward(self, x: Tensor) -> Tensor:
        """Map series of shape (n, channels, length) to (n, channels, windows)."""
        return functional.max_pool1d(x, self.kernel_size, self.stride)


class MaxPool2d(_Pool):
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

    num_axes = 2

    def forward(self, x: Tensor) -> Tensor:
        """Map images of shape (n, channels, height, width) to (n, channels, oh, ow)."""
        return functional.max_pool2d(x, self.kernel_size, self.stride)


class AvgPool1d(_Pool):
    """The mean of each window of a series; see :func:`minipipe.functional.avg_pool1d`.

    Parameters
    ----------
    kernel_size : int
    stride : int, optional
        By default ``kernel_size``.

    Raises
    ------
    TensorError
        Code ``range``.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> nn.AvgPool1d(4, stride=2)(Tensor(np.ones((4, 3, 8)))).shape
    (4, 3, 3)
    """

    num_axes = 1

    def forward(self, x: Tensor) -> Tensor:
        """Map series of shape (n, channels, length) to (n, channels, windows)."""
        return functional.avg_pool1d(x, self.kernel_size, self.stride)


class AvgPool2d(_Pool):
    """The mean of each window; see :func:`minipipe.functional.avg_pool2d`.

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
    >>> nn.AvgPool2d(2)(Tensor(np.ones((4, 3, 8, 8)))).shape
    (4, 3, 4, 4)
    """

    num_axes = 2

    def forward(self, x: Tensor) -> Tensor:
        """Map images of shape (n, channels, height, width) to (n, channels, oh, ow)."""
        return functional.avg_pool2d(x, self.kernel_size, self.stride)


class GlobalAvgPool(Module):
    """The mean of each channel over all its positions; see :func:`minipipe.functional.global_avg_pool`.

    It stands where a network goes from images of any size to features, and takes the place of
    ``AdaptiveAvgPool2d(1)`` and Flatten.

    Raises
    ------
    TensorError
        Code ``shape``, on a call.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> nn.GlobalAvgPool()(Tensor(np.ones((4, 3, 8, 8)))).shape
    (4, 3)
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map a tensor of shape (n, channels, *spatial) to (n, channels)."""
        return functional.global_avg_pool(x)
