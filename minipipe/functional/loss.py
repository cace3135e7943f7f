"""The squared error."""

from __future__ import annotations

from minipipe import backend
from minipipe.errors import ArgumentError, TensorError
from minipipe.functional.precision import astype
from minipipe.tensor import Operand, Tensor, operands, record


def mean_squared_error(prediction: Tensor, target: Operand, reduction: str = "mean") -> Tensor:
    """Return the mean of (prediction - target)^2 over all elements; both of the same shape.

    Parameters
    ----------
    prediction, target : Tensor of any shape
    reduction : {"mean", "sum"}

    Returns
    -------
    Tensor of shape ()
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
    """
    prediction, target = operands(prediction, target)
    if backend.is_half(prediction.dtype):
        prediction, target = astype(prediction, "float32"), astype(target, "float32")
    if prediction.shape != target.shape:
        raise TensorError(
            "shape",
            f"mean_squared_error: the prediction has shape {prediction.shape}, the target {target.shape}; expected the "
            "same, such as target.reshape(prediction.shape) where only an axis of length 1 is missing.",
        )
    difference = prediction.data - target.data
    if reduction not in ("mean", "sum"):
        raise ArgumentError("value", f"mean_squared_error: reduction is {reduction!r}; expected 'mean' or 'sum'.")
    count = prediction.size if reduction == "mean" else 1
    return record(
        backend.sum_of_squares(difference) / count,
        (prediction, lambda g: difference * (g * (2 / count))),
        (target, lambda g: difference * (g * (-2 / count))),
    )
