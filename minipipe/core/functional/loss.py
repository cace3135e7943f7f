"""Softmax and the losses: squared error and cross-entropy, with the weights by which
targets count.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Shape, array_module
from minipipe.core.autograd.host import known
from minipipe.core.errors import ArgumentError, MinipipeError, TensorError, shape_error
from minipipe.core.functional.operands import (
    as_real,
    astype,
    constant,
    data_of,
    in_full,
    operands,
)
from minipipe.core.functional.reduction import largest_of
from minipipe.core.specs import Spec
from minipipe.core.tensor import Operand, Tensor, op

_REDUCTIONS = ("mean", "sum")
_SMOOTHING = Spec(float, minimum=0, maximum=1)
_WEIGHT = Spec(float, minimum=0, expected="a finite number, at least 0")
_SMOOTHED_WEIGHT = Spec(
    float, above=0, expected="a number above 0, because of label_smoothing"
)


def log_softmax_of_array(x: Array, axis: int) -> Array:
    """Return the logarithm of the softmax of an array along an axis, without
    overflow.
    """
    xp = array_module(x)
    shifted = x - largest_of(x, axis)
    return shifted - xp.log(backend.reduce_sum(xp.exp(shifted), axis, True))


def _compared(prediction: Operand, target: Operand) -> tuple[Tensor, Tensor]:
    """Return a prediction and its target as tensors of one dtype, no half, and one
    shape.
    """
    for operand in (prediction, target):
        if isinstance(operand, Tensor):
            operand._check_whole("mean_squared_error")
    prediction, target = operands(in_full(prediction), in_full(target))
    if prediction.data.shape != target.data.shape:
        reshaped = "target.reshape(prediction.shape)"
        expected = f"equal shapes, such as {reshaped} if only an axis of length 1 is"
        shapes = {"prediction": prediction.shape, "target": target.shape}
        raise shape_error("mean_squared_error", f"{expected} missing", **shapes)
    return prediction, target


@op(takes=_compared, attributes="reduction weights", saves="pull count")
def mean_squared_error(
    prediction: Array, target: Array, reduction: str = "mean", weights: Any = None
) -> tuple[Array, Array, float]:
    """Return the mean of (prediction - target)^2 over all elements; both of the same
    shape.

    Parameters
    ----------
    prediction, target : Tensor of any shape
    reduction : {"mean", "sum"}
    weights : array, optional
        How much each element counts, at least 0, or a mask of truth values; with as
        many axes as the target, some of length 1 perhaps. The mean is over their sum.
        Elements of weight 0 may be anything, even NaN.

    Returns
    -------
    Tensor of shape ()
        0 if no element counts. For float16 and bfloat16 it is computed and returned in
        float32.

    Raises
    ------
    TensorError
        Codes ``shape`` and ``dtype``; ``divided``, for outputs of which this rank has a
        part.
    ArgumentError
        Code ``value``.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> functional.mean_squared_error(Tensor([1.0, 2.0]), Tensor([1.0, 4.0]))
    Tensor(2.)
    >>> functional.mean_squared_error(
    ...     Tensor([1.0, 2.0]), Tensor([1.0, 4.0]), weights=[False, True]
    ... )
    Tensor(4.)
    """
    check_reduction("mean_squared_error", reduction)
    difference = prediction - target
    count: float = 1
    if weights is None:
        if reduction == "mean":
            count = backend.prod(difference.shape) or math.nan
        return backend.sum_of_squares(difference) / count, difference, count
    each = broadcast_weights(weights, prediction)
    if reduction == "mean":
        count = _divisor(each)
    difference = array_module(each).where(each == 0, each, difference)
    pull = difference * each
    return backend.reduce_sum(pull * difference) / count, pull, count


mean_squared_error.gradients(
    prediction=lambda g, pull, count: pull * (g * (2 / count)),
    target=lambda g, pull, count: pull * (g * (-2 / count)),
)


def check_reduction(name: str, reduction: Any) -> None:
    """Refuse another reduction than a mean and a sum."""
    # before a name is made, for the time
    if not isinstance(reduction, str) or reduction not in _REDUCTIONS:
        Spec(str, choices=tuple(_REDUCTIONS)).check(f"{name}: reduction", reduction)


def total_weight(weights: Array) -> float:
    """Return the sum of all weights, in double precision."""
    xp = array_module(weights)
    return float(xp.sum(weights, dtype=xp.float64))


def _divisor(weights: Array) -> Any:
    """Return the sum of weights, 1 instead of 0: a number; or, of a device, an array
    for which the host does not wait.
    """
    if isinstance(weights, np.ndarray):
        return total_weight(weights) or 1
    xp = array_module(weights)
    total = xp.sum(weights, dtype=xp.float64)
    return xp.astype(total + xp.astype(total == 0, xp.float64), weights.dtype)


def broadcast_weights(weights: Any, like: Array) -> Array:
    """Return weights, or a mask, for each element of an array, in its dtype."""
    xp = array_module(like)
    given = data_of(weights, like)
    # With fewer axes they might fit by chance.
    pairs = zip(given.shape, like.shape)
    fits = given.ndim in (0, like.ndim) and all(n in (1, m) for n, m in pairs)
    if not fits:
        raise TensorError(
            "shape",
            f"Weights of shape {given.shape} do not fit a target of shape "
            f"{like.shape}; expected one for each element, or axes of length 1.",
        )
    _check_weights(given)
    return xp.broadcast_to(xp.astype(given, like.dtype), like.shape)


@backend.on_host
def _check_weights(weights: Array) -> None:
    weights = known(weights)
    if backend.is_boolean(weights.dtype) or not weights.size:
        return
    if not float(array_module(weights).min(weights)) >= 0:
        raise ArgumentError(
            "Weights of a loss are at least 0; some of these are less, or not a number."
        )


def _scores_and_labels(logits: Operand, labels: Operand) -> tuple[Tensor, Tensor]:
    """Return scores as real numbers, no halves, and labels as a constant beside
    them.
    """
    if isinstance(logits, Tensor):
        logits._check_whole("cross_entropy")
    scores = as_real(logits)
    if backend.is_half(scores.dtype):
        scores = astype(scores, "float32")
    return scores, constant(data_of(labels, scores.data))


@op(
    takes=_scores_and_labels,
    attributes="ignore_index label_smoothing class_weights reduction",
    saves="log_probabilities wanted total counts_all",
)
def cross_entropy(
    logits: Array,
    labels: Array,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    class_weights: Any = None,
    reduction: str = "mean",
) -> tuple[Array, Array, Array, Any, bool]:
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
        The part, from 0 to 1, of each row's weight that is spread evenly over all
        classes.
    class_weights : array of shape (k,), optional
        How much each class counts, at least 0; above 0 where labels are smoothed. The
        mean is over the sum of the weights of the labels, as in PyTorch. A row that is
        ignored, or whose label has the weight 0, adds nothing, whatever its scores are.
    reduction : {"mean", "sum"}

    Returns
    -------
    Tensor of shape ()
        0 if no row counts. For scores in float16 or bfloat16 it is computed and
        returned in float32.

    Raises
    ------
    TensorError
        Codes ``shape``, ``dtype`` and ``out-of-range``; ``divided``, for scores of
        which this rank has a part.
    ArgumentError
        Code ``value``.

    References
    ----------
    Szegedy et al. 2016, "Rethinking the Inception architecture for computer vision",
    section 7, for the smoothing.

    Examples
    --------
    Equal scores for four classes cost log(4), for any label.

    >>> import numpy as np
    >>> from minipipe import Tensor, functional
    >>> scores = Tensor(np.zeros((3, 4)))
    >>> round(functional.cross_entropy(scores, [0, 3, 1]).item(), 4)
    1.3863
    >>> round(
    ...     functional.cross_entropy(scores, [0, 3, -100], ignore_index=-100).item(), 4
    ... )
    1.3863
    """
    check_labels(logits, labels, ignore_index)
    check_options(label_smoothing, class_weights, reduction, logits.shape[-1])
    columns = backend.reshape(labels, (-1,))
    counts_all = ignore_index is None and class_weights is None
    total: Any = 1.0
    if reduction == "mean" and counts_all:
        total = float(columns.shape[0])
    elif reduction == "mean":
        total = weight_of_labels(columns, logits, ignore_index, class_weights)
    if counts_all and not label_smoothing:
        log_probabilities = log_softmax_of_array(backend.rows_of(logits), -1)
        losses = backend.one_per_row(log_probabilities, columns)
        wanted = columns
    else:
        wanted = _distribution(
            columns, ignore_index, label_smoothing, class_weights, logits
        )
        log_probabilities = log_softmax_of_array(backend.rows_of(logits), -1)
        losses = wanted * _counted(log_probabilities, wanted, counts_all)
    loss = -(backend.reduce_sum(losses) / total)
    return loss, log_probabilities, wanted, total, counts_all


