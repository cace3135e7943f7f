"""Operations that take several elements to one: sum, mean and max over axes."""

from __future__ import annotations

from minipipe import backend
from minipipe.backend import Array, array_module
from minipipe.errors import TensorError
from minipipe.tensor import Operand, Tensor, as_real, as_tensor, record

# `sum` and `max` are the names that users of NumPy look for; inside this file nothing calls Python's.
__all__ = ["amax", "mean", "total"]

Axis = int | tuple[int, ...] | None


def _axes(a: Tensor, axis: Axis) -> tuple[int, ...]:
    """Return the axes as a tuple of numbers from 0."""
    given = tuple(range(a.ndim)) if axis is None else tuple(axis) if isinstance(axis, tuple | list) else (axis,)
    for i in given:
        if not -a.ndim <= i < a.ndim:
            raise TensorError("shape", f"There is no axis {i} in a tensor of shape {a.shape}.")
    return tuple(i % a.ndim for i in given)


def _kept(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape with length 1 along the reduced axes."""
    return tuple(1 if i in axes else length for i, length in enumerate(shape))


def total(a: Operand, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the sum over the given axes, by default all. As a method: ``tensor.sum(axis)``."""
    a = as_tensor(a)
    shape, axes = a.shape, _axes(a, axis)
    kept = _kept(shape, axes)

    def spread(g: Array) -> Array:
        return array_module(g).broadcast_to(backend.reshape(g, kept), shape)

    return record(backend.reduce_sum(a.data, axes, keepdims), (a, spread))


def mean(a: Operand, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the mean over the given axes, by default all."""
    a = as_real(a)
    shape, axes = a.shape, _axes(a, axis)
    kept = _kept(shape, axes)
    count = backend.prod(shape) // max(1, backend.prod(kept))

    def spread(g: Array) -> Array:
        return array_module(g).broadcast_to(backend.reshape(g / count, kept), shape)

    return record(backend.reduce_sum(a.data, axes, keepdims) / count, (a, spread))


def amax(a: Operand, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the largest element over the given axes, by default all. As a method: ``tensor.max(axis)``.

    Where several elements are largest, they share the gradient equally.
    """
    a = as_tensor(a)
    x, axes = a.data, _axes(a, axis)
    kept = _kept(a.shape, axes)
    xp = array_module(x)
    result = xp.max(x, axis=axes, keepdims=True)

    def share(g: Array) -> Array:
        largest = xp.astype(x == result, x.dtype)
        return backend.reshape(g, kept) * largest / backend.reduce_sum(largest, axes, True)

    shape = kept if keepdims else tuple(length for i, length in enumerate(a.shape) if i not in axes)
    return record(backend.reshape(result, shape), (a, share))
