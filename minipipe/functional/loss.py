"""The squared error."""

from __future__ import annotations

from typing import Any

from minipipe.autograd import backend
from minipipe.autograd.backend import Array, array_module
from minipipe.errors import ArgumentError, TensorError
from minipipe.functional.precision import in_full
from minipipe.tensor import Operand, Tensor, operands, record


def mean_squared_error(prediction: Tensor, target: Operand, reduction: str = "mean", weights: Any = None) -> Tensor:
    """Return the mean of (prediction - target)^2 over all elements; both of the same shape.

    Parameters
    ----------
    prediction, target : Tensor of any shape
    reduction : {"mean", "sum"}
    weights : array, optional
        How much each element counts, at least 0, or a mask of truth values; with as many axes as the target, some of
        length 1 perhaps. The mean is over their sum. What is under a 0 may be anything, NaN too.

    Returns
    -------
    Tensor of shape ()
        0 where nothing counts.
        Of float16 and bfloat16 it is computed and returned in float32.

    Raises
    ------
    TensorError
        Codes ``shape`` and ``dtype``.
    ArgumentError
        Code ``value``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.mean_squared_error(Tensor([1.0, 2.0]), Tensor([1.0, 4.0]))
    Tensor(2.)
    >>> functional.mean_squared_error(Tensor([1.0, 2.0]), Tensor([1.0, 4.0]), weights=[False, True])
    Tensor(4.)
    """
    prediction, target = operands(in_full(prediction), in_full(target))
    if prediction.shape != target.shape:
        raise TensorError(
            "shape",
            f"mean_squared_error: the prediction has shape {prediction.shape}, the target {target.shape}; expected the "
            "same, such as target.reshape(prediction.shape) where only an axis of length 1 is missing.",
        )
    difference = prediction.data - target.data
    check_reduction("mean_squared_error", reduction)
    count: float = prediction.size if reduction == "mean" else 1
    error, pull = backend.sum_of_squares(difference), difference
    if weights is not None:
        each = broadcast_weights(weights, difference)
        difference = array_module(each).where(each == 0, each, difference)
        pull = difference * each
        error = backend.reduce_sum(pull * difference)
        count = (total_weight(each) or 1) if reduction == "mean" else 1
    return record(
        error / count,
        (prediction, lambda g: pull * (g * (2 / count))),
        (target, lambda g: pull * (g * (-2 / count))),
    )


def check_reduction(name: str, reduction: Any) -> None:
    """Refuse another reduction than a mean and a sum.

    Raises
    ------
    ArgumentError
        Code ``value``.
    """
    if reduction not in ("mean", "sum"):
        raise ArgumentError("value", f"{name}: reduction is {reduction!r}; expected 'mean' or 'sum'.")


def total_weight(weights: Array) -> float:
    """Return the sum of all weights, in double precision."""
    xp = array_module(weights)
    return float(xp.sum(weights, dtype=xp.float64))


def broadcast_weights(weights: Any, like: Array) -> Array:
    """Return weights, or a mask, for each element of an array, in its dtype.

    Raises
    ------
    TensorError
        Code ``shape``.
    ArgumentError
        Code ``value``, for what is less than 0.
    """
    xp = array_module(like)
    given = weights.data if isinstance(weights, Tensor) else backend.as_array(weights, like=like)
    try:
        if given.ndim not in (0, like.ndim):  # it might fit by chance
            raise ValueError
        each = xp.broadcast_to(xp.astype(given, like.dtype), like.shape)
    except ValueError:
        message = f"Weights of shape {given.shape} do not fit a target of shape {like.shape}"
        raise TensorError("shape", f"{message}; expected one for each element, or axes of length 1.") from None
    if each.size and not float(xp.min(each)) >= 0:
        raise ArgumentError("value", "Weights of a loss are at least 0; some of these are less, or not a number.")
    return each
