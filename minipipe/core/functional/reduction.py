"""Operations that reduce some axes to one element.

The functions ``total``, ``amax``, ``amin`` and ``variance`` do not hide Python's own
``sum``, ``max`` and ``min``; the methods have NumPy's names: ``x.sum()``, ``x.max()``,
``x.min()``, ``x.var()``.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Arrays, Shape, array_module
from minipipe.core.errors import TensorError
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


@op(
    takes=one_real,
    attributes="axis keepdims correction",
    saves="centred",
    in_float32=True,
)
def variance(
    a: Array, axis: Axis = None, keepdims: bool = False, correction: int = 0
) -> Arrays:
    """Return the mean square distance from the mean over some axes, by default all. As
    a method: ``var``.

    Parameters
    ----------
    a : Tensor
    axis : int or tuple of int, optional
    keepdims : bool
        Whether the axes stay, with length 1.
    correction : int
        What is taken off the number of elements before dividing by it; 1 for the
        variance of a population that the elements are a sample of. (PyTorch's default
        is 1, NumPy's 0.)

    Raises
    ------
    TensorError
        Codes ``shape`` and ``out-of-range``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> x = Tensor([1.0, 3.0])
    >>> functional.variance(x).item(), functional.variance(x, correction=1).item()
    (1.0, 2.0)
    """
    over = reduced(a.shape, axis)
    if over.size <= correction:
        expected = f"expected less than the number of elements, {over.size}"
        message = f"variance: the correction is {correction}; {expected}."
        raise TensorError("out-of-range", message)
    centred = a - backend.reduce_sum(a, over.axes, True) / over.size
    squares = backend.reduce_sum(centred * centred, over.axes, keepdims)
    return squares / (over.size - correction), centred


def _of_variance(g: Array, centred: Array, axis: Axis, correction: int) -> Array:
    over = reduced(centred.shape, axis)
    return centred * (backend.reshape(g, over.kept) * (2 / (over.size - correction)))


variance.gradients(a=_of_variance)


@op(attributes="axis keepdims", saves="extreme")
def amax(a: Array, axis: Axis = None, keepdims: bool = False) -> Arrays:
    """Return the largest element over some axes, by default all. As a method:
    ``tensor.max(axis)``.

    If several elements are largest, they share the gradient equally. An empty axis is
    refused.

    Parameters, result and errors are as in :func:`total`.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> x = Tensor([2.0, 5.0, 5.0], requires_grad=True)
    >>> functional.amax(x).backward()
    >>> x.grad
    array([0. , 0.5, 0.5], dtype=float32)
    """
    return _extreme("max", a, axis, keepdims)


@op(attributes="axis keepdims", saves="extreme")
def amin(a: Array, axis: Axis = None, keepdims: bool = False) -> Arrays:
    """Return the smallest element over some axes, by default all. As a method:
    ``tensor.min(axis)``.

    If several elements are smallest, they share the gradient equally. An empty axis is
    refused.

    Parameters, result and errors are as in :func:`total`.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.amin(Tensor([[2.0, 5.0], [4.0, 3.0]]), axis=0)
    Tensor([2., 3.])
    """
    return _extreme("min", a, axis, keepdims)


def _extreme(name: str, a: Array, axis: Axis, keepdims: bool) -> Arrays:
    """Return the extreme elements, and these with length 1 along the axes."""
    axes, _, size = reduced(a.shape, axis)
    if size == 0:
        problem = f"a{name}: axes {axes} of shape {a.shape} have no elements"
        raise TensorError("shape", f"{problem}; expected one at least.")
    extreme = getattr(array_module(a), name)(a, axis=axes, keepdims=True)
    return without_axes(extreme, axes, keepdims), extreme


def _shared(g: Array, a: Array, extreme: Array, axis: Axis) -> Array:
    """Return the gradient of the elements, in which all that are extreme have equal
    parts.
    """
    is_chosen = a == extreme
    axes = reduced(a.shape, axis).axes
    count = backend.reduce_sum(array_module(a).astype(is_chosen, a.dtype), axes, True)
    return backend.masked(backend.reshape(g, extreme.shape), is_chosen) / count


amax.gradients(a=_shared)
amin.gradients(a=_shared)
