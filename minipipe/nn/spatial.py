"""Layers over series and images: convolutions and pools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minipipe import functional
from minipipe.core.autograd.backend import prod
from minipipe.core.nn.initialisers import Initialiser, constant, he_uniform
from minipipe.core.nn.module import Module
from minipipe.core.nn.parameter import Parameter
from minipipe.core.tensor import Tensor
from minipipe.functional.windows import Setting, check_groups, check_padding, per_axis
from minipipe.hints import with_hints


class _Convolution(Module):
    """Base class of the convolutions, which differ in the number of axes that the
    kernel moves along.
    """

    num_axes: int
    operation: Callable[..., Tensor]

    @with_hints
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Setting,
        stride: Setting = 1,
        padding: Setting | str = 0,
        dilation: Setting = 1,
        groups: int = 1,
        bias: bool = True,
        initialiser: Initialiser | None = None,
        dtype: Any = None,
    ) -> None:
        name = type(self).__name__
        axes = self.num_axes
        kernel = per_axis(name, "kernel_size", kernel_size, axes)
        (outs,) = per_axis(name, "out_channels", out_channels, 1)
        (ins,) = per_axis(name, "in_channels", in_channels, 1)
        self.stride: Any = per_axis(name, "stride", stride, axes)
        self.padding: Any = check_padding(name, padding, self.stride)
        self.dilation: Any = per_axis(name, "dilation", dilation, axes)
        self.groups = check_groups(name, groups, ins, outs)
        met = (ins // self.groups, *kernel)  # inputs of each output at each position
        initialiser = initialiser or he_uniform(prod(met))
        self.weight = Parameter((outs, *met), initialiser, dtype)
        self.bias: Parameter | None = None
        if bias:
            self.bias = Parameter((outs,), constant(0.0), dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, in_channels, length) to (n, out_channels, windows); images have two
        axes in place of length.
        """
        return self.operation(
            x,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
        )

    def describe(self) -> str:
        """Name channels, kernel, and the options that differ from the default."""
        out_channels, ins, *kernel = self.weight.shape
        parts = [str(ins * self.groups), str(out_channels), written(tuple(kernel))]
        parts += [f"stride={written(self.stride)}"] * (set(self.stride) != {1})
        if isinstance(self.padding, str):
            padding = repr(self.padding)
        else:
            padding = written(self.padding)
        parts += [f"padding={padding}"] * (padding != "0")
        parts += [f"dilation={written(self.dilation)}"] * (set(self.dilation) != {1})
        parts += [f"groups={self.groups}"] * (self.groups != 1)
        return ", ".join(parts + ["bias=False"] * (self.bias is None))


class Conv1d(_Convolution):
    """The cross-correlation of series with learnt kernels; see
    :func:`minipipe.functional.conv1d`.

    Parameters
    ----------
    in_channels, out_channels : int
        Lengths of the second axis before and after.
    kernel_size, stride : int
    padding : int or "same"
        "same" keeps the length.
    dilation : int
    groups : int
        Divides both numbers of channels; ``groups=in_channels`` is a depthwise
        convolution.
    bias : bool
        Whether each output channel has a bias.
    initialiser : function, optional
        First values of the weight; by default
        :func:`~minipipe.nn.initialisers.he_uniform` of the number of elements that a
        kernel meets, ``in_channels / groups * kernel_size``. The bias begins at 0.
    dtype : dtype, optional
        float32 by default.

    Attributes
    ----------
    weight : Parameter of shape (out_channels, in_channels / groups, kernel_size)
    bias : Parameter of shape (out_channels,), or None

    Raises
    ------
    TensorError
        Code ``out-of-range``.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> nn.Conv1d(2, 6, kernel_size=3)(Tensor(np.ones((4, 2, 10), np.float32))).shape
    (4, 6, 8)
    """

    num_axes = 1
    operation = staticmethod(functional.conv1d)


