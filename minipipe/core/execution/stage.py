"""A stage: neighbouring layers on one rank, and the graphs they hold between a forward
and its backward.

File 7 of 13 on the first path through the code (README.md): after
``core/execution/handlers.py``, before ``core/functional/linear.py``. You will meet its nodes,
``Node`` and ``StageInput``, in file 9, and ``WeightWork``, the part that I leaves for
W, in file 12.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.autograd.graph import Node, StageInput
from minipipe.core.autograd.modes import is_grad_enabled
from minipipe.core.autograd.split import backward_input
from minipipe.core.autograd.walk import backward
from minipipe.core.errors import MessageError, ModelError, TensorError, not_copyable
from minipipe.core.execution.payload import Payload
from minipipe.core.nn.parameter import Parameter
from minipipe.core.nn.sequential import Sequential, boundary
from minipipe.core.pytree import tensors_in
from minipipe.core.schedules.action_table import Schedule
from minipipe.core.tensor import Tensor, record

SeededLoss = Callable[[int, Any], tuple[Tensor | None, float]]


class Held(NamedTuple):
    """The graph of one microbatch from F until B or I; after I, a WeightWork holds the
    rest until W.
    """

    inputs: list[StageInput]
    # (node, shape); no node if nothing before needs a gradient
    results: list[tuple[Node | None, tuple[int, ...]]]
    # on the last stage, the gradient of the loss, with which the backward begins
    seed: Array | None

    @property
    def graph(self) -> list[Node]:
        """The roots of the graph."""
        return [node for node, _ in self.results if node is not None]


class Stage:
    """Neighbouring layers of a model, computed for one microbatch at a time.

    Local; no messages. It keeps nothing between two actions of a microbatch: what a
    forward leaves for the backward is a value, which the caller keeps.

    Parameters
    ----------
    module : Sequential
        This stage's layers, a copy that belongs to it.
    index : int
        The stage, from 0.
    schedule : Schedule
        Gives the position of the stage: the last one is followed by the loss; a frozen
        one has no W, or no backward.
    parameters : dict of str to Parameter
        The parameters of its layers, by their names in the whole model.
    forward : function, optional
        Computes the layers in another way, such as :class:`minipipe.nn.Recompute`.

    Examples
    --------
    A stage alone, first and last in one: its loss for a microbatch that is half of the
    batch, and then B.

    >>> import numpy as np
    >>> from minipipe import nn, schedules
    >>> layers = nn.Sequential(
    ...     nn.Linear(2, 1, initialiser=nn.initialisers.constant(1.0))
    ... ).initialise()
    >>> stage = Stage(layers, 0, schedules.gpipe(1, 2), dict(layers.named_parameters()))
    >>> inputs = Payload([np.ones((3, 2), np.float32)], [False], None)
    >>> held = stage.forward_with_loss(
    ...     0, inputs, lambda microbatch, outputs: ((outputs * outputs).mean(), 0.5)
    ... )
    >>> _ = stage.backward(0, held, None)
    >>> layers[0].bias.grad
    array([2.], dtype=float32)
    """

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to be copied and pickled."""
        why = "it is a part of a pipeline and may hold the graphs of microbatches"
        raise not_copyable(self, why, "Copy its layers: copy.deepcopy(stage.module).")

    def __init__(
        self,
        module: Sequential,
        index: int,
        schedule: Schedule,
        parameters: dict[str, Parameter],
        forward: Callable[[Any], Any] | None = None,
    ) -> None:
        self.module = module
        self.index = index
        self.is_first = index == 0
        self.is_last = index == schedule.num_stages - 1
        self.is_frozen = index in schedule.frozen
        self.has_backward = index >= schedule.first_backward_stage
        self.parameters = parameters
        self.leaves = [
            leaf
            for parameter in parameters.values()
            for leaf in parameter.leaves.values()
        ]
        self._forward = forward or module

    # -- the actions -------------------------------------------------------------------

    def forward(self, microbatch: int, received: Payload) -> tuple[Payload, Any]:
        """F, on any stage but the last: return the activations for the next stage, in C
        order.

        Parameters
        ----------
        microbatch : int
        received : Payload
            The inputs, arrays of shape (samples, ...), or the result of the stage
            before.

        Returns
        -------
        activations : Payload
        held : Held or None
            For the backward; None if there is none.
        """
        inputs, result = self._compute(microbatch, received)
        result = boundary(result)
        return Payload.of(result), self._held(inputs, result, None)

    def forward_with_loss(
        self, microbatch: int, received: Payload, objective: SeededLoss
    ) -> Any:
        """F on the last stage, and the loss.

        Parameters
        ----------
        microbatch : int
        received : Payload
        objective : function
            ``(microbatch, outputs) -> (loss, share)``. The backward begins with this
            microbatch's weight in the batch instead of 1, which scales every gradient.
            None instead of a loss: nothing is held for a backward.

        Returns
        -------
        Held or None
            For the backward; None if there is none.
        """
        inputs, outputs = self._compute(microbatch, received)
        loss, share = objective(microbatch, outputs)
        return (
            None
            if loss is None
            else self._held(inputs, loss, loss.seed_gradient(share))
        )

    def backward(self, microbatch: int, held: Any, gradient: Payload | None) -> Payload:
        """B: add this microbatch's weight gradients, and return the gradients of its
        inputs.

        Parameters
        ----------
        microbatch : int
        held : Held
            What its forward has returned; released here.
        gradient : Payload or None
            The gradient of the stage's results. None on the last stage, whose backward
            begins at the loss.
        """
        backward(self._roots(microbatch, held, gradient))
        return self._gradients(held)

    def backward_input(
        self, microbatch: int, held: Any, gradient: Payload | None
    ) -> tuple[Payload, Any]:
        """I: return the gradients of the stage's inputs, and what W needs.

        Parameters are as in :meth:`backward`. Arrays that only these gradients needed
        are freed. On a frozen stage, which has no weights to come back for, it is the
        whole backward, and there is no W.
        """
        if self.is_frozen:
            return self.backward(microbatch, held, gradient), None
        work = backward_input(self._roots(microbatch, held, gradient))
        return self._gradients(held), work

    def backward_weight(self, microbatch: int, work: Any) -> None:
        """W: add this microbatch's weight gradients, from what I has returned."""
        work.run()

    def _compute(self, k: int, received: Payload) -> tuple[list[StageInput], Any]:
        tensors = []
        inputs = []
        for array, is_wanted in zip(received.arrays, received.requires_grad):
            tensor = record(array)
            tensor.node = stage_input = StageInput(is_wanted, array)
            tensors.append(tensor)
            inputs.append(stage_input)
        return inputs, self._forward(received.rebuilt(tensors))

    def _held(
        self, inputs: list[StageInput], result: Any, seed: Array | None
    ) -> Held | None:
        if not self.has_backward or not is_grad_enabled():
            return None
        return Held(
            inputs, [(tensor.node, tensor.shape) for tensor in tensors_in(result)], seed
        )

    def _roots(self, k: int, held: Held, gradient: Payload | None) -> dict[Node, Array]:
        """Return the start of the walk: nodes, and their gradients."""
        arrays = [held.seed] if gradient is None else gradient.arrays
        roots = {}
        fits = len(arrays) == len(held.results)
        for array, (node, shape) in zip(arrays, held.results):
            if array is not None:
                fits = fits and array.shape == shape
                if node is not None:
                    roots[node] = array
        if not fits:
            expected = [shape for _, shape in held.results]
            given = [getattr(array, "shape", None) for array in arrays]
            message = (
                f"Stage {self.index} passed on tensors of shapes {expected}; gradients "
                f"of {given} came back."
            )
            raise MessageError("shape", message)
        return roots

    @staticmethod
    def _gradients(held: Held) -> Payload:
        """Return the gradients in their order; the stage before knows the structure of
        their pytree, if any.
        """
        arrays = [stage_input.grad for stage_input in held.inputs]
        return Payload(arrays, [True] * len(arrays), None if len(arrays) == 1 else ())

    def begin(self, accumulate: bool = False) -> None:
        """Remove the gradients of earlier steps, unless gradients are accumulated."""
        for leaf in self.leaves:
            # Gradients add up in place, and the array may be the user's: assigned to
            # several parameters, or kept.
            leaf.grad = (
                backend.copy(leaf.grad)
                if accumulate and leaf.grad is not None
                else None
            )


