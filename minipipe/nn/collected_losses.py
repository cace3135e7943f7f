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

from minipipe.core.autograd import backend
from minipipe.core.autograd.modes import setting
from minipipe.core.pytree import Bundle, tensors_in
from minipipe.core.tensor import Tensor, record


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
        if not self:
            return loss
        from minipipe.core.functional.operands import in_full
        from minipipe.functional.shape import reshape

        return reshape(in_full(loss), ()) + sum(self[1:], self[0])


losses_here: ContextVar[AuxiliaryLosses | None] = ContextVar(
    "auxiliary losses", default=None
)


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
    return setting(losses_here, AuxiliaryLosses())


def losses_so_far() -> list[Tensor]:
    """Return the list to which layers add their losses here; outside of
    :func:`auxiliary_losses` a new one.
    """
    losses = losses_here.get()
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
