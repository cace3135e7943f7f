"""Several operands of one real dtype, and computing of halves in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minipipe.core.autograd import backend
from minipipe.core.functional.operands import as_real, astype, operands
from minipipe.core.tensor import Operand, Tensor


def real_operands(first: Operand, *others: Operand) -> list[Tensor]:
    """Return operands as tensors of real numbers, of the dtype of the first.

    Raises
    ------
    TensorError
        Code ``dtype``, as :func:`operands`.

    Examples
    --------
    >>> real_operands(Tensor([1.0, 2.0]), 2, Tensor([3]))
    [Tensor([1., 2.]), Tensor(2.), Tensor([3.])]
    """
    if isinstance(first, Tensor) and getattr(first.data.dtype, "kind", "") == "f":
        dtype = first.data.dtype
        given = [first]
        for other in others:
            if not isinstance(other, Tensor) or other.data.dtype is not dtype:
                break
            given.append(other)
        else:
            return given
    found = []
    for other in others:
        first, other = operands(first, other)
        found.append(as_real(other))
    return [as_real(first), *found]


def in_float32(
    operation: Callable[..., Tensor], *tensors: Tensor, **options: Any
) -> Tensor:
    """Return ``operation(*tensors, **options)``; of halves computed in float32, forward
    and backward, and rounded once.

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
    wide = [astype(tensor, "float32") for tensor in tensors]
    return astype(operation(*wide, **options), dtype)
