"""Losses as modules, and their weights for averaging over microbatches.

The loss of a batch is the mean over its microbatches, weighted by ``weight(targets)``,
or by the number of samples for a loss without that method. A loss whose ``reduction``
is ``"sum"`` is added up.
"""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

from minipipe.core.functional.loss import (
    broadcast_weights,
    check_reduction,
    cross_entropy,
    label_weight,
    mean_squared_error,
    total_weight,
)
from minipipe.core.functional.operands import in_full
from minipipe.core.nn.module import Module
from minipipe.core.tensor import Operand, Tensor, as_tensor


class CrossEntropyLoss(Module):
    """Mean of -log softmax(scores)[label]; see
    :func:`minipipe.functional.cross_entropy`.

    Parameters
    ----------
    ignore_index : int, optional
        Rows with this label do not count, such as padding.
    label_smoothing : float
        From 0 to 1.
    class_weights : array of shape (k,), optional
        How much each of k classes counts.
    reduction : {"mean", "sum"}

    Examples
    --------
    >>> from minipipe import Tensor, nn
    >>> nn.CrossEntropyLoss()(Tensor([[100.0, 0.0], [0.0, 100.0]]), [0, 0])
    Tensor(50.)
    >>> nn.CrossEntropyLoss(ignore_index=-1)(
    ...     Tensor([[100.0, 0.0], [0.0, 100.0]]), [-1, 0]
    ... )
    Tensor(100.)
    """

    not_trained = "class_weights"

    def __init__(
        self,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        class_weights: Any = None,
        reduction: str = "mean",
    ) -> None:
        check_reduction("CrossEntropyLoss", reduction)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        self.class_weights = deepcopy(class_weights)
        self.reduction = reduction

    def forward(self, scores: Tensor, labels: Operand) -> Tensor:
        """Map scores of shape (..., k) and whole-number labels of shape (...) to a loss
        of shape ().
        """
        return cross_entropy(
            scores,
            labels,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            class_weights=self.class_weights,
            reduction=self.reduction,
        )

    def weight(self, labels: Operand) -> float:
        """Return the weight of labels: the number not ignored, or the sum of their
        classes' weights.
        """
        return label_weight(labels, self.ignore_index, self.class_weights)


class MSELoss(Module):
    """Mean of (prediction - target)^2; see
    :func:`minipipe.functional.mean_squared_error`.

    The targets are an array, or a pair of it and weights or a mask: then the mean is
    over the items that count.

    Parameters
    ----------
    reduction : {"mean", "sum"}

    Examples
    --------
    >>> from minipipe import Tensor, nn
    >>> nn.MSELoss()(Tensor([[1.0], [2.0]]), Tensor([[1.0], [4.0]]))
    Tensor(2.)
    >>> nn.MSELoss()(Tensor([[1.0], [2.0]]), (Tensor([[1.0], [4.0]]), [[0], [1]]))
    Tensor(4.)
    """

    def __init__(self, reduction: str = "mean") -> None:
        check_reduction("MSELoss", reduction)
        self.reduction = reduction

    def forward(
        self, prediction: Tensor, targets: Operand | tuple[Operand, Any]
    ) -> Tensor:
        """Map two tensors of one shape, the second alone or in a pair with its weights,
        to a loss of shape ().
        """
        target, weights = _with_weights(targets)
        return mean_squared_error(
            prediction, target, reduction=self.reduction, weights=weights
        )

    def weight(self, targets: Operand | tuple[Operand, Any]) -> float:
        """Return the weight of targets: the number of elements, or the sum of their
        weights.
        """
        target, weights = _with_weights(targets)
        if weights is None:
            if not hasattr(target, "shape"):
                target = as_tensor(target)
            return math.prod(target.shape)
        return total_weight(broadcast_weights(weights, as_tensor(in_full(target)).data))

    vars()["weight"].weighs_items = True  # of an array, the number of elements


def _with_weights(targets: Operand | tuple[Operand, Any]) -> tuple[Operand, Any]:
    """Return targets and their weights, None for an array alone."""
    if isinstance(targets, tuple):
        return targets
    return targets, None
