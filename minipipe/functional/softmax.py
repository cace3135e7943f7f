"""Softmax, its logarithm, and the logarithm of its denominator."""

from __future__ import annotations

from minipipe.autograd import backend
from minipipe.autograd.backend import Array, array_module
from minipipe.functional.precision import in_float32
from minipipe.functional.reduction import Axis, axes_of, kept_shape, reduced_shape
from minipipe.tensor import Operand, Tensor, as_real, record


def softmax(a: Operand, axis: int = -1) -> Tensor:
    """Return e^a over its sum along an axis, shifted by the largest element so that nothing overflows.

    Parameters
    ----------
    a : Tensor of any shape
    axis : int
        Along which they sum to 1.

    Returns
    -------
    Tensor of the same shape

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.softmax(Tensor([[1000.0, 1000.0], [0.0, 1000.0]]))
    Tensor([[0.5, 0.5],
            [0. , 1. ]])
    """
    a = as_real(a)
    if backend.is_half(a.dtype):
        return in_float32(softmax, a, axis=axis)
    xp = array_module(a.data)
    exponentials = xp.exp(a.data - xp.max(a.data, axis=axis, keepdims=True))
    result = exponentials / backend.reduce_sum(exponentials, axis, True)
    return record(result, (a, lambda g: result * (g - backend.reduce_sum(g * result, axis, True))))


def log_softmax_of_array(x: Array, axis: int) -> Array:
    """Return the logarithm of the softmax of an array along an axis, without overflow."""
    xp = array_module(x)
    shifted = x - xp.max(x, axis=axis, keepdims=True)
    return shifted - xp.log(backend.reduce_sum(xp.exp(shifted), axis, True))


def log_softmax(a: Operand, axis: int = -1) -> Tensor:
    """Return the logarithm of :func:`softmax`, more exact than taking it afterwards.

    Parameters
    ----------
    a : Tensor of any shape
    axis : int
        Along which the probabilities sum to 1.

    Returns
    -------
    Tensor of the same shape

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.log_softmax(Tensor([0.0, 1000.0]))
    Tensor([-1000.,     0.])
    """
    a = as_real(a)
    if backend.is_half(a.dtype):
        return in_float32(log_softmax, a, axis=axis)
    xp = array_module(a.data)
    result = log_softmax_of_array(a.data, axis)
    return record(result, (a, lambda g: g - xp.exp(result) * backend.reduce_sum(g, axis, True)))


def logsumexp(a: Operand, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the logarithm of the sum of e^a over the given axes, by default all.

    Shifted by the largest element, so that nothing overflows. Where all are -inf the result is -inf, its gradient 0.

    Parameters, result and errors are those of :func:`minipipe.functional.total`.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.logsumexp(Tensor([0.0, 1000.0]))
    Tensor(1000.)
    """
    a = as_real(a)
    if backend.is_half(a.dtype):
        return in_float32(logsumexp, a, axis=axis, keepdims=keepdims)
    x, axes = a.data, axes_of(a, axis)
    kept = kept_shape(a.shape, axes)
    xp = array_module(x)
    largest = xp.max(x, axis=axes, keepdims=True)
    is_finite = xp.isfinite(largest)
    shift = xp.where(is_finite, largest, 0)  # -inf - (-inf) would be no number
    exponentials = xp.exp(x - shift)
    sums = xp.where(is_finite, backend.reduce_sum(exponentials, axes, True), 1)
    result = xp.where(is_finite, xp.log(sums) + shift, largest)
    return record(
        backend.reshape(result, reduced_shape(a.shape, axes, keepdims)),
        (a, lambda g: exponentials * (backend.reshape(g, kept) / sums)),
    )
