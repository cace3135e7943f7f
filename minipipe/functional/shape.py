"""Operations that move elements and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minipipe import backend
from minipipe.backend import Array, array_module
from minipipe.errors import TensorError
from minipipe.tensor import Operand, Tensor, as_tensor, record

__all__ = ["concatenate", "contiguous", "index", "reshape", "transpose"]


def reshape(a: Operand, shape: Sequence[int]) -> Tensor:
    """Return the same elements in another shape; one length may be -1, to be worked out."""
    a = as_tensor(a)
    before, shape = a.shape, tuple(shape)
    known = backend.prod(tuple(length for length in shape if length != -1))
    fits = a.size % known == 0 if shape.count(-1) == 1 and known else a.size == known and -1 not in shape
    if not fits:
        raise TensorError("shape", f"reshape: {a.size} elements of shape {before} do not fit the shape {shape}.")
    return record(backend.reshape(a.data, shape), (a, lambda g: backend.reshape(g, before)))


def transpose(a: Operand, axes: Sequence[int] | None = None) -> Tensor:
    """Return the axes in another order, by default reversed. No element moves: the result is a view."""
    a = as_tensor(a)
    order = tuple(reversed(range(a.ndim))) if axes is None else tuple(i + a.ndim * (i < 0) for i in axes)
    if sorted(order) != list(range(a.ndim)):
        raise TensorError("shape", f"transpose: {axes} does not name each axis of shape {a.shape} once.")
    back = tuple(order.index(i) for i in range(a.ndim))
    xp = array_module(a.data)
    return record(xp.permute_dims(a.data, order), (a, lambda g: xp.permute_dims(g, back)))


def index(a: Operand, key: Any) -> Tensor:
    """Return ``a[key]`` for numbers, slices, None, ..., masks and integer arrays, as in NumPy."""
    a = as_tensor(a)
    shape, dtype, xp = a.shape, a.dtype, array_module(a.data)
    parts = key if isinstance(key, tuple) else (key,)
    plain = tuple(part.data if isinstance(part, Tensor) else part for part in parts)

    def scatter(g: Array) -> Array:
        result = xp.zeros(shape, dtype=dtype)
        backend.index_add(result, plain, g)
        return result

    return record(a.data[plain], (a, scatter))


def concatenate(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Return the tensors one behind the other along an axis."""
    tensors = [as_tensor(tensor) for tensor in tensors]
    if not tensors:
        raise TensorError("shape", "concatenate: no tensor was given; expected at least one.")
    if len({str(tensor.dtype) for tensor in tensors}) > 1:
        given = ", ".join(str(tensor.dtype) for tensor in tensors)
        raise TensorError("dtype", f"concatenate: the dtypes differ: {given}.")
    if not -tensors[0].ndim <= axis < tensors[0].ndim:
        raise TensorError("shape", f"concatenate: there is no axis {axis} in a tensor of shape {tensors[0].shape}.")
    axis = axis % tensors[0].ndim
    others = {(*t.shape[:axis], *t.shape[axis + 1 :]) for t in tensors}
    if len(others) > 1 or any(t.ndim != tensors[0].ndim for t in tensors):
        shapes = ", ".join(str(tensor.shape) for tensor in tensors)
        raise TensorError("shape", f"concatenate: shapes {shapes} differ elsewhere than along axis {axis}.")
    xp = array_module(tensors[0].data)
    inputs, start = [], 0
    for tensor in tensors:
        part = (slice(None),) * axis + (slice(start, start + tensor.shape[axis]), ...)
        inputs.append((tensor, lambda g, part=part: g[part]))
        start += tensor.shape[axis]
    return record(xp.concat([tensor.data for tensor in tensors], axis=axis), *inputs)


def contiguous(a: Tensor) -> Tensor:
    """Return the tensor in C order, and see to it that its gradient will be, too.

    A sequence does this between its layers, whether or not a pipeline cuts it there: a product sums in an order that
    depends on the strides of its operands, and what comes in a message is always in C order.
    """
    data = backend.contiguous(a.data)
    if data is not a.data:
        a = record(data, (a, lambda g: g))
    if a.node is not None:
        a.node.is_boundary = True
    return a
