"""Pooling: one number for each window of a channel. Series are (n, channels, length), images (n, channels, h, w)."""

from __future__ import annotations

from typing import Any

from minipipe.autograd import backend
from minipipe.autograd.backend import Array, array_module
from minipipe.errors import TensorError
from minipipe.functional.reduction import mean
from minipipe.functional.windows import AXES, Shape, Windows, per_axis
from minipipe.tensor import Operand, Tensor, as_real, as_tensor, record


def max_pool1d(x: Operand, kernel: int | Shape, stride: int | Shape | None = None) -> Tensor:
    """Return the largest element of each window of a series; the rules are those of :func:`max_pool2d`.

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
        Codes ``shape`` and ``range``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.max_pool1d(Tensor([[[1.0, 5.0, 2.0, 3.0]]]), kernel=2)
    Tensor([[[5., 3.]]])
    """
    return _max_pool("max_pool1d", 1, x, kernel, stride)


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
    return _max_pool("max_pool2d", 2, x, kernel, stride)


def avg_pool1d(x: Operand, kernel: int | Shape, stride: int | Shape | None = None) -> Tensor:
    """Return the mean of each window of a series; the rules are those of :func:`avg_pool2d`.

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
        Codes ``shape`` and ``range``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.avg_pool1d(Tensor([[[1.0, 5.0, 2.0, 3.0]]]), kernel=2)
    Tensor([[[3. , 2.5]]])
    """
    return _avg_pool("avg_pool1d", 1, x, kernel, stride)


def avg_pool2d(x: Operand, kernel: int | Shape, stride: int | Shape | None = None) -> Tensor:
    """Return the mean of each window. Rows and columns at the end that fill no window are dropped.

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
    >>> functional.avg_pool2d(Tensor(np.arange(16.0).reshape(1, 1, 4, 4)), kernel=2).numpy().tolist()
    [[[[2.5, 4.5], [10.5, 12.5]]]]
    """
    return _avg_pool("avg_pool2d", 2, x, kernel, stride)


def global_avg_pool(x: Operand) -> Tensor:
    """Return the mean of each channel over all its positions, whatever their number.

    Parameters
    ----------
    x : Tensor of shape (n, channels, *spatial)
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
        raise TensorError(
            "shape",
            f"global_avg_pool: the input has shape {x.shape}; expected (n, channels, *spatial), with at least one axis "
            "behind the channels and none of them empty.",
        )
    return mean(x, tuple(range(2, x.ndim)))


def _max_pool(name: str, num_axes: int, x: Operand, kernel: Any, stride: Any) -> Tensor:
    x = as_tensor(x)
    places = list(_windows(name, num_axes, x, kernel, stride).places())
    xp, data, shape, dtype = array_module(x.data), x.data, x.shape, x.data.dtype
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


def _avg_pool(name: str, num_axes: int, x: Operand, kernel: Any, stride: Any) -> Tensor:
    x = as_real(x)
    places = list(_windows(name, num_axes, x, kernel, stride).places())
    xp, data, shape, dtype = array_module(x.data), x.data, x.shape, x.data.dtype
    result = xp.zeros(data[places[0]].shape, dtype=dtype)
    for place in places:
        result += data[place]
    result /= len(places)

    def spread(g: Array) -> Array:
        result, share = xp.zeros(shape, dtype=dtype), g / len(places)
        for place in places:
            result[place] += share
        return result

    return record(result, (x, spread))


def _windows(name: str, num_axes: int, x: Tensor, kernel: Any, stride: Any) -> Windows:
    sizes = per_axis(name, "kernel", kernel, num_axes)
    strides = sizes if stride is None else per_axis(name, "stride", stride, num_axes)
    if x.ndim != 2 + num_axes:
        axes = ", ".join(AXES[num_axes])
        raise TensorError("shape", f"{name}: the input has shape {x.shape}; expected (n, channels, {axes}).")
    return Windows.checked(name, x.shape, sizes, strides, ((0, 0),) * num_axes, (1,) * num_axes)
