"""A stage: neighbouring layers on one rank, and what they hold between a forward and its backward."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

from minipipe import autograd, backend, functional
from minipipe.autograd import Node, StageInput, WeightWork
from minipipe.backend import Array
from minipipe.errors import TensorError
from minipipe.nn import Parameter, Sequential
from minipipe.tensor import Tensor

__all__ = ["Stage"]

Loss = Callable[[Tensor, Tensor], Tensor]


class _Held(NamedTuple):
    """What one microbatch holds from F until B or I: the two ends of its graph, and where its gradient begins."""

    stage_input: StageInput
    root: Node | None  # None where the result depends on nothing that has a gradient
    seed: Array | None


class Stage:
    """Neighbouring layers of a model, computed for one microbatch at a time.

    Local; no messages.

    Parameters
    ----------
    model : Sequential
        The whole model. This stage's layers are copied out of it, values too where it has them.
    layers : range
        Which layers.
    index : int
        The stage, from 0.
    is_last : bool
        Whether the loss follows.
    loss : function
        ``(outputs, targets) -> Tensor`` with one element, a mean over the first axis.
    """

    def __init__(self, model: Sequential, layers: range, index: int, is_last: bool, loss: Loss) -> None:
        self.index = index
        self.layers = layers
        self.is_first = index == 0
        self.is_last = is_last
        self.module = Sequential(*copy.deepcopy(model.layers[layers.start : layers.stop]))
        self.module.first_layer = layers.start
        self.module.is_training = model.is_training
        self._loss = loss
        self._held: dict[int, _Held] = {}
        self._weight_work: dict[int, WeightWork] = {}

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        """Return this stage's parameters, named as in the whole model."""
        named = []
        for name, parameter in self.module.named_parameters():
            layer, _, rest = name.partition(".")
            named.append((f"{int(layer) + self.layers.start}.{rest}", parameter))
        return named

    def initialise(self, seed: int) -> None:
        """Fill the parameters that have no values yet, from the seed and their names in the whole model."""
        for name, parameter in self.named_parameters():
            if not parameter.is_filled:
                parameter.fill(seed, name)

    # -- the actions ----------------------------------------------------------------------------------------

    def forward(self, microbatch: int, data: Array) -> Array:
        """F, on any stage but the last: return the activations for the next stage, in C order.

        Parameters
        ----------
        microbatch : int
        data : array of shape (samples, ...)
            The inputs, or what the stage before computed.
        """
        stage_input, result = self._compute(data)
        result = functional.contiguous(result)
        self._hold(microbatch, stage_input, result, None)
        return result.data

    def forward_with_loss(self, microbatch: int, data: Array, targets: Array, weight: float) -> float:
        """F on the last stage: return the mean loss of this microbatch.

        Parameters
        ----------
        microbatch : int
        data : array of shape (samples, ...)
        targets : array of shape (samples, ...)
        weight : float
            This microbatch's share of the batch. The one place where the loss is scaled: its gradient begins here.
        """
        stage_input, result = self._compute(data)
        loss = self._loss(result, Tensor(targets))
        if not isinstance(loss, Tensor) or loss.size != 1:
            given = f"a tensor of shape {loss.shape}" if isinstance(loss, Tensor) else type(loss).__name__
            raise TensorError("not-scalar", f"The loss must be a tensor with one element, the mean; it is {given}.")
        self._hold(microbatch, stage_input, loss, loss.seed_gradient(weight))
        return loss.item()

    def predict(self, data: Array) -> Array:
        """F on the last stage without targets: return the outputs."""
        return functional.contiguous(self._compute(data)[1]).data

    def backward(self, microbatch: int, gradient: Array | None) -> Array | None:
        """B: add this microbatch's weight gradients, and return the gradient of the stage's input.

        Parameters
        ----------
        microbatch : int
        gradient : array or None
            Of the stage's result. None on the last stage, where the loss begins it, and where the next stage's result
            does not depend on this one's.

        Returns
        -------
        array or None
            None on the first stage, and where the result does not depend on the input.
        """
        held = self._held.pop(microbatch)
        begin = held.seed if self.is_last else gradient
        if held.root is not None and begin is not None:
            autograd.backward(held.root, begin)
        return held.stage_input.grad

    def backward_input(self, microbatch: int, gradient: Array | None) -> Array | None:
        """I: return the gradient of the stage's input, and leave the weights for later.

        Parameters and result are those of :meth:`backward`. What only this needed is freed.
        """
        held = self._held.pop(microbatch)
        work = WeightWork()
        begin = held.seed if self.is_last else gradient
        if held.root is not None and begin is not None:
            work = autograd.backward_input(held.root, begin, held.stage_input)
        self._weight_work[microbatch] = work
        return held.stage_input.grad

    def backward_weight(self, microbatch: int) -> None:
        """W: add this microbatch's weight gradients."""
        self._weight_work.pop(microbatch).run()

    def _compute(self, data: Array) -> tuple[StageInput, Tensor]:
        stage_input = StageInput(needs_gradient=not self.is_first and backend.is_floating(data.dtype))
        x = Tensor(data)
        x.node = stage_input
        return stage_input, self.module(x)

    def _hold(self, microbatch: int, stage_input: StageInput, result: Tensor, seed: Array | None) -> None:
        if autograd.is_grad_enabled():
            self._held[microbatch] = _Held(stage_input, result.node, seed)

    # -- what it holds --------------------------------------------------------------------------------------

    def zero_grad(self) -> None:
        """Forget the gradients, and whatever a step that failed has left."""
        self._held.clear()
        self._weight_work.clear()
        self.module.zero_grad()

    @property
    def num_held(self) -> int:
        """How many microbatches hold activations: from F until B, or until W where the backward is split."""
        return len(self._held) + len(self._weight_work)

    @property
    def held(self) -> list[Node | WeightWork]:
        """The graphs that are kept for backwards to come."""
        roots = [held.root for held in self._held.values() if held.root is not None]
        return [*roots, *self._weight_work.values()]
