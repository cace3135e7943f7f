"""Operations that move, join and select elements, and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from numbers import Integral, Real
from typing import Any

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Arrays, Shape, array_module
from minipipe.core.familiar import with_hints
from minipipe.core.functional.elementwise import check_broadcast
from minipipe.core.functional.operands import axis_of, data_of, one_real, operands
from minipipe.core.joints import contiguous as contiguous
from minipipe.core.joints import identity as identity
from minipipe.core.tensor import Operand, Tensor, as_tensor, op
from minipipe.errors import TensorError, quoted


@op(attributes="shape", saves="before")
def reshape(a: Array, shape: Sequence[int]) -> tuple[Array, Shape]:
    """Return the same elements in another shape; one length may be -1, to be worked
    out.

    Parameters
    ----------
    a : Tensor of any shape
    shape : sequence of int

    Returns
    -------
    Tensor of shape ``shape``

    Raises
    ------
    TensorError
        Code ``shape``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.reshape(Tensor([[1.0, 2.0], [3.0, 4.0]]), (4, -1)).shape
    (4, 1)
    """
    if not all(isinstance(length, Integral) for length in shape):
        message = f"reshape: the shape is {shape!r:.60}; expected whole numbers."
        raise TensorError("shape", message)
    shape = tuple(shape)
    product = backend.prod(shape)
    fits = product == a.size and (not shape or min(shape) >= 0)
    if not fits and (product >= 0 or a.size % product or shape.count(-1) != 1):
        given = f"{a.size} elements of shape {a.shape}"
        raise TensorError("shape", f"reshape: {given} do not fit the shape {shape}.")
    return backend.reshape(a, shape), a.shape


reshape.gradients(a=lambda g, before: backend.reshape(g, before))


@op(attributes="axes", saves="order")
def transpose(a: Array, axes: Sequence[int] | None = None) -> tuple[Array, Shape]:
    """Return the axes in another order, by default reversed. No element moves: the
    result is a view.

    Parameters
    ----------
    a : Tensor of any shape
    axes : sequence of int, optional
        The axes of a in their new order.

    Returns
    -------
    Tensor

    Raises
    ------
    TensorError
        Code ``shape``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.transpose(Tensor([[1.0, 2.0], [3.0, 4.0]]))
    Tensor([[1., 3.],
            [2., 4.]])
    """
    if axes is None:
        axes = range(a.ndim)[::-1]
    order = tuple([i + a.ndim * (i < 0) for i in axes])
    if sorted(order) != list(range(a.ndim)):
        problem = f"{axes} does not name each axis of shape {a.shape} once"
        raise TensorError("shape", f"transpose: {problem}.")
    return backend.permuted(a, order), order


# Places sorted by the axes that they name are the inverse order.
transpose.gradients(
    a=lambda g, order: backend.permuted(g, tuple(sorted(order, key=order.__getitem__)))
)


@op(attributes="key", saves="plain")
def index(a: Array, key: Any) -> tuple[Array, Any]:
    """Return ``a[key]`` for numbers, slices, None, ..., masks and integer arrays, as in
    NumPy.

    Parameters
    ----------
    a : Tensor of any shape
    key : int, slice, None, Ellipsis, array, Tensor or a tuple of them
        Arrays and tensors hold whole numbers or truth values.

    Returns
    -------
    Tensor

    Examples
    --------
    An element that is taken twice gets both gradients.

    >>> from minipipe import Tensor, functional
    >>> x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> functional.index(x, [0, 0, 2]).sum().backward()
    >>> x.grad
    array([2., 0., 1.], dtype=float32)
    """
    plain = key
    if isinstance(key, tuple):
        plain = tuple(map(_plain, key))
    elif isinstance(key, Tensor):
        plain = key.data
    return a[plain], plain


def _plain(key: Any) -> Any:
    """Return a part of an index, a tensor as its array."""
    if isinstance(key, Tensor):
        return key.data
    return key


_NEVER_REPEAT = {int, slice, type(None), type(...)}


@backend.one_line
def _scattered(g: Array, plain: Any, shape: Shape) -> Array:
    """Return zeros of a shape with a gradient added at an index; halves add up in
    float32.
    """
    parts = plain if isinstance(plain, tuple) else (plain,)
    if not _NEVER_REPEAT.issuperset(map(type, parts)):
        if not backend.is_half(g.dtype):
            return added(g, plain, shape)
        wide = backend.as_array(g, array_module(g).float32)
        return backend.as_array(added(wide, plain, shape), g.dtype)
    result = array_module(g).zeros(shape, dtype=g.dtype)
    result[plain] += g
    return result


def added(values: Array, index: Any, shape: Shape) -> Array:
    """Return zeros of a shape with values added at an index that may repeat.

    The arrays of other modules than NumPy are added on the host, in NumPy's order,
    unless there is a kernel: a GPU adds in another order every time.
    """
    parts = index if isinstance(index, tuple) else (index,)
    places = [backend.to_numpy(x) if backend.is_array(x) else x for x in parts]
    host = backend.to_numpy(values)
    result = np.zeros(shape, host.dtype)
    np.add.at(result, tuple(places), host)
    return backend.moved(result, array_module(values))


index.gradients(a=_scattered)


@with_hints
def concatenate(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Return the tensors one behind the other along an axis.

    Parameters
    ----------
    tensors : sequence of Tensor
        Tensors of one dtype, and of one shape except for that axis.
    axis : int

    Returns
    -------
    Tensor

    Raises
    ------
    TensorError
        Codes ``shape`` and ``dtype``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.concatenate([Tensor([[1.0, 2.0]]), Tensor([[3.0, 4.0]])])
    Tensor([[1., 2.],
            [3., 4.]])
    """
    return _concatenate(*_of_one_dtype("concatenate", tensors), axis=axis)


