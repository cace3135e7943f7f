"""Convolutions, in PyTorch's layout: images are (n, channels, height, width).

A convolution is one matrix product. Each window of the input becomes a column of a
matrix (this is called im2col), and each output channel is a row of weights:

    result = weights @ columns                (o, n * oh * ow) = (o, c * kh * kw) @ (c *
    kh * kw, n * oh * ow)

So its gradients are the gradients of a product, ``weights.T @ g`` and ``g @
columns.T``; the first is a gradient of the columns, and every column is added back to
the window that it came from. With groups there is one such product for each group, with
its own rows and columns: (groups, o / groups, …) @ (groups, c / groups * kh * kw, …).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Arrays, Shape, array_module
from minipipe.core.functional.operands import as_real, one_real, operands
from minipipe.core.functional.reduction import mean
from minipipe.core.specs import Spec, divisor
from minipipe.core.tensor import Operand, Tensor, as_tensor, op
from minipipe.errors import TensorError, counted, shape_error
from minipipe.hints import with_hints

Setting = int | Shape
"""A number for all axes, or one for each."""
AXES = {1: ("length",), 2: ("height", "width")}
_SETTING = Spec(int, error=TensorError, code="out-of-range")


def per_axis(
    name: str,
    what: str,
    value: Any,
    num_axes: int,
    smallest: int = 1,
    or_else: str = "",
) -> Shape:
    """Return a setting for each axis, from one whole number for all of them or a tuple
    with one for each.

    Raises
    ------
    TensorError
        Code ``out-of-range``; the message begins with ``name``, the operation or layer;
        ``or_else`` names other legal values.
    """
    values = value
    if not isinstance(value, tuple | list):
        values = (value,) * num_axes
    expected = "a whole number"
    if num_axes > 1:
        expected += f" or {num_axes} of them"
    expected += f", at least {smallest}{or_else}"
    spec = _SETTING._replace(minimum=smallest, expected=expected)
    if len(values) != num_axes:
        raise spec.refusal(f"{name}: {what}", value)
    return tuple(spec.check_items(f"{name}: {what}", value, values))


@dataclass(frozen=True)
class Windows:
    """How a kernel moves over an input: all but the numbers in both, so that a node may
    keep it.
    """

    shape: Shape  # (n, c, *axes) of the input
    kernel: Shape
    strides: Shape
    paddings: tuple[tuple[int, int], ...]  # zeros before and after, along each axis
    dilations: Shape  # from one element of the kernel to the next

    @cached_property
    def extent(self) -> Shape:
        """How many elements the kernel spans along each axis; below 1 for an empty
        one.
        """
        pairs = zip(self.kernel, self.dilations)
        return tuple(step * (size - 1) + 1 for size, step in pairs)

    @cached_property
    def padded(self) -> Shape:
        """The shape of the input with padding."""
        pairs = zip(self.shape[2:], self.paddings)
        return *self.shape[:2], *(length + sum(zeros) for length, zeros in pairs)

    @cached_property
    def number(self) -> Shape:
        """How many windows there are along each axis."""
        each = zip(self.padded[2:], self.extent, self.strides)
        return tuple((length - extent) // stride + 1 for length, extent, stride in each)

    @cached_property
    def inside(self) -> tuple[Any, ...]:
        """The index of the input within the padded one."""
        each = zip(self.shape[2:], self.paddings)
        return ..., *(slice(before, before + length) for length, (before, _) in each)

    def places(self) -> Iterator[tuple[Any, ...]]:
        """Yield, for each element of the kernel, the index of its partners in all
        windows at once: (..., *number).

        A kernel has few elements and an image many windows, so a loop over these is as
        fast as NumPy's ``sliding_window_view``, and works with every array module.
        """
        for offsets in itertools.product(*map(range, self.kernel)):
            each = zip(offsets, self.dilations, self.strides, self.number)
            index: list[Any] = [...]
            for offset, step, stride, count in each:
                start = offset * step
                index.append(slice(start, start + stride * (count - 1) + 1, stride))
            yield tuple(index)

    @backend.one_line
    def columns(self, x: Array) -> Array:
        """Return each window of the input as a column: (c * size of the kernel, n *
        number of windows).
        """
        xp = array_module(x)
        (n, c, *_) = self.shape
        size = backend.prod(self.kernel)
        padded = swapped(x)
        if any(map(any, self.paddings)):
            padded = xp.zeros((c, n, *self.padded[2:]), dtype=x.dtype)
            padded[self.inside] = swapped(x)
        result = xp.empty((c, size, n, *self.number), dtype=x.dtype)
        for k, place in enumerate(self.places()):
            result[:, k, ...] = padded[place]
        return backend.reshape(result, (c * size, n * backend.prod(self.number)))

    @backend.one_line
    def add_columns(self, columns: Array) -> Array:
        """Add each column to the window that it came from, and return the sums in the
        shape of the input.
        """
        n, c, size = *self.shape[:2], backend.prod(self.kernel)
        parts = backend.reshape(columns, (c, size, n, *self.number))
        by_place = (parts[:, k, ...] for k in range(size))
        padded = self.added((c, n, *self.padded[2:]), by_place, columns)
        return swapped(padded[self.inside])

    def added(self, shape: Shape, parts: Iterable[Array], like: Array) -> Array:
        """Return zeros of a shape, in the dtype of ``like``, with each part added at
        its place.
        """
        result = array_module(like).zeros(shape, dtype=like.dtype)
        for place, part in zip(self.places(), parts):
            result[place] += part
        return result


def swapped(x: Array) -> Array:
    """Return the array with its first two axes exchanged, samples and channels."""
    return backend.permuted(x, (1, 0, *range(2, len(x.shape))))


@with_hints
def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Setting = 1,
    padding: Setting | str = 0,
    dilation: Setting = 1,
    groups: int = 1,
) -> Tensor:
    """Return the cross-correlation of series with kernels, plus the bias of each output
    channel.

    Parameters
    ----------
    x : Tensor of shape (n, in_channels, length)
    weight : Tensor of shape (out_channels, in_channels / groups, kernel)
    bias : Tensor of shape (out_channels,), optional
    stride : int
        How far the kernel moves from one window to the next.
    padding : int or "same"
        The number of zeros before and after; see :func:`conv2d`.
    dilation : int
        The distance between neighbours in the kernel.
    groups : int
        Into how many groups the channels are divided; see :func:`conv2d`.

    Returns
    -------
    Tensor of shape (n, out_channels, (length + 2 * padding - dilation * (kernel - 1) -
    1) // stride + 1)

    Raises
    ------
    TensorError
        Codes ``shape``, ``out-of-range`` and ``dtype``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> x, differences = Tensor([[[1.0, 2.0, 4.0, 8.0]]]), Tensor([[[-1.0, 1.0]]])
    >>> functional.conv1d(x, differences)
    Tensor([[[1., 2., 4.]]])
    >>> functional.conv1d(x, differences, dilation=2)
    Tensor([[[3., 6.]]])
    """
    settings = (stride, padding, dilation, groups)
    return _convolved("conv1d", 1, (x, weight, bias), settings)


@with_hints
def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Setting = 1,
    padding: Setting | str = 0,
    dilation: Setting = 1,
    groups: int = 1,
) -> Tensor:
    """Return the cross-correlation of images with kernels, plus the bias of each output
    channel.

    Parameters
    ----------
    x : Tensor of shape (n, in_channels, height, width)
    weight : Tensor of shape (out_channels, in_channels / groups, height, width)
    bias : Tensor of shape (out_channels,), optional
    stride : int or (int, int)
        How far the kernel moves from one window to the next, down and to the right.
    padding : int, (int, int) or "same"
        The number of zeros above and below, and left and right. "same" keeps height
        and width, with stride 1; if the number of zeros is odd, as for a kernel of
        even length, the one more comes after.
    dilation : int or (int, int)
        The distance between neighbours in the kernel, down and to the right.
    groups : int
        Divides both numbers of channels. The outputs of the g-th group see the inputs
        of the g-th group alone; with as many groups as input channels it is called
        depthwise.

    Returns
    -------
    Tensor of shape (n, out_channels, oh, ow)
        With oh = (height + 2 * padding - dilation * (kernel height - 1) - 1) // stride
        + 1, and ow accordingly.

    Raises
    ------
    TensorError
        Codes ``shape``, ``out-of-range`` and ``dtype``.

    Notes
    -----
    The columns take as much memory as the input, times the size of the kernel. They
    live only inside the product: the graph keeps the input, and the gradient of the
    weight gathers them again, about a tenth of the step's time. PyTorch has kernels
    that need no columns.

    References
    ----------
    Yu, Koltun 2016, "Multi-scale context aggregation by dilated convolutions", equation
    2. Krizhevsky et al. 2012, "ImageNet classification with deep convolutional neural
    networks", figure 2, has two groups.

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
    settings = (stride, padding, dilation, groups)
    return _convolved("conv2d", 2, (x, weight, bias), settings)


def check_padding(name: str, padding: Any, strides: Shape) -> Any:
    """Return a padding for each axis, or "same"."""
    if padding != "same":
        return per_axis(name, "padding", padding, len(strides), 0, ', or "same"')
    if set(strides) != {1}:
        problem = f'{name}: padding is "same" and stride {strides}'
        expected = "expected stride 1, or a number for the padding"
        raise TensorError("out-of-range", f"{problem}; {expected}.")
    return padding


def check_groups(name: str, groups: Any, in_channels: int, out_channels: int) -> int:
    """Return the number of groups, which divides both numbers of channels."""
    (count,) = per_axis(name, "groups", groups, 1)
    of = f"the {in_channels} input channels and of the {out_channels} output channels"
    return divisor(
        f"{name}: groups",
        count,
        in_channels,
        out_channels,
        of=of,
        error=TensorError,
        code="out-of-range",
    )


def _convolved(name: str, num_axes: int, given: Any, settings: tuple) -> Tensor:
    x, weight = operands(given[0], given[1])
    bias = given[2]
    if bias is not None:
        _, bias = operands(x, bias)
    *of_windows, groups = settings
    groups = _check(name, num_axes, x.shape, weight.shape, groups)
    if bias is not None and bias.shape != weight.shape[:1]:
        raise shape_error(name, str(weight.shape[:1]), bias=bias.shape)
    windows = _windows(name, x.shape, weight.shape[2:], *of_windows)
    return _convolution(x, weight, bias, windows=windows, groups=groups)


@op()
def _convolution(
    x: Array, weight: Array, bias: Array | None = None, *, windows: Windows, groups: int
) -> Array:
    kernels = _by_group(weight, groups)
    result = backend.matmul(kernels, _by_group(windows.columns(x), groups))
    if bias is not None:
        result += _by_group(bias, groups)
    by_channel = backend.reshape(result, (weight.shape[0], x.shape[0], *windows.number))
    return backend.contiguous(swapped(by_channel))


def _by_group(rows: Array, groups: int) -> Array:
    """Return a matrix for each group: its part of the first axis by all other axes."""
    shape = (groups, rows.shape[0] // groups, backend.prod(rows.shape[1:]))
    return backend.reshape(rows, shape)


def _of_input(g: Array, weight: Array, windows: Windows, groups: int) -> Array:
    kernels = _by_group(weight, groups)
    of_results = _by_group(swapped(g), groups)
    return windows.add_columns(backend.matmul(kernels.mT, of_results))


def _of_weight(
    g: Array, x: Array, windows: Windows, groups: int, shape: Shape
) -> Array:
    columns = _by_group(windows.columns(x), groups)
    gradient = backend.matmul(_by_group(swapped(g), groups), columns.mT)
    return backend.reshape(gradient, shape)


_convolution.gradients(
    x=_of_input,
    weight=_of_weight,
    bias=lambda g: backend.reduce_sum(g, axis=(0, *range(2, g.ndim))),
)


def _windows(name: str, image: Shape, kernel: Shape, *settings: Any) -> Windows:
    stride, padding, dilation = settings
    strides = per_axis(name, "stride", stride, len(kernel))
    dilations = per_axis(name, "dilation", dilation, len(kernel))
    padding = check_padding(name, padding, strides)
    if padding == "same":
        missing = [step * (size - 1) for size, step in zip(kernel, dilations)]
        zeros = tuple((each // 2, each - each // 2) for each in missing)
    else:
        zeros = tuple((each, each) for each in padding)
    windows = Windows(image, kernel, strides, zeros, dilations)
    pairs = zip(windows.extent, windows.padded[2:])
    if not all(1 <= extent <= length for extent, length in pairs):
        fits = f"a kernel that fits into {windows.padded[2:]}"
        shapes = {"input": image, "kernel": kernel}
        if set(dilations) != {1}:
            shapes["dilated_kernel"] = windows.extent
        raise shape_error(name, f"{fits}, the last axes with padding", **shapes)
    return windows


def _check(name: str, num_axes: int, x: Shape, weight: Shape, groups: Any) -> int:
    """Check the shapes of all operands, and return the number of groups."""
    axes = ", ".join(AXES[num_axes])
    if len(x) != 2 + num_axes or len(weight) != 2 + num_axes:
        channels = "out_channels, in_channels / groups"
        expected = f"(n, in_channels, {axes}) and ({channels}, {axes} of the kernel)"
        hint = ""
        if len(x) == 1 + num_axes:
            hint = "; images of one channel have that axis as well: images[:, None]"
        raise shape_error(name, expected + hint, input=x, weight=weight)
    groups = check_groups(name, groups, x[1], weight[0])
    if x[1] != groups * weight[1]:
        times = f"{groups} * " if groups > 1 else ""
        expected = f"{times}{counted(weight[1], 'channel')}"
        expected = f"{expected}, the second axis of the weight"
        raise shape_error(name, expected, input=x, weight=weight)
    return groups


@with_hints
def max_pool1d(x: Operand, kernel: Setting, stride: Setting | None = None) -> Tensor:
    """Return the largest element of each window of a series; the rules are as in
    :func:`max_pool2d`.

    Parameters
    ----------
    x : Tensor of shape (n, channels, length)
    kernel : int
        Length of a window.
    stride : int, optional
        How far it moves; by default ``kernel``.

    Returns
    -------
    Tensor of shape (n, channels, (length - kernel) // stride + 1)

    Raises
    ------
    TensorError
        Codes ``shape`` and ``out-of-range``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.max_pool1d(Tensor([[[1.0, 5.0, 2.0, 3.0]]]), kernel=2)
    Tensor([[[5., 3.]]])
    """
    return _pooled(_max_pool, "max_pool1d", 1, x, kernel, stride)


@with_hints
def max_pool2d(x: Operand, kernel: Setting, stride: Setting | None = None) -> Tensor:
    """Return the largest element of each window.

    Where several are largest, the first of them (row by row) takes the gradient, as in
    PyTorch. Rows and columns at the end that fill no window are dropped.

    Parameters
    ----------
    x : Tensor of shape (n, channels, height, width)
    kernel : int or (int, int)
        Height and width of a window.
    stride : int or (int, int), optional
        How far it moves down and to the right; by default ``kernel``, so that windows
        neither overlap nor leave gaps.

    Returns
    -------
    Tensor of shape (n, channels, (height - kernel height) // stride + 1, (width -
    kernel width) // stride + 1)

    Raises
    ------
    TensorError
        Codes ``shape`` and ``out-of-range``.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, functional
    >>> functional.max_pool2d(
    ...     Tensor(np.arange(16.0).reshape(1, 1, 4, 4)), kernel=2
    ... ).numpy().tolist()
    [[[[5.0, 7.0], [13.0, 15.0]]]]
    """
    return _pooled(_max_pool, "max_pool2d", 2, x, kernel, stride)


@with_hints
def avg_pool1d(x: Operand, kernel: Setting, stride: Setting | None = None) -> Tensor:
    """Return the mean of each window of a series; the rules are as in
    :func:`avg_pool2d`.

    Parameters
    ----------
    x : Tensor of shape (n, channels, length)
    kernel : int
        Length of a window.
    stride : int, optional
        How far it moves; by default ``kernel``.

    Returns
    -------
    Tensor of shape (n, channels, (length - kernel) // stride + 1)

    Raises
    ------
    TensorError
        Codes ``shape`` and ``out-of-range``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.avg_pool1d(Tensor([[[1.0, 5.0, 2.0, 3.0]]]), kernel=2)
    Tensor([[[3. , 2.5]]])
    """
    return _pooled(_avg_pool, "avg_pool1d", 1, x, kernel, stride)


@with_hints
def avg_pool2d(x: Operand, kernel: Setting, stride: Setting | None = None) -> Tensor:
    """Return the mean of each window. Rows and columns at the end that fill no window
    are dropped.

    Parameters
    ----------
    x : Tensor of shape (n, channels, height, width)
    kernel : int or (int, int)
        Height and width of a window.
    stride : int or (int, int), optional
        How far it moves down and to the right; by default ``kernel``, so that windows
        neither overlap nor leave gaps.

    Returns
    -------
    Tensor of shape (n, channels, (height - kernel height) // stride + 1, (width -
    kernel width) // stride + 1)

    Raises
    ------
    TensorError
        Codes ``shape`` and ``out-of-range``.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, functional
    >>> functional.avg_pool2d(
    ...     Tensor(np.arange(16.0).reshape(1, 1, 4, 4)), kernel=2
    ... ).numpy().tolist()
    [[[[2.5, 4.5], [10.5, 12.5]]]]
    """
    return _pooled(_avg_pool, "avg_pool2d", 2, x, kernel, stride)


def global_avg_pool(x: Operand) -> Tensor:
    """Return the mean of each channel over all its positions, for any number of
    positions.

    Parameters
    ----------
    x : Tensor of shape ``(n, channels, *spatial)``
        At least one axis behind the channels, none of them empty.

    Returns
    -------
    Tensor of shape (n, channels)

    Raises
    ------
    TensorError
        Code ``shape``.

    References
    ----------
    Lin, Chen, Yan 2014, "Network in network", section 3.2.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.global_avg_pool(Tensor([[[1.0, 3.0], [10.0, 30.0]]]))
    Tensor([[ 2., 20.]])
    """
    x = as_real(x)
    if x.ndim < 3 or 0 in x.shape[2:]:
        expected = "(n, channels, *spatial), with positions"
        raise shape_error("global_avg_pool", expected, input=x.shape)
    return mean(x, tuple(range(2, x.ndim)))


def _pooled(
    pool: Any, name: str, num_axes: int, x: Operand, kernel: Any, stride: Any
) -> Tensor:
    x = as_tensor(x)
    kernel = per_axis(name, "kernel", kernel, num_axes)
    if x.ndim != 2 + num_axes:
        expected = f"(n, channels, {', '.join(AXES[num_axes])})"
        raise shape_error(name, expected, input=x.shape)
    if stride is None:
        stride = kernel
    return pool(x, windows=_windows(name, x.shape, kernel, stride, 0, 1))


@op(saves="winner")
def _max_pool(x: Array, *, windows: Windows) -> Arrays:
    xp = array_module(x)
    (best, *candidates) = [x[place] for place in windows.places()]
    # Which place of its window won: one byte for each result is all that the gradient
    # needs.
    kind = xp.int32
    if len(candidates) < 256:
        kind = xp.uint8
    winner = xp.zeros(best.shape, dtype=kind)
    for number, candidate in enumerate(candidates, start=1):
        larger = xp.maximum(best, candidate)
        # NaN wins too, as in PyTorch, and then it stays
        has_won = (larger != best) & (best == best)
        winner = xp.where(has_won, xp.asarray(number, dtype=winner.dtype), winner)
        best = larger
    return best, winner


@backend.one_line
def _to_winners(g: Array, winner: Array, windows: Windows) -> Array:
    """Return the gradient of the input: the gradient of each window, at the place of
    its largest element.
    """
    parts = (backend.masked(g, winner == number) for number in itertools.count())
    return windows.added(windows.shape, parts, g)


_max_pool.gradients(x=_to_winners)


@op(takes=one_real)
def _avg_pool(x: Array, *, windows: Windows) -> Array:
    return _means(x, windows)


@backend.one_line
def _means(x: Array, windows: Windows) -> Array:
    """Return the mean of each window."""
    result = array_module(x).zeros((*x.shape[:2], *windows.number), dtype=x.dtype)
    for place in windows.places():
        result += x[place]
    result /= backend.prod(windows.kernel)
    return result


@backend.one_line
def _to_all(g: Array, windows: Windows) -> Array:
    """Return the gradient of the input: an equal part of the gradient of each window,
    at all of its places.
    """
    parts = itertools.repeat(g / backend.prod(windows.kernel))
    return windows.added(windows.shape, parts, g)


_avg_pool.gradients(x=_to_all)
