"""Convolutions, in PyTorch's layout: images are (n, channels, height, width).

A convolution is one matrix product. Each window of the input becomes a column of a matrix (this is called im2col), and
each output channel is a row of weights:

    result = weights @ columns                (o, n * oh * ow) = (o, c * kh * kw) @ (c * kh * kw, n * oh * ow)

So its gradients are those of a product, ``weights.T @ g`` and ``g @ columns.T``; the first is a gradient of columns,
and every column is added back to the window that it came from. With groups it is one such product for each group, of
its own rows and columns: (groups, o / groups, …) @ (groups, c / groups * kh * kw, …).
"""

from __future__ import annotations

from typing import Any

from minipipe.autograd import backend
from minipipe.autograd.backend import Array
from minipipe.errors import TensorError
from minipipe.functional.windows import AXES, Shape, Windows, per_axis, swapped
from minipipe.tensor import Tensor, operands, record


def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Shape = 1,
    padding: int | Shape | str = 0,
    dilation: int | Shape = 1,
    groups: int = 1,
) -> Tensor:
    """Return the cross-correlation of series with kernels, plus the bias of each output channel.

    Parameters
    ----------
    x : Tensor of shape (n, in_channels, length)
    weight : Tensor of shape (out_channels, in_channels / groups, kernel)
    bias : Tensor of shape (out_channels,), optional
    stride : int
        How far the kernel moves from one window to the next.
    padding : int or "same"
        How many zeros are put before and after; see :func:`conv2d`.
    dilation : int
        The distance between neighbours in the kernel.
    groups : int
        Into how many groups the channels are divided; see :func:`conv2d`.

    Returns
    -------
    Tensor of shape (n, out_channels, (length + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1)

    Raises
    ------
    TensorError
        Codes ``shape``, ``range`` and ``dtype``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> x, differences = Tensor([[[1.0, 2.0, 4.0, 8.0]]]), Tensor([[[-1.0, 1.0]]])
    >>> functional.conv1d(x, differences)
    Tensor([[[1., 2., 4.]]])
    >>> functional.conv1d(x, differences, dilation=2)
    Tensor([[[3., 6.]]])
    """
    return _convolution("conv1d", 1, x, weight, bias, (stride, padding, dilation), groups)


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Shape = 1,
    padding: int | Shape | str = 0,
    dilation: int | Shape = 1,
    groups: int = 1,
) -> Tensor:
    """Return the cross-correlation of images with kernels, plus the bias of each output channel.

    Parameters
    ----------
    x : Tensor of shape (n, in_channels, height, width)
    weight : Tensor of shape (out_channels, in_channels / groups, kernel height, kernel width)
    bias : Tensor of shape (out_channels,), optional
    stride : int or (int, int)
        How far the kernel moves from one window to the next, down and to the right.
    padding : int, (int, int) or "same"
        How many zeros are put above and below, and left and right. "same" keeps height and width, with stride 1; where
        the number of zeros is odd, as for a kernel of even length, the one more comes after.
    dilation : int or (int, int)
        The distance between neighbours in the kernel, down and to the right.
    groups : int
        Divides both numbers of channels. The outputs of the g-th group see the inputs of the g-th group alone; with as
        many groups as input channels it is called depthwise.

    Returns
    -------
    Tensor of shape (n, out_channels, oh, ow)
        With oh = (height + 2 * padding - dilation * (kernel height - 1) - 1) // stride + 1, and ow alike.

    Raises
    ------
    TensorError
        Codes ``shape``, ``range`` and ``dtype``.

    Notes
    -----
    The columns take as much memory as the input, times the size of the kernel. They live only inside the product:
    the graph keeps the input, and the gradient of the weight gathers them again, about a tenth of the step's time.
    PyTorch has kernels that need no columns.

    References
    ----------
    Yu, Koltun 2016, "Multi-scale context aggregation by dilated convolutions", equation 2. Krizhevsky et al. 2012,
    "ImageNet classification with deep convolutional neural networks", figure 2, has two groups.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, functional
    >>> images, sums = Tensor(np.ones((1, 1, 3, 4))), Tensor(np.ones((1, 1, 2, 2)))
    >>> functional.conv2d(images, sums).numpy().tolist()
    [[[[4.0, 4.0, 4.0], [4.0, 4.0, 4.0]]]]
    >>> functional.conv2d(images, sums, padding="same").numpy().tolist()
    [[[[4.0, 4.0, 4.0, 2.0], [4.0, 4.0, 4.0, 2.0], [2.0, 2.0, 2.0, 1.0]]]]
    """
    return _convolution("conv2d", 2, x, weight, bias, (stride, padding, dilation), groups)


