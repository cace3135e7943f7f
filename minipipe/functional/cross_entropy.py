"""The cross-entropy of scores and labels, and how much a label counts."""

from __future__ import annotations

from typing import Any

from minipipe.autograd import backend
from minipipe.autograd.backend import Array, array_module
from minipipe.errors import ArgumentError, TensorError
from minipipe.functional.loss import check_reduction
from minipipe.functional.precision import astype
from minipipe.functional.softmax import log_softmax_of_array
from minipipe.tensor import Operand, Tensor, as_real, record


def cross_entropy(
    logits: Tensor,
    labels: Operand,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    class_weights: Any = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the mean of -log softmax(logits)[label] over all rows that count.

    Parameters
    ----------
    logits : Tensor of shape (..., k)
        One score for each of k classes.
    labels : array of integers of shape (...)
        The right class of each row, 0 to k - 1.
    ignore_index : int, optional
        Rows with this label do not count, such as padding.
    label_smoothing : float
        The part, from 0 to 1, of each row's weight that is spread evenly over all classes.
    class_weights : array of shape (k,), optional
        How much each class counts, at least 0; above 0 where labels are smoothed. The mean is over the sum of the
        weights of the labels, as in PyTorch.
    reduction : {"mean", "sum"}

    Returns
    -------
    Tensor of shape ()
        0 where no row counts. Of scores in float16 or bfloat16 it is computed and returned in float32.

    Raises
    ------
    TensorError
        Codes ``shape``, ``dtype`` and ``range``.
    ArgumentError
        Code ``value``.

    References
    ----------
    Szegedy et al. 2016, "Rethinking the Inception architecture for computer vision", section 7, for the smoothing.

    Examples
    --------
    Who finds four classes equally likely is log(4) wrong, whichever is right.

    >>> import numpy as np
    >>> from minipipe import Tensor, functional
    >>> scores = Tensor(np.zeros((3, 4)))
    >>> round(functional.cross_entropy(scores, [0, 3, 1]).item(), 4)
    1.3863
    >>> round(functional.cross_entropy(scores, [0, 3, -100], ignore_index=-100).item(), 4)
    1.3863
    """
    logits = as_real(logits)
    if backend.is_half(logits.dtype):
        logits = astype(logits, "float32")
    xp, k = array_module(logits.data), logits.shape[-1] if logits.ndim else 0
    given = labels.data if isinstance(labels, Tensor) else backend.as_array(labels, like=logits.data)
    _check_labels(logits, given, ignore_index)
    columns, shape = backend.reshape(given, (-1,)), logits.shape
    log_probabilities = log_softmax_of_array(backend.reshape(logits.data, (-1, k)), -1)
    _check_options(label_smoothing, class_weights, reduction, k)
    total = (label_weight(columns, ignore_index, class_weights) or 1.0) if reduction == "mean" else 1.0
    if ignore_index is None and class_weights is None and not label_smoothing:

        def plain(g: Array) -> Array:
            is_wanted = xp.arange(k) == columns[:, None]
            difference = xp.exp(log_probabilities) - xp.astype(is_wanted, log_probabilities.dtype)
            return backend.reshape(difference * (g / total), shape)

        picked = backend.one_per_row(log_probabilities, columns)
        return record(-(backend.reduce_sum(picked) / total), (logits, plain))
    wanted = _distribution(columns, ignore_index, label_smoothing, class_weights, log_probabilities)

    def vjp(g: Array) -> Array:
        difference = xp.exp(log_probabilities) * backend.reduce_sum(wanted, -1, True) - wanted
        return backend.reshape(difference * (g / total), shape)

    return record(-(backend.reduce_sum(wanted * log_probabilities) / total), (logits, vjp))


def label_weight(labels: Operand, ignore_index: int | None = None, class_weights: Any = None) -> float:
    """Return how much labels count: how many are not ignored, or the sum of their classes' weights.

    Examples
    --------
    >>> label_weight([0, 1, 1, -100], ignore_index=-100), label_weight([0, 1, 1], class_weights=[1.0, 0.5])
    (3.0, 2.0)
    """
    given = labels.data if isinstance(labels, Tensor) else backend.as_array(labels)
    columns = backend.reshape(given, (-1,))
    if ignore_index is not None:
        columns = columns[columns != ignore_index]
    if class_weights is None:
        return float(columns.shape[0])
    xp = array_module(columns)
    return float(xp.sum(xp.take(xp.asarray(class_weights, dtype=xp.float64), columns)))


def _distribution(columns: Array, ignore_index: int | None, smoothing: float, class_weights: Any, like: Array) -> Array:
    """Return, for each row, the weights of -log of each class' probability: shape (n, k)."""
    xp, k = array_module(like), like.shape[-1]
    chosen = xp.astype(xp.arange(k) == columns[:, None], like.dtype)
    weights = (1 - smoothing) * chosen + smoothing / k
    if class_weights is not None:
        weights = weights * xp.asarray(class_weights, dtype=like.dtype)
    return weights if ignore_index is None else weights * xp.astype(columns != ignore_index, like.dtype)[:, None]


def _check_options(label_smoothing: float, class_weights: Any, reduction: str, k: int) -> None:
    check_reduction("cross_entropy", reduction)
    if not 0 <= label_smoothing <= 1:
        raise ArgumentError("value", f"cross_entropy: label_smoothing is {label_smoothing}; expected 0 to 1.")
    if class_weights is not None and len(class_weights) != k:
        message = f"cross_entropy: there are {len(class_weights)} class weights for {k} classes; expected one for each."
        raise ArgumentError("value", message)
    least = 0.0 if class_weights is None else min(map(float, class_weights))
    if least < 0 or (label_smoothing and class_weights is not None and not least):
        # With smoothing a label of weight 0 adds to the sum, but not to what it is divided by.
        expected = "above 0, where there is label_smoothing" if label_smoothing else "at least 0"
        raise ArgumentError("value", f"cross_entropy: the least of the class weights is {least}; expected {expected}.")


def _check_labels(logits: Tensor, labels: Array, ignore_index: int | None) -> None:
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
    if ignore_index is not None:
        labels = labels[labels != ignore_index]
        if labels.shape[0] == 0:
            return
    low, high = int(xp.min(labels)), int(xp.max(labels))
    if low < 0 or high >= logits.shape[-1]:
        hint = f" If {low} marks what does not count: ignore_index={low}." if low < 0 and ignore_index is None else ""
        raise TensorError(
            "range",
            f"cross_entropy: labels run from {low} to {high}, but there are {logits.shape[-1]} classes, from 0.{hint}",
        )
