"""Operations that choose between elements, by a mask or by bounds.

============  =======================  ===================================================
operation     result                   gradients, for the gradient g of the result
============  =======================  ===================================================
where         a or b, by a condition   g where it is true; g where it is false
masked_fill   a or number, by a mask   g where the mask is false
clip          a within bounds          g where a is kept
============  =======================  ===================================================

Operands are broadcast as in `elementwise.py`, with the same errors.
"""

from __future__ import annotations

from numbers import Real

from minipipe.autograd import backend
from minipipe.autograd.backend import Array, array_module
from minipipe.errors import TensorError
from minipipe.functional.elementwise import check_broadcast, unbroadcast
from minipipe.functional.precision import in_float32
from minipipe.tensor import Operand, Tensor, as_real, operands, record


def where(condition: Operand, a: Operand, b: Operand) -> Tensor:
    """Return a where the condition is true and b elsewhere; all three are broadcast.

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
    a, b = operands(a, b)
    mask = _mask("where", condition, a)
    for one, other in ((a, b), (mask, a), (mask, b)):
        check_broadcast("where", one, other)
    a_shape, b_shape = a.shape, b.shape
    return record(
        array_module(a.data).where(mask, a.data, b.data),
        (a, lambda g: unbroadcast(backend.masked(g, mask), a_shape)),
        (b, lambda g: unbroadcast(backend.masked(g, ~mask), b_shape)),
    )


def masked_fill(a: Operand, mask: Operand, value: float) -> Tensor:
    """Return a with one number, for instance ``-math.inf``, wherever the mask is true; both are broadcast.

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
    a = as_real(a)
    mask = _mask("masked_fill", mask, a)
    if not isinstance(value, Real):
        raise TensorError(
            "dtype",
            f"masked_fill: the value must be one number, without a gradient; it is {value!r:.60}. "
            "Write where(mask, value, a) to fill with a tensor.",
        )
    check_broadcast("masked_fill", a, mask)
    if backend.is_half(a.dtype):
        return in_float32(masked_fill, a, mask=mask, value=value)
    shape = a.shape
    result = array_module(a.data).where(mask, float(value), a.data)
    return record(result, (a, lambda g: unbroadcast(backend.masked(g, ~mask), shape)))


def _mask(name: str, mask: Operand, like: Tensor) -> Array:
    """Return a mask as an array of truth values."""
    values = mask.data if isinstance(mask, Tensor) else backend.as_array(mask, like=like.data)
    if not backend.is_boolean(values.dtype):
        raise TensorError("dtype", f"{name}: the mask must hold truth values (bool); this one is {values.dtype}.")
    return values


def clip(a: Operand, low: float | None = None, high: float | None = None) -> Tensor:
    """Return a with smaller elements raised to ``low`` and larger ones lowered to ``high``; None sets no bound.

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
        Code ``range``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.clip(Tensor([-3.0, 0.5, 7.0]), low=0, high=1)
    Tensor([0. , 0.5, 1. ])
    """
    a = as_real(a)
    if low is None and high is None:
        raise TensorError("range", "clip: neither low nor high was given; expected one bound at least.")
    if low is not None and high is not None and low > high:
        raise TensorError("range", f"clip: low is {low}, which lies above high, {high}.")
    if backend.is_half(a.dtype):
        return in_float32(clip, a, low=low, high=high)
    result = array_module(a.data).clip(
        a.data, None if low is None else float(low), None if high is None else float(high)
    )
    is_kept = result == a.data
    return record(result, (a, lambda g: backend.masked(g, is_kept)))