def check_padding(name: str, padding: Any, strides: Shape) -> Any:
    """Return a padding for each axis, or "same".

    Raises
    ------
    TensorError
        Code ``range``.
    """
    if padding != "same":
        return per_axis(name, "padding", padding, len(strides), 0, ', or "same"')
    if set(strides) != {1}:
        message = f'{name}: padding is "same" and stride {strides}; expected stride 1, or a number for the padding.'
        raise TensorError("range", message)
    return padding


def check_groups(name: str, groups: Any, in_channels: int, out_channels: int) -> int:
    """Return the number of groups, which divides both numbers of channels.

    Raises
    ------
    TensorError
        Code ``range``.
    """
    (count,) = per_axis(name, "groups", groups, 1)
    if in_channels % count or out_channels % count:
        raise TensorError(
            "range",
            f"{name}: groups is {count}; expected a divisor of the {in_channels} input channels and of the "
            f"{out_channels} output channels.",
        )
    return count


def _convolution(
    name: str, num_axes: int, x: Tensor, weight: Tensor, bias: Tensor | None, settings: tuple[Any, ...], groups: Any
) -> Tensor:
    x, weight = operands(x, weight)
    bias = None if bias is None else operands(x, bias)[1]
    groups = _check(name, num_axes, x, weight, bias, groups)
    windows = _windows(name, x.shape, weight.shape, settings)
    data, shape, size = x.data, weight.shape, backend.prod(weight.shape[1:])
    outs, num_columns = shape[0] // groups, x.shape[0] * backend.prod(windows.number)
    matrices = backend.reshape(weight.data, (groups, outs, size))

    def columns() -> Array:
        return backend.reshape(windows.columns(data), (groups, size, num_columns))

    def by_group(g: Array) -> Array:
        """Return the gradient of the result as a matrix for each group, with a row for each of its channels."""
        return backend.reshape(swapped(g), (groups, outs, num_columns))

    def of_input(g: Array) -> Array:
        return windows.add_columns(backend.matmul(matrices.mT, by_group(g)))

    def of_weight(g: Array) -> Array:
        return backend.reshape(backend.matmul(by_group(g), columns().mT), shape)

    inputs = [(x, of_input), (weight, of_weight)]
    result = backend.matmul(matrices, columns())
    if bias is not None:
        axes = (0, *range(2, x.ndim))
        result += backend.reshape(bias.data, (groups, outs, 1))
        inputs.append((bias, lambda g: backend.reduce_sum(g, axis=axes)))
    by_channel = backend.reshape(result, (shape[0], x.shape[0], *windows.number))
    return record(backend.contiguous(swapped(by_channel)), *inputs)


def _windows(name: str, image: Shape, weight: Shape, settings: tuple[Any, ...]) -> Windows:
    stride, padding, dilation = settings
    kernel = weight[2:]
    strides = per_axis(name, "stride", stride, len(kernel))
    dilations = per_axis(name, "dilation", dilation, len(kernel))
    padding = check_padding(name, padding, strides)
    if padding == "same":
        missing = [step * (size - 1) for size, step in zip(kernel, dilations)]
        zeros = tuple((each // 2, each - each // 2) for each in missing)
    else:
        zeros = tuple((each, each) for each in padding)
    return Windows.checked(name, image, kernel, strides, zeros, dilations)


def _check(name: str, num_axes: int, x: Tensor, weight: Tensor, bias: Tensor | None, groups: Any) -> int:
    """Check the shapes of all operands, and return the number of groups."""
    axes = ", ".join(AXES[num_axes])
    if x.ndim != 2 + num_axes or weight.ndim != 2 + num_axes:
        raise TensorError(
            "shape",
            f"{name}: the input has shape {x.shape} and the weight {weight.shape}; expected "
            f"(n, in_channels, {axes}) and (out_channels, in_channels, {axes} of the kernel)."
            + (" Images of one channel have that axis, too: images[:, None]." if x.ndim == 1 + num_axes else ""),
        )
    groups = check_groups(name, groups, x.shape[1], weight.shape[0])
    if x.shape[1] != groups * weight.shape[1]:
        beside = f" in each of {groups} groups" if groups > 1 else ""
        raise TensorError(
            "shape",
            f"{name}: the input of shape {x.shape} has {x.shape[1]} channels, but the weight of shape "
            f"{weight.shape} takes {weight.shape[1]}{beside}; the second axis of both must be equally long"
            + (", times the number of groups." if groups > 1 else "."),
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise TensorError("shape", f"{name}: the bias has shape {bias.shape}; expected {weight.shape[:1]}.")
    return groups
