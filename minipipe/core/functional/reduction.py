"""Operations that reduce some axes to one element.

The function ``total`` does not hide Python's own ``sum``; the method has NumPy's name,
``x.sum()``.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Shape, array_module
from minipipe.core.functional.operands import axis_of, one_real
from minipipe.core.tensor import op

Axis = int | Shape | None


class Reduced(NamedTuple):
    """The axes of a reduction, and their lengths.

    Attributes
    ----------
    axes : tuple of int
        From 0, those that are reduced to one element.
    kept : tuple of int
        The shape with length 1 along them.
    size : int
        How many elements are reduced to one.
    """

    axes: Shape
    kept: Shape
    size: int


@lru_cache(maxsize=256)
def _reduced(shape: Shape, axis: int | Shape | None) -> Reduced:
    if axis is None:
        axis = tuple(range(len(shape)))
    elif not isinstance(axis, tuple):
        axis = (axis,)
    axes = tuple(axis_of(i, shape) for i in axis)
    kept = list(shape)
    for i in axes:
        kept[i] = 1
    return Reduced(axes, tuple(kept), backend.prod(tuple(shape[i] for i in axes)))


def reduced(shape: Shape, axis: Axis) -> Reduced:
    """Return the axes of a reduction of some shape: those given, or all for None.

    Examples
    --------
    >>> reduced((2, 3), -1)
    Reduced(axes=(1,), kept=(2, 1), size=3)
    """
    if isinstance(axis, list):
        axis = tuple(axis)
    return _reduced(shape, axis)


def largest_of(x: Array, axes: int | Shape) -> Array:
    """Return the largest elements over axes that stay with length 1, and -inf over an
    empty axis.

    Examples
    --------
    >>> import numpy as np
    >>> largest_of(np.array([[1.0, 2.0]]), 1), largest_of(np.ones((1, 0)), 1)
    (array([[2.]]), array([[-inf]]))
    """
    if backend.prod(x.shape) == 0:  # NumPy refuses the largest of nothing
        return backend.reduce_sum(x, axes, True) - math.inf
    # The method takes a third of the time of np.max; arrays of the array API standard
    # have none.
    if hasattr(x, "max"):
        return x.max(axis=axes, keepdims=True)
    return array_module(x).max(x, axis=axes, keepdims=True)


def without_axes(array: Array, axes: Shape, keepdims: bool) -> Array:
    """Return an array of length 1 along some axes without these, unless they are
    kept.
    """
    if keepdims:
        return array
    lengths = enumerate(array.shape)
    shape = tuple(length for i, length in lengths if i not in axes)
    return backend.reshape(array, shape)


@op(attributes="axis keepdims")
def total(a: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the sum over some axes, by default all. As a method: ``tensor.sum(axis)``.

    Parameters
    ----------
    a : Tensor of any shape
    axis : int or tuple of int, optional
    keepdims : bool
        Whether the axes stay, with length 1.

    Returns
    -------
    Tensor
        Without those axes, or with length 1 along them.

    Raises
    ------
    TensorError
        Code ``shape``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.total(Tensor([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    Tensor([4., 6.])
    """
    return backend.reduce_sum(a, reduced(a.shape, axis).axes, keepdims)


def _spread(g: Array, axis: Axis, shape: Shape) -> Array:
    with_axes = backend.reshape(g, reduced(shape, axis).kept)
    return array_module(g).broadcast_to(with_axes, shape)


total.gradients(a=_spread)


@op(takes=one_real, attributes="axis keepdims", in_float32=True)
def mean(a: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the mean over some axes, by default all; NaN over an empty axis.

    Parameters, result and errors are as in :func:`total`.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.mean(Tensor([[1.0, 2.0], [3.0, 4.0]]), axis=1, keepdims=True)
    Tensor([[1.5],
            [3.5]])
    """
    over = reduced(a.shape, axis)
    return backend.reduce_sum(a, over.axes, keepdims) / over.size


mean.gradients(
    a=lambda g, axis, shape: _spread(g / reduced(shape, axis).size, axis, shape)
)
