"""Operands of one dtype, and computing in a higher precision than theirs.

A half, float16 or bfloat16, has 11 or 8 significant bits, and float16 ends at 65,504.
So an operation that does more than one thing to its elements computes in float32 and
rounds once, as in PyTorch: softmax, norms, means, variances, attention, GELU. Products
and sums add up in float32 (``core/autograd/backend.py``). Losses return float32. The arrays
that such an operation keeps for backward are float32 as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Shape
from minipipe.core.errors import TensorError
from minipipe.core.tensor import Operand, Tensor, as_tensor, cast


def operands(left: Operand, right: Operand) -> tuple[Tensor, Tensor]:
    """Return both operands as tensors of one dtype.

    Two tensors of different real dtypes are refused: a float64 would spread to all
    results.

    Examples
    --------
    >>> operands(2, Tensor([1.0, 2.0]))
    (Tensor(2.), Tensor([1., 2.]))
    """
    if not isinstance(left, Tensor):
        left = as_constant(left, as_tensor(right))
    if not isinstance(right, Tensor):
        right = as_constant(right, left)
    if left.data.dtype is not right.data.dtype and left.data.dtype != right.data.dtype:
        if not backend.is_floating(left.dtype):
            left = as_constant(left, right)
        elif not backend.is_floating(right.dtype):
            right = as_constant(right, left)
        else:
            raise TensorError(
                "dtype",
                f"A tensor of {left.dtype} meets one of {right.dtype}; expected one "
                "dtype. Make the input with Tensor(values, dtype=numpy.float32), or "
                "layers with Linear(…, dtype=numpy.float64).",
            )
    return left, right


def as_constant(value: Operand, like: Tensor) -> Tensor:
    """Return a value as a constant operand for a tensor: in its module and, if its
    dtype is real, in its dtype.

    NumPy promotes float32 to float64 for many operands (a ``numpy.float64``, an integer
    array); a constant takes the tensor's dtype instead.

    Examples
    --------
    >>> import numpy as np
    >>> as_constant(np.float64(0.5), like=Tensor([1.0, 2.0])).dtype
    dtype('float32')
    """
    data: Any = value
    if isinstance(value, Tensor):
        data = value.data
    if backend.is_floating(like.dtype):
        return constant(backend.as_array(data, like.dtype, like.data))
    # Beside whole numbers a real one is float32, the default, and not float64 as in
    # NumPy.
    float32 = backend.array_module(like.data).float32
    if isinstance(data, float):
        return constant(backend.as_array(data, float32, like.data))
    return constant(backend.as_array(data, None, like.data))


def constant(array: Array) -> Tensor:
    """Return a tensor without a graph of an array, or of a scalar of NumPy's, without
    the checks of ``Tensor(…)``.
    """
    tensor = object.__new__(Tensor)
    if isinstance(array, np.generic):
        array = np.asarray(array)
    tensor.data = array
    tensor.node = None
    return tensor


def data_of(value: Operand, like: Array) -> Array:
    """Return the array of an operand without gradient, such as a mask; other values go
    to the module of ``like``.
    """
    if isinstance(value, Tensor):
        return value.data
    return backend.as_array(value, like=like)


def as_real(value: Operand) -> Tensor:
    """Return the value as a tensor of real numbers: whole ones become float32, the
    default.

    Examples
    --------
    >>> as_real(Tensor([1, 2]))
    Tensor([1., 2.])
    """
    tensor = as_tensor(value)
    if backend.is_floating(tensor.data.dtype):
        return tensor
    float32 = backend.array_module(tensor.data).float32
    return constant(backend.as_array(tensor.data, float32))


def one_real(value: Operand) -> tuple[Tensor]:
    """Return the only operand of an operation, as a tensor of real numbers."""
    if isinstance(value, Tensor) and getattr(value.data.dtype, "kind", "") == "f":
        return (value,)
    return (as_real(value),)


def axis_of(axis: int, shape: Shape) -> int:
    """Return the number of an axis, counted from 0."""
    if not -len(shape) <= axis < len(shape):
        message = f"There is no axis {axis} in a tensor of shape {shape}."
        raise TensorError("shape", message)
    return axis % len(shape)


def astype(a: Operand, dtype: Any) -> Tensor:
    """Return the elements of a in another real dtype. The gradient is returned in the
    dtype of a.

    Parameters
    ----------
    a : Tensor of any shape
    dtype : dtype
        Such as ``numpy.float16``.

    Returns
    -------
    Tensor of the same shape
        a itself, if it already has this dtype.

    Raises
    ------
    TensorError
        Code ``dtype``, for a dtype of whole numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, functional
    >>> x = Tensor([1.0, 2.0002], requires_grad=True)
    >>> y = functional.astype(x, np.float16)
    >>> y.sum().backward()
    >>> y.numpy(), x.grad
    (array([1., 2.], dtype=float16), array([1., 1.], dtype=float32))
    """
    a = as_tensor(a)
    if not backend.is_floating(dtype):
        expected = "expected one of real numbers, such as float32"
        raise TensorError("dtype", f"astype: the dtype is {dtype}; {expected}.")
    return cast(a, dtype)


def in_full(a: Operand) -> Any:
    """Return the operand of a loss: a tensor of float16 or bfloat16 in float32,
    anything else unchanged.

    Examples
    --------
    >>> import numpy as np
    >>> (
    ...     in_full(Tensor(np.ones(2, np.float16))).dtype,
    ...     in_full(Tensor(np.ones(2, np.float64))).dtype,
    ...     in_full(2.0),
    ... )
    (dtype('float32'), dtype('float64'), 2.0)
    """
    if isinstance(a, Tensor) and backend.is_half(a.data.dtype):
        return astype(a, "float32")
    return a
