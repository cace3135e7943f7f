"""The loss of a batch: of each microbatch, with its weight in the mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from math import inf
from operator import add
from typing import Any

from minipipe.core.autograd import backend
from minipipe.core.autograd.host import numbers
from minipipe.core.errors import MicrobatchError, TensorError
from minipipe.core.execution.payload import Payload
from minipipe.core.tensor import Tensor, record

Loss = Callable[[Any, Any], Tensor]


class Objective:
    """The loss of each microbatch of a batch; without a loss, the outputs.

    The last stage calls it with its outputs.

    Parameters
    ----------
    loss : function, optional
        ``(outputs, targets) -> Tensor`` with one element.

    Attributes
    ----------
    loss : function or None
    scale : float
        Factor of the gradients, not of the loss.
    targets : sequence of Payload or None
        By microbatch, on the rank of the last stage.
    shares : list of float
        The weight of each microbatch in the loss of the batch.
    losses : dict of int to float
        By microbatch; on a device arrays, until :meth:`read_losses`.
    outputs : dict of int to Payload
        By microbatch, if they are kept.
    """

    def __init__(self, loss: Loss | None = None) -> None:
        self.loss = loss
        self.scale = 1.0
        self.targets: Sequence[Payload] | None = None
        self.shares: list[float] = []
        self.losses: dict[int, Any] = {}
        self.outputs: dict[int, Payload] = {}

    def __call__(self, microbatch: int, outputs: Any) -> tuple[Tensor | None, float]:
        """Return the loss of a microbatch, if there is one, and its seed: the gradient
        with which backward begins.
        """
        if self.loss is None:
            self.outputs[microbatch] = Payload.of(outputs)
            return None, 0.0
        targets = None if self.targets is None else self.targets[microbatch]
        loss = self.compared(outputs, targets)
        # read outside the captured computation
        return loss, self.note(microbatch, backend.number(loss.data))

    def read_losses(self) -> dict[int, float]:
        """Return the losses by microbatch. Those on a device are read, all at once."""
        self.losses.update(zip(self.losses, numbers([*self.losses.values()])))
        return self.losses

    def compared(self, outputs: Any, targets: Payload | None) -> Tensor:
        """Return the loss of outputs: a tensor with one element.

        Raises
        ------
        TensorError
            Code ``shape``.
        """
        assert self.loss is not None
        tensors = None
        if targets is not None:
            tensors = targets.rebuilt([record(array) for array in targets.arrays])
        loss = self.loss(outputs, tensors)
        if isinstance(loss, Tensor) and backend.prod(loss.shape) == 1:
            return loss
        result = type(loss).__name__
        if isinstance(loss, Tensor):
            result = f"a tensor of shape {loss.shape}"
        message = "The loss must be a tensor with one element, the mean; it is"
        raise TensorError("shape", f"{message} {result}.")

    def note(self, microbatch: int, loss: Any) -> float:
        """Note the loss of a microbatch, a number or an array of a device; return the
        gradient with which its backward begins.
        """
        self.losses[microbatch] = loss
        return self.shares[microbatch] * self.scale

    def numbers(self) -> list[float]:
        """Return the losses of the batch and of its microbatches.

        The sum ascends through the microbatches, in whatever order these were computed.
        """
        total = 0.0
        losses = []
        if {*map(type, self.losses.values())} - {float}:
            self.read_losses()
        for k, loss in sorted(self.losses.items()):
            losses.append(loss)
            # A microbatch that does not count may have a loss that is not a number,
            # such as a mean over nothing.
            if self.shares[k]:
                total += self.shares[k] * loss
        return [total, *losses]


def added(numbers: Iterable[float]) -> float:
    """Return the sum, from left to right. Python's ``sum`` compensates for rounding
    since 3.12, so its bits differ.

    Examples
    --------
    >>> added([0.1, 0.2, 0.3])
    0.6000000000000001
    """
    return reduce(add, numbers, 0.0)


def shared_out(weights: Sequence[float]) -> list[float]:
    """Return weights whose sum is 1, in proportion to the given ones.

    Raises
    ------
    MicrobatchError
        Code ``value``.

    Examples
    --------
    >>> shared_out([1, 3])
    [0.25, 0.75]
    """
    total = added(weights)
    if not (min(weights) >= 0 and 0 < total < inf):  # NaN is in no range
        message = (
            f"The targets of this batch count {[*weights]}, by microbatch; expected at "
            "least 0, and not 0 for all."
        )
        raise MicrobatchError(
            "value",
            f"{message} Is everything ignored, or the loss_weight not a number?",
        )
    return [w / total for w in weights]


def shares_of(
    loss: Loss, sizes: Sequence[int], targets: Sequence[Payload] | None
) -> list[float]:
    """Return the weight of each microbatch in the loss of the batch: by the loss' own
    ``weight(targets)`` or, without one, by the number of samples.

    For a loss whose ``reduction`` is ``"sum"`` each weight is 1. Weights of targets are
    known on the rank of the targets; on others the sizes serve, and mean nothing.
    """
    if getattr(loss, "reduction", "mean") == "sum":
        return [1.0] * len(sizes)
    weight = getattr(loss, "weight", None)
    if targets is None or not callable(weight):
        return shared_out(sizes)
    return shared_out([float(weight(part.rebuilt())) for part in targets])