def claimed(
    part: Sequential,
    index: int,
    names: Mapping[int, str],
    seed: int,
    copies: dict[int, Any],
    xp: ModuleType = np,
) -> tuple[Sequential, dict[str, Parameter]]:
    """Return a copy of the layers of a stage, and its parameters by name.

    Parameters without values are filled from the seed and their names.

    Parameters
    ----------
    part : Sequential
        Layers of a model, which is not changed.
    index : int
        The stage, for messages.
    names : mapping of int to str
        Names in the whole model, by the identities of parameters.
    seed : int
    copies : dict
        Everything that was copied for this rank, by the identity of the original: a
        parameter that several of its stages share remains one parameter.
    xp : module
        The array module that holds the parameters.

    Raises
    ------
    ModelError
        Code ``not-copyable``.
    """
    try:
        module = copy.deepcopy(part, copies)
    except TensorError as error:  # a result that a layer keeps
        message = f"A layer of stage {index} cannot be copied: {error}"
        raise ModelError("not-copyable", message) from None
    except TypeError as error:  # an open file, a lock
        message = f"A layer of stage {index} cannot be copied: {error}. Open files and "
        raise ModelError(
            "not-copyable", f"{message}the like when they are used."
        ) from None
    module._note_filled()
    parameters: dict[str, Parameter] = {
        names[id(p.owner)]: copies[id(p)] for p in part.parameters()
    }
    for name, parameter in parameters.items():
        parameter.move(xp)
        if not parameter.is_filled:
            parameter.fill(seed, name)
    return module, parameters
