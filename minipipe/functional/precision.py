"""Changing the precision of numbers, and computing with more of it than the operands have.

A half, float16 or bfloat16, has 11 or 8 significant bits, and float16 ends at 65,504. So an operation that does more
than one thing to its elements computes inside in float32 and rounds once, as in PyTorch: softmax, norms, means,
variances, attention, GELU and its kin. Products and sums add up in float32 (``autograd/backend.py``). Losses return
float32. What such an operation keeps for backward is float32, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minipipe.autograd import backend
from minipipe.autograd.backend import array_module
from minipipe.errors import TensorError
from minipipe.tensor import Operand, Tensor, as_tensor, record


def astype(a: Operand, dtype: Any) -> Tensor:
    """Return the elements of a in another dtype of real numbers. The gradient is returned in that of a.

    Parameters
    ----------
    a : Tensor of any shape
    dtype : dtype
        Such as ``numpy.float16``.

    Returns
    -------
    Tensor of the same shape
        a itself, where it has this dtype already.

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
        raise TensorError("dtype", f"astype: the dtype is {dtype}; expected one of real numbers, such as float32.")
    before = a.dtype
    if backend.numpy_dtype(before) == backend.numpy_dtype(dtype):
        return a
    data = backend.moved(a.data, array_module(a.data), dtype)
    return record(data, (a, lambda g: backend.as_array(g, before)))


def in_full(a: Operand) -> Operand:
    """Return what a loss computes with: a tensor of float16 or bfloat16 in float32, anything else as it is.

    Examples
    --------
    >>> import numpy as np
    >>> in_full(Tensor(np.ones(2, np.float16))).dtype, in_full(Tensor(np.ones(2, np.float64))).dtype, in_full(2.0)
    (dtype('float32'), dtype('float64'), 2.0)
    """
    return astype(a, "float32") if isinstance(a, Tensor) and backend.is_half(a.dtype) else a


def in_float32(operation: Callable[..., Tensor], *tensors: Tensor, **options: Any) -> Tensor:
    """Return ``operation(*tensors, **options)``; of halves computed in float32, forward and backward, and rounded once.

    Parameters
    ----------
    operation : function
        Returns a tensor.
    *tensors : Tensor
    **options
        Whatever else the operation takes.

    Returns
    -------
    Tensor
        In the dtype of the first tensor, where that is float16 or bfloat16.

    Examples
    --------
    The square of 320 is more than a float16 can be; its mean with 0 is not.

    >>> import numpy as np
    >>> from minipipe import Tensor, functional
    >>> x = Tensor(np.array([320.0, 0.0], np.float16))
    >>> functional.in_float32(lambda x: (x * x).mean(), x)
    Tensor(5.12e+04)
    """
    dtype = tensors[0].dtype
    if not backend.is_half(dtype):
        return operation(*tensors, **options)
    return astype(operation(*(astype(tensor, "float32") for tensor in tensors), **options), dtype)
