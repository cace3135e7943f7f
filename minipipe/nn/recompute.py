"""Recomputation: memory for time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from minipipe.autograd.recompute import Recomputation, RecomputedNode
from minipipe.core.autograd import backend
from minipipe.core.autograd.graph import CUSTOM, Node
from minipipe.core.autograd.modes import (
    at,
    current_place,
    mode,
    next_order,
    no_grad,
    record_again,
)
from minipipe.core.nn.module import Module, in_modes, is_exactly
from minipipe.core.pytree import rebuilt, tensors_in
from minipipe.core.specs import Spec
from minipipe.core.tensor import Tensor, as_tensor, record
from minipipe.errors import TensorError
from minipipe.nn.collected_losses import auxiliary_losses, losses_so_far

_COMPARED = 64  # elements of each result, which take some microseconds


class Recompute(Module):
    """Computes a module without keeping its activations, and again when backward needs
    them.

    Between forward and backward it holds only the input ("activation checkpointing"),
    at the cost of another forward. The bits are the same, also with Dropout: its mask
    depends on the layer and the microbatch, not on the time. Parameters keep their
    names in the module. The recomputed activations take memory while backward runs; if
    the backward is split, until W.

    Parameters
    ----------
    module : Module
        Takes one tensor, or a tuple, list or dict of them, and returns such.

    Raises
    ------
    ArgumentError
        Code ``type``, when it is not a module.
    TensorError
        Code ``not-repeatable``, in backward: the second forward gives other values than
        the first, for example because a module has a counter or draws its own random
        numbers, so the gradient would belong to another function. The check compares
        shape, dtype and, on the CPU, some elements of each result; all elements under
        :func:`minipipe.watch_everything`.

    References
    ----------
    Chen et al. 2016, "Training deep nets with sublinear memory cost", section 3.

    Examples
    --------
    >>> from minipipe import nn
    >>> nn.Recompute(nn.Linear(2, 3))
    Recompute(Linear(2, 3))
    >>> import numpy as np
    >>> from minipipe import Tensor
    >>> nn.Recompute(nn.Linear(2, 3))(Tensor(np.ones((4, 2), np.float32))).shape
    (4, 3)
    """

    # parameters keep the names that they have in the module, and so their first values
    _inlined = "module"

    def __init__(self, module: Module) -> None:
        spec = Spec(Module, expected="a module, such as nn.Linear(4, 4)")
        spec.of_class("Recompute", module)
        self.module = module

    @property
    def _unfolded(self) -> Module | None:
        """The module, unless a subclass computes it in another way."""
        return self.module if is_exactly(self, Recompute) else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.module!r})"

    def forward(self, x: Any) -> Any:
        """Compute the module's result."""
        return self.compute(self.module, x)

    def compute(self, function: Callable[[Any], Any], x: Any) -> Any:
        """Compute the module's result by a function, now and when backward needs it."""
        x = x if isinstance(x, (tuple, list, dict)) else as_tensor(x)
        given = tensors_in(x)
        # new tensors: the caller may replace the values of its own
        inputs = [record(tensor.data) for tensor in given]
        for own, tensor in zip(inputs, given):
            own.node = tensor.node
        again = self._again(function, rebuilt(x, [None] * len(given)), next_order())
        here = mode()
        with no_grad(), auxiliary_losses() as losses:
            computed = function(x)
        made = [*tensors_in(computed), *losses]
        look = _look(made, here.watch is not None) if here.is_enabled else []
        recomputation = Recomputation(inputs, partial(again, look))
        parents = recomputation.parents
        parameters = list(self.module.parameters())
        is_trained = any(parameter.requires_grad for parameter in parameters)
        needs_gradient = is_trained or any(parent.needs_gradient for parent in parents)
        # A returned input, a returned parameter and a repeated result get no separate
        # node: it would sum some gradients separately, in another order.
        results: dict[int, Tensor] = {id(tensor): tensor for tensor in given}
        for number, tensor in enumerate(made):
            if id(tensor) in results or tensor.node is not None:
                results.setdefault(id(tensor), tensor)
                continue
            result = record(tensor.data)
            order = next_order()
            if here.is_enabled and (parents or is_trained):
                wants = needs_gradient and backend.is_floating(tensor.dtype)
                result.node = RecomputedNode(
                    recomputation, number, order, wants, tensor.data
                )
                # nothing will be computed again, so nothing is kept for it
                if not wants:
                    is_activation = result.node.is_activation
                    result.node = Node(CUSTOM[0], (), (), order, wants, is_activation)
                if here.watch is not None:
                    watched = [one.data for one in (tensor, *parameters, *inputs)]
                    result.node.saved = here.watch((), watched)
            results[id(tensor)] = result
        losses_so_far().extend(results[id(loss)] for loss in losses)
        found = [results[id(tensor)] for tensor in tensors_in(computed)]
        return rebuilt(computed, found)

    def _again(
        self, function: Callable[[Any], Any], form: Any, first: int
    ) -> Callable[..., list[Node | None]]:
        """Return a function that computes the module here and now, whenever it is
        called with the inputs.
        """
        here = at(current_place().copy())
        modes = [(part, part.is_training) for part in self.module.modules()]
        is_watched = mode().watch is not None

        def again(look: list[Any], inputs: list[Tensor]) -> list[Node | None]:
            collected = auxiliary_losses()
            with in_modes(modes), record_again(first), here, collected as losses:
                results = [*tensors_in(function(rebuilt(form, inputs))), *losses]
            if _look(results, is_watched) != look:
                raise TensorError(
                    "not-repeatable",
                    f"Recompute({self.module.brief()}): computed again in backward it "
                    "gives other values, so the gradient would be another function's. "
                    "Let it depend on its input and parameters alone: no counter, and "
                    "random numbers as functional.dropout draws them.",
                )
            return [tensor.node for tensor in results]

        return again


def _look(results: list[Tensor], is_whole: bool) -> list[tuple[Any, ...]]:
    """Return the compared part of results: a sample that meets every column, since its
    step is odd; or all.
    """
    looks = []
    for data in (backend.plain(result.data) for result in results):
        step = 1 if is_whole else max(1, backend.prod(data.shape) // _COMPARED) | 1
        is_numpy = isinstance(data, np.ndarray)
        bits = data.flat[::step].tobytes() if is_numpy else b""
        looks.append((data.shape, data.dtype, bits))
    return looks