class Conv2d(_Convolution):
    """The cross-correlation of images with learnt kernels; see
    :func:`minipipe.functional.conv2d`.

    Parameters
    ----------
    in_channels, out_channels : int
        Lengths of the second axis before and after.
    kernel_size, stride : int or (int, int)
        One for both axes, or one for each: height, then width.
    padding : int, (int, int) or "same"
        "same" keeps height and width.
    dilation : int or (int, int)
    groups : int
        Divides both numbers of channels; ``groups=in_channels`` is a depthwise
        convolution.
    bias : bool
        Whether each output channel has a bias.
    initialiser : function, optional
        First values of the weight; by default
        :func:`~minipipe.nn.initialisers.he_uniform` of the number of elements that a
        kernel meets, ``in_channels / groups * kernel height * kernel width``. The bias
        begins at 0.
    dtype : dtype, optional
        float32 by default.

    Attributes
    ----------
    weight : Parameter of shape (out_channels, in_channels / groups, kernel height,
    kernel width)
    bias : Parameter of shape (out_channels,), or None

    Raises
    ------
    TensorError
        Code ``out-of-range``.

    Examples
    --------
    A depthwise convolution, and one of every channel with every channel at each
    position: together they replace a Conv2d(32, 64, 3) with an eighth of its
    parameters.

    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> layers = nn.Sequential(
    ...     nn.Conv2d(32, 32, 3, padding="same", groups=32), nn.Conv2d(32, 64, 1)
    ... )
    >>> layers(Tensor(np.ones((4, 32, 8, 8), np.float32))).shape, layers.num_parameters
    ((4, 64, 8, 8), 2432)
    """

    num_axes = 2
    operation = staticmethod(functional.conv2d)


def written(values: tuple[int, ...]) -> str:
    """Return the text of a setting: one number if it is the same for all axes."""
    if len(set(values)) == 1:
        return str(values[0])
    return str(values)


class _Pool(Module):
    """Base class of pooling layers, which differ in the number of axes of a window and
    in the value taken from it.
    """

    num_axes: int
    operation: Callable[..., Tensor]

    @with_hints
    def __init__(self, kernel_size: Setting, stride: Setting | None = None) -> None:
        name = type(self).__name__
        axes = self.num_axes
        self.kernel_size: Any = per_axis(name, "kernel_size", kernel_size, axes)
        self.stride: Any = self.kernel_size
        if stride is not None:
            self.stride = per_axis(name, "stride", stride, axes)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, channels, length) to (n, channels, windows); images have two axes in
        place of length.
        """
        return self.operation(x, self.kernel_size, self.stride)

    def describe(self) -> str:
        """Name the kernel, and the stride if it is different."""
        stride = ""
        if self.stride != self.kernel_size:
            stride = f", stride={written(self.stride)}"
        return written(self.kernel_size) + stride


class MaxPool1d(_Pool):
    """The largest element of each window of a series; see
    :func:`minipipe.functional.max_pool1d`.

    Parameters
    ----------
    kernel_size : int
    stride : int, optional
        By default ``kernel_size``.

    Raises
    ------
    TensorError
        Code ``out-of-range``.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> nn.MaxPool1d(2)(Tensor(np.ones((4, 3, 8)))).shape
    (4, 3, 4)
    """

    num_axes = 1
    operation = staticmethod(functional.max_pool1d)


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
        Code ``out-of-range``.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> nn.MaxPool2d(2)(Tensor(np.ones((4, 3, 8, 8)))).shape
    (4, 3, 4, 4)
    """

    num_axes = 2
    operation = staticmethod(functional.max_pool2d)


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
        Code ``out-of-range``.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> nn.AvgPool1d(4, stride=2)(Tensor(np.ones((4, 3, 8)))).shape
    (4, 3, 3)
    """

    num_axes = 1
    operation = staticmethod(functional.avg_pool1d)


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
        Code ``out-of-range``.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, nn
    >>> nn.AvgPool2d(2)(Tensor(np.ones((4, 3, 8, 8)))).shape
    (4, 3, 4, 4)
    """

    num_axes = 2
    operation = staticmethod(functional.avg_pool2d)


class GlobalAvgPool(Module):
    """The mean of each channel over all its positions; see
    :func:`minipipe.functional.global_avg_pool`.

    Use it at the transition from images of any size to features, in place of
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
        """Map a tensor of shape ``(n, channels, *spatial)`` to (n, channels)."""
        return functional.global_avg_pool(x)
