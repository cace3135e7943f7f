"""Softmax, its logarithm, and the logarithm of a sum of exponentials."""

from __future__ import annotations

import math

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Arrays, array_module
from minipipe.core.functional.loss import log_softmax_of_array
from minipipe.core.functional.operands import axis_of, one_real
from minipipe.core.functional.reduction import Axis, largest_of, reduced, without_axes
from minipipe.core.tensor import op


@op(takes=one_real, attributes="axis", in_float32=True)
def softmax(a: Array, axis: int = -1) -> Array:
    """Return e^a over its sum along an axis, shifted by the largest element so that
    nothing overflows.

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
    exponentials = array_module(a).exp(a - largest_of(a, axis_of(axis, a.shape)))
    return exponentials / backend.reduce_sum(exponentials, axis, True)


softmax.gradients(
    a=lambda g, result, axis: result * (g - backend.reduce_sum(g * result, axis, True))
)


@op(takes=one_real, attributes="axis", in_float32=True)
def log_softmax(a: Array, axis: int = -1) -> Array:
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
    return log_softmax_of_array(a, axis_of(axis, a.shape))


log_softmax.gradients(
    a=lambda g, result, axis: (
        g - array_module(g).exp(result) * backend.reduce_sum(g, axis, True)
    )
)


@op(
    takes=one_real,
    attributes="axis keepdims",
    saves="exponentials sums",
    in_float32=True,
)
def logsumexp(a: Array, axis: Axis = None, keepdims: bool = False) -> Arrays:
    """Return the logarithm of the sum of e^a over some axes, by default all.

    Shifted by the largest element, so that nothing overflows. If all elements are -inf,
    the result is -inf and its gradient 0; the same holds for an empty axis.

    Parameters, result and errors are as in :func:`minipipe.functional.total`.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.logsumexp(Tensor([0.0, 1000.0]))
    Tensor(1000.)
    """
    xp = array_module(a)
    axes = reduced(a.shape, axis).axes
    largest = largest_of(a, axes)
    is_finite = xp.isfinite(largest)
    shift = xp.where(is_finite, largest, 0)  # -inf - (-inf) would be no number
    exponentials = xp.exp(a - shift)
    # Where the largest is inf or NaN, the gradient is as undefined as in PyTorch.
    sums = backend.reduce_sum(exponentials, axes, True)
    sums = xp.where(is_finite, sums, xp.where(largest == -math.inf, 1, largest))
    result = xp.where(is_finite, xp.log(sums) + shift, largest)
    return without_axes(result, axes, keepdims), exponentials, sums


logsumexp.gradients(
    a=lambda g, exponentials, sums: (
        exponentials * (backend.reshape(g, sums.shape) / sums)
    )
)
