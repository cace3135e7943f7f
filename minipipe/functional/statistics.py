"""The variance and the extremes of elements over some axes."""

from __future__ import annotations

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Arrays, array_module
from minipipe.core.functional.operands import one_real
from minipipe.core.functional.reduction import Axis, reduced, without_axes
from minipipe.core.tensor import op
from minipipe.errors import TensorError


@op(
    takes=one_real,
    attributes="axis keepdims correction",
    saves="centred",
    in_float32=True,
)
def variance(
    a: Array, axis: Axis = None, keepdims: bool = False, correction: int = 0
) -> Arrays:
    """Return the mean square distance from the mean over some axes, by default all. As
    a method: ``var``.

    Parameters
    ----------
    a : Tensor
    axis : int or tuple of int, optional
    keepdims : bool
        Whether the axes stay, with length 1.
    correction : int
        What is taken off the number of elements before dividing by it; 1 for the
        variance of a population that the elements are a sample of. (PyTorch's default
        is 1, NumPy's 0.)

    Raises
    ------
    TensorError
        Codes ``shape`` and ``out-of-range``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> x = Tensor([1.0, 3.0])
    >>> functional.variance(x).item(), functional.variance(x, correction=1).item()
    (1.0, 2.0)
    """
    over = reduced(a.shape, axis)
    if over.size <= correction:
        expected = f"expected less than the number of elements, {over.size}"
        message = f"variance: the correction is {correction}; {expected}."
        raise TensorError("out-of-range", message)
    centred = a - backend.reduce_sum(a, over.axes, True) / over.size
    squares = backend.reduce_sum(centred * centred, over.axes, keepdims)
    return squares / (over.size - correction), centred


def _of_variance(g: Array, centred: Array, axis: Axis, correction: int) -> Array:
    over = reduced(centred.shape, axis)
    return centred * (backend.reshape(g, over.kept) * (2 / (over.size - correction)))


variance.gradients(a=_of_variance)


@op(attributes="axis keepdims", saves="extreme")
def amax(a: Array, axis: Axis = None, keepdims: bool = False) -> Arrays:
    """Return the largest element over some axes, by default all. As a method:
    ``tensor.max(axis)``.

    If several elements are largest, they share the gradient equally. An empty axis is
    refused.

    Parameters, result and errors are as in :func:`total`.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> x = Tensor([2.0, 5.0, 5.0], requires_grad=True)
    >>> functional.amax(x).backward()
    >>> x.grad
    array([0. , 0.5, 0.5], dtype=float32)
    """
    return _extreme("max", a, axis, keepdims)


@op(attributes="axis keepdims", saves="extreme")
def amin(a: Array, axis: Axis = None, keepdims: bool = False) -> Arrays:
    """Return the smallest element over some axes, by default all. As a method:
    ``tensor.min(axis)``.

    If several elements are smallest, they share the gradient equally. An empty axis is
    refused.

    Parameters, result and errors are as in :func:`total`.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.amin(Tensor([[2.0, 5.0], [4.0, 3.0]]), axis=0)
    Tensor([2., 3.])
    """
    return _extreme("min", a, axis, keepdims)


def _extreme(name: str, a: Array, axis: Axis, keepdims: bool) -> Arrays:
    """Return the extreme elements, and these with length 1 along the axes."""
    axes, _, size = reduced(a.shape, axis)
    if size == 0:
        problem = f"a{name}: axes {axes} of shape {a.shape} have no elements"
        raise TensorError("shape", f"{problem}; expected one at least.")
    extreme = getattr(array_module(a), name)(a, axis=axes, keepdims=True)
    return without_axes(extreme, axes, keepdims), extreme


def _shared(g: Array, a: Array, extreme: Array, axis: Axis) -> Array:
    """Return the gradient of the elements, in which all that are extreme have equal
    parts.
    """
    is_chosen = a == extreme
    axes = reduced(a.shape, axis).axes
    count = backend.reduce_sum(array_module(a).astype(is_chosen, a.dtype), axes, True)
    return backend.masked(backend.reshape(g, extreme.shape), is_chosen) / count


amax.gradients(a=_shared)
amin.gradients(a=_shared)
