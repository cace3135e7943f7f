"""Operations that move elements and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minipipe.autograd import Leaf, backend
from minipipe.autograd.backend import Array, array_module
from minipipe.errors import TensorError
from minipipe.tensor import Operand, Tensor, as_tensor, record


def reshape(a: Operand, shape: Sequence[int]) -> Tensor:
    """Return the same elements in another shape; one length may be -1, to be worked out.

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
    a = as_tensor(a)
    before, shape = a.shape, tuple(shape)
    known = backend.prod(tuple(length for length in shape if length != -1))
    fits = a.size % known == 0 if shape.count(-1) == 1 and known else a.size == known and -1 not in shape
    if not fits:
        raise TensorError("shape", f"reshape: {a.size} elements of shape {before} do not fit the shape {shape}.")
    return record(backend.reshape(a.data, shape), (a, lambda g: backend.reshape(g, before)))


def transpose(a: Operand, axes: Sequence[int] | None = None) -> Tensor:
    """Return the axes in another order, by default reversed. No element moves: the result is a view.

    Parameters
    ----------
    a : Tensor of any shape
    axes : sequence of int, optional
        Which axis of a comes first, second, …

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
    a = as_tensor(a)
    order = tuple(reversed(range(a.ndim))) if axes is None else tuple(i + a.ndim * (i < 0) for i in axes)
    if sorted(order) != list(range(a.ndim)):
        raise TensorError("shape", f"transpose: {axes} does not name each axis of shape {a.shape} once.")
    back = tuple(order.index(i) for i in range(a.ndim))
    xp = array_module(a.data)
    return record(xp.permute_dims(a.data, order), (a, lambda g: xp.permute_dims(g, back)))


def index(a: Operand, key: Any) -> Tensor:
    """Return ``a[key]`` for numbers, slices, None, ..., masks and integer arrays, as in NumPy.

    Parameters
    ----------
    a : Tensor of any shape
    key : int, slice, None, Ellipsis, array or Tensor of whole numbers or truth values, or a tuple of them

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
    a = as_tensor(a)
    shape, dtype, xp = a.shape, a.data.dtype, array_module(a.data)
    parts = key if isinstance(key, tuple) else (key,)
    plain = tuple(part.data if isinstance(part, Tensor) else part for part in parts)

    def scatter(g: Array) -> Array:
        result = xp.zeros(shape, dtype=dtype)
        backend.index_add(result, plain, g)
        return result

    return record(a.data[plain], (a, scatter))


def identity(a: Tensor) -> Tensor:
    """Return the same values as a result of its own.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> x = Tensor([1.0, 2.0])
    >>> y = functional.identity(x)
    >>> y, y is x
    (Tensor([1., 2.]), False)
    """
    return record(a.data, (a, lambda g: g))


def contiguous(a: Tensor) -> Tensor:
    """Return the tensor in C order, and see to it that its gradient will be, too.

    A sequence does this between its layers, whether or not a pipeline cuts it there: a product sums in an order that
    depends on the strides of its operands, and an array from a message is always in C order.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> turned = functional.transpose(Tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> turned.data.flags.c_contiguous, functional.contiguous(turned).data.flags.c_contiguous
    (False, True)
    """
    data = backend.contiguous(a.data)
    if data is not a.data or isinstance(a.node, Leaf):  # a parameter itself adds up its gradients one by one
        a = record(data, (a, lambda g: g))
    if a.node is not None:
        a.node.is_boundary = True
    return a