def _counted(array: Array, weights: Array, counts_all: bool) -> Array:
    """Leave out elements with the weight 0: a score of -inf, or NaN in padding, times 0
    would be NaN.
    """
    if counts_all:
        return array
    return backend.masked(array, weights != 0)


def gradient_of_logits(
    g: Array,
    log_probabilities: Array,
    wanted: Array,
    total: Any,
    counts_all: bool,
    shape: Shape,
) -> Array:
    """Return the gradient of scores, from what :func:`cross_entropy` saves."""
    xp = array_module(log_probabilities)
    probabilities = xp.exp(log_probabilities)
    if wanted.ndim == 1:  # the labels themselves
        is_wanted = xp.arange(shape[-1]) == wanted[:, None]
        difference = probabilities - xp.astype(is_wanted, probabilities.dtype)
    else:
        weights = backend.reduce_sum(wanted, -1, True)
        difference = _counted(probabilities, weights, counts_all) * weights - wanted
    return backend.reshape(difference * (g / total), shape)


cross_entropy.gradients(logits=gradient_of_logits)


@backend.one_line
def weight_of_labels(
    columns: Array, like: Array, ignore_index: int | None, class_weights: Any
) -> Array:
    """Return the weight of all labels in the dtype of ``like``, shape (); 1 where none
    counts.
    """
    xp = array_module(like)
    if xp is np:
        weight = label_weight(columns, ignore_index, class_weights) or 1.0
        return np.asarray(weight, dtype=like.dtype)
    counts = xp.ones(columns.shape, dtype=xp.float64)
    if ignore_index is not None:
        counts = xp.astype(columns != ignore_index, xp.float64)
        columns = xp.where(columns == ignore_index, 0, columns)
    if class_weights is not None:
        weights = xp.asarray(class_weights, dtype=xp.float64)
        counts = counts * xp.take(weights, columns)
    return xp.astype(_divisor(counts), like.dtype)


