"""Losses that layers add to the loss of the batch, anywhere in a model.

In a pipeline, each stage sends the sum so far to the next stage together with its
activations, and receives its gradient. The last stage adds the sum to the loss of each
microbatch. A layer cannot add the gradient in its own backward: it would need the
weight of the microbatch, which only the last stage knows::

    stage 0    x ──> layers ──> h        stage 1    h ──> layers ──> outputs ──> loss(outputs, targets) ──┐
                        └────> a0 ─────────────────────> a0 + a1 ──────────────────────────────────────> + ──> loss
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

from minipipe.autograd import backend
from minipipe.autograd.modes import setting
from minipipe.errors import TensorError
from minipipe.functional.operands import in_full
from minipipe.functional.shape import reshape
from minipipe.nn.function import text_of
from minipipe.nn.module import Module
from minipipe.pytree import Bundle, tensors_in
from minipipe.specs import Spec
from minipipe.tensor import Tensor, record


class AuxiliaryLosses(list[Tensor]):
    """The losses that layers added inside :func:`auxiliary_losses`, each times its
    weight.

    Examples
    --------
    >>> AuxiliaryLosses([Tensor(1.0), Tensor(0.5)]).added_to(Tensor(2.0))
    Tensor(3.5)
    """

    def added_to(self, loss: Tensor) -> Tensor:
        """Return the sum with a loss, with the same bits as in a pipeline."""
        return reshape(in_full(loss), ()) + sum(self[1:], self[0]) if self else loss


_here: ContextVar[AuxiliaryLosses | None] = ContextVar("auxiliary losses", default=None)


class AuxiliaryLoss(Module):
    """Adds a function of its input to the loss while training, and returns the input.

    Examples: load balancing in a mixture of experts, a penalty that keeps activations
    small. In a pipeline it may be in any layer; ``step`` returns the whole loss on
    every rank. It is weighted by its microbatch's weight in the batch, so it should be
    a mean if the loss is a mean, and a sum if the loss is a sum. It does nothing in
    evaluation.

    Parameters
    ----------
    function : function
        ``x -> Tensor`` with one element, or a module. A function has no parameters; see
        :class:`minipipe.nn.Function`.
    weight : float
        The factor of the function's result. With 0 there is neither loss nor gradient,
        even of an infinite result.

    Raises
    ------
    TensorError
        Code ``shape``, on a call, when the function returns anything else.

    References
    ----------
    Shazeer et al. 2017, "Outrageously large neural networks: the sparsely-gated
    mixture-of-experts layer", section 4.

    Examples
    --------
    >>> from minipipe import Tensor, nn
    >>> model = nn.Sequential(
    ...     nn.AuxiliaryLoss(lambda x: (x * x).mean(), weight=0.1), nn.Linear(2, 1)
    ... )
    >>> with nn.auxiliary_losses() as found:
    ...     outputs = model(Tensor([[1.0, 3.0]]))
    >>> found
    [Tensor(0.5)]
    """

    def __init__(self, function: Callable[[Any], Tensor], weight: float = 1.0) -> None:
        spec = Spec(Callable, expected="a function of its input")
        spec.of_class("AuxiliaryLoss", function)
        self.function, self.weight = function, weight
        if isinstance(function, Module):
            self._described = function.brief()
        else:
            self._described = text_of(function)

    def forward(self, x: Any) -> Any:
        """Return the argument itself, a tensor or a pytree."""
        losses = _here.get()
        if self.is_training and losses is not None:
            value = self.function(x)
            if not isinstance(value, Tensor) or value.size != 1:
                if isinstance(value, Tensor):
                    found = f"a tensor of shape {value.shape}"
                else:
                    found = type(value).__name__
                raise TensorError(
                    "shape",
                    "An AuxiliaryLoss must be a tensor with one element; it is "
                    f"{found}.",
                )
            value = reshape(in_full(value), ())
            # 0 times an infinite value would be NaN, and so would be the gradient.
            if self.weight:
                losses.append(value * self.weight)
            else:
                losses.append(record(backend.filled((), 0.0, value.data)))
        return x

    def describe(self) -> str:
        """Name the function, and the weight as it is now: one may change it during
        training.
        """
        return f"{self._described}, weight={self.weight}"


def auxiliary_losses() -> setting:
    """Collect the auxiliary losses of layers computed inside this block, in this
    thread.

    A pipeline does this itself. In your own training loop, losses outside such a block
    are lost.

    Examples
    --------
    >>> from minipipe import nn
    >>> layer = nn.AuxiliaryLoss(lambda x: x.sum())
    >>> with nn.auxiliary_losses() as found:
    ...     loss = (layer(Tensor([1.0, 2.0])) * 10).mean()
    >>> found.added_to(loss)
    Tensor(18.)
    """
    return setting(_here, AuxiliaryLosses())


def losses_so_far() -> list[Tensor]:
    """Return the list to which layers add their losses here; outside of
    :func:`auxiliary_losses` a new one.
    """
    losses = _here.get()
    return [] if losses is None else losses


class WithLosses(NamedTuple):
    """The outputs of the last stage, and the auxiliary losses of all of them."""

    outputs: Bundle
    total: Tensor


def _nothing(like: Tensor) -> Tensor:
    """Return what a stage hands on while there is no loss: no element of some
    tensor.
    """
    data = like.data
    if data.ndim:
        return record(backend.reshape(data[:0, ...], (0,)))
    return record(backend.filled((0,), 0.0, data))


def carrying_losses(
    forward: Callable[[Any], Any], is_first: bool, is_last: bool
) -> Callable[[Any], Any]:
    """Return the forward of a stage that takes and returns the sum of the losses so far
    together with its value.

    The first stage takes the value alone; the last one returns :class:`WithLosses`.
    """

    def carrying(x: Any) -> Any:
        x, total = (x, None) if is_first else x
        total = None if total is not None and not total.size else total
        with auxiliary_losses() as own:
            result = forward(x)
        # one after the other, as in one process, whatever the partition
        for value in own:
            total = value if total is None else total + value
        if is_last:
            return result if total is None else WithLosses(result, total)
        return result, _nothing(tensors_in(result)[0]) if total is None else total

    return carrying
