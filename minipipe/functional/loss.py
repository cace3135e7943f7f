"""The losses."""

from __future__ import annotations

from minipipe import backend
from minipipe.backend import Array, array_module
from minipipe.errors import TensorError
from minipipe.tensor import Operand, Tensor, as_real, operands, record


def log_softmax_of_array(x: Array, axis: int) -> Array:
    """Return the logarithm of the softmax of an array along an axis, without overflow."""
    xp = array_module(x)
    shifted = x - xp.max(x, axis=axis, keepdims=True)
    return shifted - xp.log(backend.reduce_sum(xp.exp(shifted), axis, True))


def cross_entropy(logits: Tensor, labels: Operand) -> Tensor:
    """Return the mean of -log softmax(logits)[label] over all rows.

    Parameters
    ----------
    logits : Tensor of shape (..., k)
        One score for each of k classes.
    labels : array of integers of shape (...)
        The right class of each row, 0 to k - 1.

    Returns
    -------
    Tensor of shape ()

    Raises
    ------
    TensorError
        Codes ``shape``, ``dtype`` and ``range``.

    Examples
    --------
    Who finds four classes equally likely is log(4) wrong, whichever is right.

    >>> import numpy as np
    >>> from minipipe import Tensor, functional
    >>> round(functional.cross_entropy(Tensor(np.zeros((2, 4))), [0, 3]).item(), 4)
    1.3863
    """
    logits = as_real(logits)
    xp, num_classes = array_module(logits.data), logits.shape[-1] if logits.ndim else 0
    wanted = labels.data if isinstance(labels, Tensor) else backend.as_array(labels, like=logits.data)
    _check_labels(logits, wanted)
    columns = backend.reshape(wanted, (-1,))
    log_probabilities = log_softmax_of_array(backend.reshape(logits.data, (-1, num_classes)), -1)
    shape, count = logits.shape, columns.shape[0]

    def vjp(g: Array) -> Array:
        is_wanted = xp.arange(num_classes) == columns[:, None]
        difference = xp.exp(log_probabilities) - xp.astype(is_wanted, log_probabilities.dtype)
        return backend.reshape(difference * (g / count), shape)

    picked = backend.one_per_row(log_probabilities, columns)
    return record(-(backend.reduce_sum(picked) / count), (logits, vjp))


def _check_labels(logits: Tensor, labels: Array) -> None:
    if not backend.is_integer(labels.dtype):
        raise TensorError(
            "dtype",
            f"cross_entropy: labels must be whole numbers (class indices); these are {labels.dtype}. "
            "One-hot labels become indices by labels.argmax(axis=-1).",
        )
    if logits.ndim == 0 or labels.shape != logits.shape[:-1] or labels.size == 0:
        raise TensorError(
            "shape",
            f"cross_entropy: scores of shape {logits.shape} need labels of shape {logits.shape[:-1]}; "
            f"these have {labels.shape}.",
        )
    xp = array_module(labels)
    low, high = int(xp.min(labels)), int(xp.max(labels))
    if low < 0 or high >= logits.shape[-1]:
        raise TensorError(
            "range",
            f"cross_entropy: labels run from {low} to {high}, but there are {logits.shape[-1]} classes, from 0.",
        )


def mean_squared_error(prediction: Tensor, target: Operand) -> Tensor:
    """Return the mean of (prediction - target)^2 over all elements; both of the same shape.

    Parameters
    ----------
    prediction, target : Tensor of any shape

    Returns
    -------
    Tensor of shape ()

    Raises
    ------
    TensorError
        Codes ``shape`` and ``dtype``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.mean_squared_error(Tensor([1.0, 2.0]), Tensor([1.0, 4.0]))
    Tensor(2.)
    """
    prediction, target = operands(prediction, target)
    if prediction.shape != target.shape:
        raise TensorError(
            "shape",
            f"mean_squared_error: the prediction has shape {prediction.shape}, the target {target.shape}; expected the "
            "same, such as target.reshape(prediction.shape) where only an axis of length 1 is missing.",
        )
    difference = prediction.data - target.data
    count = prediction.size
    return record(
        backend.sum_of_squares(difference) / count,
        (prediction, lambda g: difference * (g * (2 / count))),
        (target, lambda g: difference * (g * (-2 / count))),
    )
