"""Convolutions and pooling, in PyTorch's layout: images are (n, channels, height, width).

A convolution is one matrix product. Each window of the input becomes a column of a matrix (this is called im2col), and
each output channel is a row of weights:

    result = weights @ columns                (o, n * oh * ow) = (o, c * kh * kw) @ (c * kh * kw, n * oh * ow)

So its gradients are those of a product, ``weights.T @ g`` and ``g @ columns.T``; the first is a gradient of columns,
and every column is added back to the window that it came from.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from numbers import Integral
from typing import Any, NamedTuple

from minipipe import backend
from minipipe.backend import Array, array_module
from minipipe.errors import TensorError
from minipipe.functional.shape import reshape
from minipipe.tensor import Operand, Tensor, as_tensor, operands, record

Shape = tuple[int, ...]


def conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | Shape = 1, padding: int | Shape = 0
) -> Tensor:
    """Return the cross-correlation of series with kernels: :func:`conv2d` of images of height 1.

    Parameters
    ----------
    x : Tensor of shape (n, in_channels, length)
    weight : Tensor of shape (out_channels, in_channels, kernel)
    bias : Tensor of shape (out_channels,), optional
    stride : int
        How far the kernel moves from one window to the next.
    padding : int
        How many zeros are put before and after.

    Returns
    -------
    Tensor of shape (n, out_channels, (length + 2 * padding - kernel) // stride + 1)

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
    """
    x, weight, bias = _operands(x, weight, bias)
    strides, paddings = per_axis("conv1d", "stride", stride, 1), per_axis("conv1d", "padding", padding, 1, 0)
    _check("conv1d", x, weight, bias, paddings)
    image = reshape(x, (*x.shape[:2], 1, *x.shape[2:]))
    kernels = reshape(weight, (*weight.shape[:2], 1, *weight.shape[2:]))
    result = conv2d(image, kernels, bias, (1, *strides), (0, *paddings))
    return reshape(result, (*result.shape[:2], *result.shape[3:]))


def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | Shape = 1, padding: int | Shape = 0
) -> Tensor:
    """Return the cross-correlation of images with kernels, plus the bias of each output channel.

    Parameters
    ----------
    x : Tensor of shape (n, in_channels, height, width)
    weight : Tensor of shape (out_channels, in_channels, kernel height, kernel width)
    bias : Tensor of shape (out_channels,), optional
    stride : int or (int, int)
        How far the kernel moves from one window to the next, down and to the right.
    padding : int or (int, int)
        How many zeros are put above and below, and left and right.

    Returns
    -------
    Tensor of shape (n, out_channels, oh, ow)
        With oh = (height + 2 * padding - kernel height) // stride + 1, and ow alike.

    Raises
    ------
    TensorError
        Codes ``shape``, ``range`` and ``dtype``.

    Notes
    -----
    The columns take as much memory as the input, times the size of the kernel. They live only inside the product:
    the graph keeps the input, and the gradient of the weight gathers them again, about a tenth of the step's time.
    PyTorch has kernels that need no columns; groups and dilation are left out.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, functional
    >>> images, sums = Tensor(np.ones((1, 1, 3, 4))), Tensor(np.ones((1, 1, 2, 2)))
    >>> functional.conv2d(images, sums).numpy().tolist()
    [[[[4.0, 4.0, 4.0], [4.0, 4.0, 4.0]]]]
    """
    x, weight, bias = _operands(x, weight, bias)
    strides, paddings = per_axis("conv2d", "stride", stride, 2), per_axis("conv2d", "padding", padding, 2, 0)
    _check("conv2d", x, weight, bias, paddings)
    data, shape = x.data, weight.shape
    windows = _Windows(x.shape, shape[2:], strides, paddings)
    matrix = backend.reshape(weight.data, (shape[0], backend.prod(shape[1:])))

    def of_input(g: Array) -> Array:
        return windows.add_columns(backend.matmul(matrix.T, _by_channel(g)))

    def of_weight(g: Array) -> Array:
        return backend.reshape(backend.matmul(_by_channel(g), windows.columns(data).T), shape)

    inputs = [(x, of_input), (weight, of_weight)]
    result = backend.matmul(matrix, windows.columns(data))
    if bias is not None:
        result += bias.data[:, None]
        inputs.append((bias, lambda g: backend.reduce_sum(g, axis=(0, 2, 3))))
    by_channel = backend.reshape(result, (shape[0], x.shape[0], *windows.number))
    return record(backend.contiguous(_swap(by_channel)), *inputs)


def max_pool2d(x: Operand, kernel: int | Shape, stride: int | Shape | None = None) -> Tensor:
    """Return the largest element of each window.

    Where several are largest, the first of them (row by row) takes the gradient, as in PyTorch. Rows and columns at
    the end that fill no window are dropped.

    Parameters
    ----------
    x : Tensor of shape (n, channels, height, width)
    kernel : int or (int, int)
        Height and width of a window.
    stride : int or (int, int), optional
        How far it moves down and to the right; by default ``kernel``, so that windows neither overlap nor leave gaps.

    Returns
    -------
    Tensor of shape (n, channels, (height - kernel height) // stride + 1, (width - kernel width) // stride + 1)

    Raises
    ------
    TensorError
        Codes ``shape`` and ``range``.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, functional
    >>> functional.max_pool2d(Tensor(np.arange(16.0).reshape(1, 1, 4, 4)), kernel=2).numpy().tolist()
    [[[[5.0, 7.0], [13.0, 15.0]]]]
    """
    x = as_tensor(x)
    sizes = per_axis("max_pool2d", "kernel", kernel, 2)
    strides = sizes if stride is None else per_axis("max_pool2d", "stride", stride, 2)
    if x.ndim != 4:
        raise TensorError("shape", f"max_pool2d: the input has shape {x.shape}; expected (n, channels, height, width).")
    _check_fit("max_pool2d", x.shape, sizes, (0, 0))
    xp, data, shape, dtype = array_module(x.data), x.data, x.shape, x.data.dtype
    places = list(_Windows(shape, sizes, strides).places())
    best = data[places[0]]
    # Which place of its window won: one byte for each result is all that the gradient needs.
    winner = xp.zeros(best.shape, dtype=xp.uint8 if len(places) <= 256 else xp.int32)
    for number, place in enumerate(places[1:], start=1):
        candidate = data[place]
        winner = xp.where(candidate > best, xp.asarray(number, dtype=winner.dtype), winner)
        best = xp.maximum(best, candidate)

    def to_winners(g: Array) -> Array:
        result = xp.zeros(shape, dtype=dtype)
        for number, place in enumerate(places):
            result[place] += backend.masked(g, winner == number)
        return result

    return record(best, (x, to_winners))


def per_axis(name: str, what: str, value: Any, num_axes: int, smallest: int = 1) -> Shape:
    """Return a setting for each axis, from one whole number for all of them or a tuple with one for each.

    Raises
    ------
    TensorError
        Code ``range``, which begins with ``name``, the operation or layer.
    """
    values = tuple(value) if isinstance(value, tuple | list) else (value,) * num_axes
    if len(values) != num_axes or not all(isinstance(each, Integral) and int(each) >= smallest for each in values):
        numbers = "a whole number" if num_axes == 1 else f"a whole number or {num_axes} of them"
        raise TensorError("range", f"{name}: {what} is {value!r}; expected {numbers}, at least {smallest}.")
    return tuple(map(int, values))


def _operands(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    x, weight = operands(x, weight)
    return x, weight, None if bias is None else operands(x, bias)[1]


def _check(name: str, x: Tensor, weight: Tensor, bias: Tensor | None, paddings: Shape) -> None:
    axes = ("height", "width") if len(paddings) == 2 else ("length",)
    if x.ndim != 2 + len(axes) or weight.ndim != 2 + len(axes):
        raise TensorError(
            "shape",
            f"{name}: the input has shape {x.shape} and the weight {weight.shape}; expected "
            f"(n, in_channels, {', '.join(axes)}) and (out_channels, in_channels, {', '.join(axes)} of the kernel)."
            + (" Images of one channel have that axis, too: images[:, None]." if len(x.shape) == len(axes) + 1 else ""),
        )
    if x.shape[1] != weight.shape[1]:
        raise TensorError(
            "shape",
            f"{name}: the input of shape {x.shape} has {x.shape[1]} channels, but the weight of shape "
            f"{weight.shape} takes {weight.shape[1]}; the second axis of both must be equally long.",
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise TensorError("shape", f"{name}: the bias has shape {bias.shape}; expected {weight.shape[:1]}.")
    _check_fit(name, x.shape, weight.shape[2:], paddings)


def _check_fit(name: str, shape: Shape, kernel: Shape, paddings: Shape) -> None:
    padded = tuple(length + 2 * padding for length, padding in zip(shape[2:], paddings))
    if any(not 1 <= size <= length for size, length in zip(kernel, padded)):
        raise TensorError(
            "shape",
            f"{name}: a kernel of size {kernel} does not fit into the input of shape {shape}, whose last axes are "
            f"{padded} long with padding. Take a smaller kernel (at least 1), a larger input or more padding.",
        )


class _Windows(NamedTuple):
    """How a kernel moves over images: all but the numbers in both, so that a vjp may keep it."""

    image: Shape  # (n, c, height, width)
    kernel: Shape
    strides: Shape
    paddings: Shape = (0, 0)

    @property
    def padded(self) -> Shape:
        """The shape of the images with padding."""
        return *self.image[:2], *(length + 2 * add for length, add in zip(self.image[2:], self.paddings))

    @property
    def number(self) -> Shape:
        """How many windows there are, down and to the right: (oh, ow)."""
        each = zip(self.padded[2:], self.kernel, self.strides)
        return tuple((length - size) // stride + 1 for length, size, stride in each)

    @property
    def inside(self) -> tuple[Any, ...]:
        """The index of the images within the padded ones."""
        return ..., *(slice(add, add + length) for length, add in zip(self.image[2:], self.paddings))

    def places(self) -> Iterator[tuple[Any, ...]]:
        """Yield, for each element of the kernel, the index of what it meets in all windows at once: (..., oh, ow).

        A kernel has few elements and an image many windows, so a loop over these is as fast as NumPy's
        ``sliding_window_view``, and works with every array module.
        """
        for offsets in itertools.product(*map(range, self.kernel)):
            each = zip(offsets, self.strides, self.number)
            yield ..., *(slice(start, start + stride * (count - 1) + 1, stride) for start, stride, count in each)

    def columns(self, x: Array) -> Array:
        """Return each window of the images as a column: (c * kh * kw, n * oh * ow)."""
        xp, (n, c, _, _), size = array_module(x), self.image, backend.prod(self.kernel)
        padded = _swap(x)
        if any(self.paddings):
            padded = xp.zeros((c, n, *self.padded[2:]), dtype=x.dtype)
            padded[self.inside] = _swap(x)
        result = xp.empty((c, size, n, *self.number), dtype=x.dtype)
        for k, place in enumerate(self.places()):
            result[:, k, ...] = padded[place]
        return backend.reshape(result, (c * size, n * backend.prod(self.number)))

    def add_columns(self, columns: Array) -> Array:
        """Add each column to the window that it came from, and return the images."""
        xp, (n, c, _, _) = array_module(columns), self.image
        parts = backend.reshape(columns, (c, backend.prod(self.kernel), n, *self.number))
        padded = xp.zeros((c, n, *self.padded[2:]), dtype=columns.dtype)
        for k, place in enumerate(self.places()):
            padded[place] += parts[:, k, ...]
        return _swap(padded[self.inside])


def _swap(images: Array) -> Array:
    """Exchange the first two axes, samples and channels."""
    return array_module(images).permute_dims(images, (1, 0, 2, 3))


def _by_channel(g: Array) -> Array:
    """Return the gradient of a result, of shape (n, o, oh, ow), as a matrix with a row for each channel."""
    turned = _swap(g)
    return backend.reshape(turned, (turned.shape[0], backend.prod(turned.shape[1:])))
