"""Losses as modules. Each is a mean over the first axis, so that microbatches can be weighted by their size."""

from __future__ import annotations

from minipipe import functional
from minipipe.nn.module import Module
from minipipe.tensor import Operand, Tensor


class CrossEntropyLoss(Module):
    """Mean of -log softmax(scores)[label]; see :func:`minipipe.functional.cross_entropy`.

    Examples
    --------
    >>> from minipipe import Tensor, nn
    >>> nn.CrossEntropyLoss()(Tensor([[100.0, 0.0], [0.0, 100.0]]), [0, 0])
    Tensor(50.)
    """

    def forward(self, scores: Tensor, labels: Operand) -> Tensor:
        """Map scores of shape (..., k) and whole-number labels of shape (...) to a loss of shape ()."""
        return functional.cross_entropy(scores, labels)


class MSELoss(Module):
    """Mean of (prediction - target)^2; see :func:`minipipe.functional.mean_squared_error`.

    Examples
    --------
    >>> from minipipe import Tensor, nn
    >>> nn.MSELoss()(Tensor([[1.0], [2.0]]), Tensor([[1.0], [4.0]]))
    Tensor(2.)
    """

    def forward(self, prediction: Tensor, target: Operand) -> Tensor:
        """Map two tensors of one shape to a loss of shape ()."""
        return functional.mean_squared_error(prediction, target)