def label_weight(
    labels: Operand, ignore_index: int | None = None, class_weights: Any = None
) -> float:
    """Return how much labels count: how many are not ignored, or the sum of their
    classes' weights.

    Examples
    --------
    >>> (
    ...     label_weight([0, 1, 1, -100], ignore_index=-100),
    ...     label_weight([0, 1, 1], class_weights=[1.0, 0.5]),
    ... )
    (3.0, 2.0)
    """
    if isinstance(labels, Tensor):
        labels = labels.data
    columns = backend.reshape(backend.as_array(labels), (-1,))
    if ignore_index is not None:
        columns = columns[columns != ignore_index]
    if class_weights is None:
        return float(columns.shape[0])
    xp = array_module(columns)
    return float(xp.sum(xp.take(xp.asarray(class_weights, dtype=xp.float64), columns)))


def _distribution(
    columns: Array,
    ignore_index: int | None,
    smoothing: float,
    class_weights: Any,
    like: Array,
) -> Array:
    """Return, for each row, the weights of -log of each class' probability: shape (n,
    k).
    """
    xp = array_module(like)
    k = like.shape[-1]
    chosen = xp.astype(xp.arange(k) == columns[:, None], like.dtype)
    weights = (1 - smoothing) * chosen + smoothing / k
    if class_weights is not None:
        weights = weights * xp.asarray(class_weights, dtype=like.dtype)
    if ignore_index is None:
        return weights
    return weights * xp.astype(columns != ignore_index, like.dtype)[:, None]


def check_options(
    label_smoothing: float, class_weights: Any, reduction: str, k: int
) -> None:
    """Refuse options of :func:`cross_entropy`, of k classes, that mean nothing."""
    check_reduction("cross_entropy", reduction)
    if label_smoothing != 0:
        _SMOOTHING.check("cross_entropy: label_smoothing", label_smoothing)
    if class_weights is None:
        return
    if len(class_weights) != k:
        raise ArgumentError(
            f"cross_entropy: class_weights has length {len(class_weights)}; expected "
            f"{k}."
        )
    # With smoothing a label of weight 0 adds to the sum, but not to its divisor.
    spec = _SMOOTHED_WEIGHT if label_smoothing else _WEIGHT
    for weight in map(float, class_weights):
        spec.check("cross_entropy: one of the class weights", weight)


def check_labels(logits: Array, labels: Array, ignore_index: int | None) -> None:
    """Refuse labels that do not fit scores."""
    if not backend.is_integer(labels.dtype):
        raise not_labels("cross_entropy", labels)
    if logits.ndim == 0 or labels.shape != logits.shape[:-1] or labels.size == 0:
        expected = "(..., k) and (...), not empty"
        shapes = {"scores": logits.shape, "labels": labels.shape}
        raise shape_error("cross_entropy", expected, **shapes)
    check_range_of_labels("cross_entropy", labels, logits.shape[-1], ignore_index)


def not_labels(name: str, labels: Array) -> MinipipeError:
    """Return the error for labels that are no whole numbers."""
    return TensorError(
        "dtype",
        f"{name}: the labels are {labels.dtype}; expected whole numbers, the indices "
        "of classes. One-hot labels become indices by labels.argmax(axis=-1).",
    )


@backend.on_host
def check_range_of_labels(
    name: str, labels: Array, count: int, ignore_index: int | None
) -> None:
    """Refuse labels that are not 0 to ``count - 1``, but for those that are ignored."""
    labels = known(labels)
    if ignore_index is not None:
        labels = labels[labels != ignore_index]
        if labels.shape[0] == 0:
            return
    xp = array_module(labels)
    if hasattr(labels, "min"):
        bounds = (labels.min(), labels.max())
    else:
        bounds = (xp.min(labels), xp.max(labels))
    # the methods take a third of the time of np.min and np.max
    low, high = map(int, bounds)
    if low < 0 or high >= count:
        hint = ""
        if low < 0 and ignore_index is None:
            hint = f" To leave out the label {low}: ignore_index={low}."
        problem = f"{name}: labels run from {low} to {high}"
        message = f"{problem}; expected 0 to {count - 1}.{hint}"
        raise TensorError("out-of-range", message)