@op(saves="places")
def _concatenate(*parts: Array, axis: int) -> tuple[Array, list[Any]]:
    axis = axis_of(axis, parts[0].shape)
    others = {(*part.shape[:axis], *part.shape[axis + 1 :]) for part in parts}
    if len(others) > 1 or any(part.ndim != parts[0].ndim for part in parts):
        shapes = ", ".join(str(part.shape) for part in parts)
        problem = f"shapes {shapes} differ elsewhere than along axis {axis}"
        raise TensorError("shape", f"concatenate: {problem}.")
    places = _places(axis, [part.shape[axis] for part in parts])
    return array_module(parts[0]).concat(parts, axis=axis), places


_concatenate.gradients(parts=lambda g, places, number: g[places[number]])


def _places(axis: int, lengths: Sequence[int]) -> list[tuple[Any, ...]]:
    """Return the indices of parts of these lengths, one behind the other along an
    axis.
    """
    pairs = zip(lengths, accumulate(lengths))
    return [_along(axis, slice(stop - length, stop)) for length, stop in pairs]


def _along(axis: int, key: int | slice) -> tuple[Any, ...]:
    """Return the index of an array at a key along one axis, and everything along the
    others.
    """
    return *[slice(None)] * axis, key, ...


@with_hints
def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Return tensors of one shape side by side along a new axis, which will be number
    ``axis`` of the result.

    Parameters
    ----------
    tensors : sequence of Tensor
        Tensors of one dtype and shape.
    axis : int

    Returns
    -------
    Tensor
        With one axis more, as long as there are tensors.

    Raises
    ------
    TensorError
        Codes ``shape`` and ``dtype``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.stack([Tensor([1.0, 2.0]), Tensor([3.0, 4.0])], axis=1)
    Tensor([[1., 3.],
            [2., 4.]])
    """
    return _stack(*_of_one_dtype("stack", tensors), axis=axis)


@op(saves="place")
def _stack(*parts: Array, axis: int) -> tuple[Array, int]:
    if len({part.shape for part in parts}) > 1:
        shapes = ", ".join(str(part.shape) for part in parts)
        message = f"stack: shapes {shapes} differ; expected one shape for all."
        raise TensorError("shape", message)
    place = axis_of(axis, (*parts[0].shape, len(parts)))
    return array_module(parts[0]).stack(parts, axis=place), place


_stack.gradients(parts=lambda g, place, number: g[_along(place, number)])


@with_hints
def split(
    a: Operand, sections: int | Sequence[int], axis: int = 0
) -> tuple[Tensor, ...]:
    """Return the parts of a tensor along an axis, each a view.

    Parameters
    ----------
    a : Tensor
    sections : int or sequence of int
        The number of equal parts, as in NumPy; or the length of each part. (In PyTorch
        a number is the length.)
    axis : int

    Raises
    ------
    TensorError
        Code ``shape``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.split(Tensor([1.0, 2.0, 3.0]), [1, 2])
    (Tensor([1.]), Tensor([2., 3.]))
    """
    a = as_tensor(a)
    axis = axis_of(axis, a.shape)
    length = a.shape[axis]
    which = f"axis {axis} of shape {a.shape}"
    if isinstance(sections, Sequence):
        sizes = list(sections)
    elif sections >= 1 and length % sections == 0:
        sizes = [length // int(sections)] * int(sections)
    else:
        problem = f"{which} does not fall into {sections} equal parts"
        raise TensorError("shape", f"split: {problem}.")
    if any(size < 0 for size in sizes) or sum(sizes) != length:
        problem = f"lengths {sizes} do not add up to {which}"
        raise TensorError("shape", f"split: {problem}.")
    return tuple(index(a, place) for place in _places(axis, sizes))


def _of_one_dtype(name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    tensors = [as_tensor(tensor) for tensor in tensors]
    if not tensors:
        message = f"{name}: no tensor was given; expected at least one."
        raise TensorError("shape", message)
    if len({str(tensor.dtype) for tensor in tensors}) > 1:
        given = ", ".join(str(tensor.dtype) for tensor in tensors)
        raise TensorError("dtype", f"{name}: the dtypes differ: {given}.")
    return tensors


def _choosing(
    condition: Operand, a: Operand, b: Operand
) -> tuple[Array, Tensor, Tensor]:
    """Return a condition as an array, and the others as tensors of one dtype, whose
    shapes fit.
    """
    a, b = operands(a, b)
    mask = _mask("where", condition, a.data)
    for one, other in ((a, b), (mask, a), (mask, b)):
        check_broadcast("where", one, other)
    return mask, a, b


@op(takes=_choosing, is_broadcast=True)
def where(condition: Array, a: Array, b: Array) -> Array:
    """Return a wherever the condition is true, and b elsewhere; all three are
    broadcast.

    Parameters
    ----------
    condition : array or Tensor of truth values
        It has no gradient.
    a, b : Tensor, array or number

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, functional
    >>> functional.where(np.array([True, False]), Tensor([1.0, 2.0]), 0)
    Tensor([1., 0.])
    """
    return array_module(a).where(condition, a, b)


where.gradients(
    a=lambda g, condition: backend.masked(g, condition),
    b=lambda g, condition: backend.masked(g, ~condition),
)


@op(
    takes=one_real,
    attributes="mask value",
    saves="filled",
    in_float32=True,
    is_broadcast=True,
)
def masked_fill(a: Array, mask: Operand, value: float) -> Arrays:
    """Return a with one number, for instance ``-math.inf``, wherever the mask is true;
    both are broadcast.

    Parameters
    ----------
    a : Tensor of any shape
    mask : array or Tensor of truth values
    value : float

    Returns
    -------
    Tensor of the broadcast shape

    Examples
    --------
    >>> import math
    >>> import numpy as np
    >>> from minipipe import Tensor, functional
    >>> functional.masked_fill(Tensor([1.0, 2.0]), np.array([True, False]), -math.inf)
    Tensor([-inf,   2.])
    """
    filled = _mask("masked_fill", mask, a)
    if not isinstance(value, Real):
        raise TensorError(
            "dtype",
            f"masked_fill: value is {quoted(value)}; expected a number without a "
            "gradient. where(mask, value, a) fills with a tensor.",
        )
    check_broadcast("masked_fill", a, filled)
    return array_module(a).where(filled, float(value), a), filled


masked_fill.gradients(a=lambda g, filled: backend.masked(g, ~filled))


def _mask(name: str, mask: Operand, like: Array) -> Array:
    """Return a mask as an array of truth values."""
    values = data_of(mask, like)
    if not backend.is_boolean(values.dtype):
        raise TensorError(
            "dtype",
            f"{name}: the mask must hold truth values (bool); this one is "
            f"{values.dtype}.",
        )
    return values


@op(takes=one_real, attributes="low high", saves="is_kept", in_float32=True)
def clip(a: Array, low: float | None = None, high: float | None = None) -> Arrays:
    """Return a with smaller elements raised to ``low`` and larger ones lowered to
    ``high``; None sets no bound.

    The gradient is 1 from bound to bound, the bounds included, and 0 beyond.

    Parameters
    ----------
    a : Tensor of any shape
    low, high : float, optional
        One of them at least.

    Returns
    -------
    Tensor of the same shape

    Raises
    ------
    TensorError
        Code ``out-of-range``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.clip(Tensor([-3.0, 0.5, 7.0]), low=0, high=1)
    Tensor([0. , 0.5, 1. ])
    """
    if low is None and high is None:
        message = "clip: neither low nor high was given; expected one bound at least."
        raise TensorError("out-of-range", message)
    if low is not None and high is not None and low > high:
        message = f"clip: low is {low}, which lies above high, {high}."
        raise TensorError("out-of-range", message)
    if low is not None:
        low = float(low)
    if high is not None:
        high = float(high)
    result = array_module(a).clip(a, low, high)
    return result, result == a


clip.gradients(a=lambda g, is_kept: backend.masked(g, is_kept))
