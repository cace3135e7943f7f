"""The sequence of layers that a pipeline partitions into stages."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeGuard, overload

from minipipe.core.autograd.modes import current_place
from minipipe.core.joints import contiguous, identity
from minipipe.core.nn.module import Module, is_exactly
from minipipe.core.nn.parameter import Parameter
from minipipe.core.pytree import as_tensors, rebuilt, tensors_in
from minipipe.core.specs import Spec
from minipipe.core.tensor import Tensor, as_tensor

_BUNDLES = (Tensor, tuple, list, dict)


class Sequential(Module):
    """Layers, each applied to the result of the one before. A pipeline partitions them
    into stages.

    The value between two layers is a tensor, or a tuple, list or dict of tensors. Both
    the activation and its gradient are made contiguous, with or without a stage
    boundary, so that no partition changes a bit (see
    :func:`minipipe.functional.contiguous`). For the same reason a parameter that occurs
    in several layers (a tied embedding, a layer used twice) is an alias in the later
    ones: each accumulates its own gradients, and the owner adds the sums in the order
    in which they were declared.

    If a sequence is directly inside another one, its layers are layers of the outer
    one, and a stage boundary may lie between them. Parameters keep their nested names.

    Parameters
    ----------
    *layers : Module

    Examples
    --------
    >>> from minipipe import nn
    >>> nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    Sequential(
      0: Flatten()
      1: Linear(64, 10)
    )
    >>> import numpy as np
    >>> nn.Sequential(nn.Flatten(), nn.Linear(64, 10))(
    ...     Tensor(np.ones((5, 8, 8), np.float32))
    ... ).shape
    (5, 10)
    """

    _inlined = "layers"
    layer_hook: Callable[[int, Any], Any] | None = None
    """Where it is set: ``(number, result) -> result``, called with the result of each
    flat layer.
    """

    def __init__(self, *layers: Module) -> None:
        for i, layer in enumerate(layers):
            advice = (
                "Write Sequential(*layers) to give a list, nn.Function(f) to give a "
                "function."
            )
            spec = Spec(Module, expected="a module", advice=advice)
            spec.of_class(f"Sequential, as argument {i},", layer)
        self.layers = _tied(layers)
        # Of a part of a longer sequence: the number of its first layer there, for
        # messages, and that layer's place, for random numbers. They differ after a
        # recomputed sequence: one layer, and a place for each of the layers in it.
        self.first_layer = self.first_place = 0

    def forward(self, x: Any) -> Any:
        """Apply every layer in turn."""
        place = current_place()
        # inside a layer of another sequence: no stage boundary divides this one
        if place.layer is not None:
            return self._apply(x, self.layers, operator.call)
        place.enter(self.first_place - 1)  # the next place is the first layer's
        try:
            x = x if isinstance(x, Tensor) else as_tensors(x)
            return self._apply(x, self.flat_layers, _at_next_place, self.first_layer)
        finally:
            place.leave()

    def _apply(
        self,
        x: Any,
        layers: list[Module],
        compute: Callable[[Module, Any], Any],
        first: int = 0,
    ) -> Any:
        if not isinstance(x, _BUNDLES):
            x = as_tensor(x)
        hook = self.layer_hook
        last = first + len(layers) - 1
        for number, layer in enumerate(layers, first):
            try:
                x = compute(layer, x)
                if hook is not None:
                    x = hook(number, x)
                if not isinstance(x, Tensor):
                    x = boundary(x)
                elif number < last:
                    x = contiguous(x)
            # Ctrl-C and sys.exit in a layer get the note too
            except BaseException as error:
                error.add_note(f"in layer {number}, {layer.brief()}")
                raise
        return x

    def tied(self) -> Sequential:
        """Return this sequence, or a copy with aliases for parameters that layers came
        to share since it was made.
        """
        layers = _tied(self.layers)
        if all(map(operator.is_, layers, self.layers)):
            return self
        twin = copy.copy(self)
        twin.layers = layers
        return twin

    @property
    def flat_layers(self) -> list[Module]:
        """The layers; a sequence among them is replaced by its layers."""
        return _flat(self.layers)

    def cut(self, layers: range) -> Sequential:
        """Return a part of the flat layers, which draws random numbers as it does in
        the whole.
        """
        flat = self.flat_layers
        return self._part(flat[layers.start : layers.stop], before=flat[: layers.start])

    def _part(self, layers: list[Module], before: list[Module]) -> Sequential:
        """Return some of the layers as a sequence; ``before`` are the flat layers
        before them.
        """
        part = Sequential(*layers)
        part.first_layer = self.first_layer + len(before)
        part.first_place = self.first_place + sum(map(_num_places, before))
        part.is_training = self.is_training
        return part

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Module]:
        return iter(self.layers)

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> Sequential: ...
    def __getitem__(self, index: int | slice) -> Module:
        if not isinstance(index, slice):
            return self.layers[index]
        start, _, step = index.indices(len(self))
        part = self._part(self.layers[index], before=_flat(self.layers[:start]))
        if step != 1:  # in another order no layer is the first of the whole
            part.first_layer = part.first_place = 0
        return part


def _is_sequence(layer: Any) -> TypeGuard[Sequential]:
    # a subclass, and an empty one, is a layer
    return is_exactly(layer, Sequential) and bool(layer.layers)


def _flat(layers: Iterable[Module]) -> list[Module]:
    found: list[Module] = []
    for layer in layers:  # in every call of a sequence, so no generator
        if isinstance(layer, Sequential) and _is_sequence(layer):
            found += _flat(layer.layers)
        else:
            found.append(layer)
    return found


def _num_places(layer: Module) -> int:
    """Return how many places for random numbers a flat layer has: a recomputed sequence
    has one for each layer.
    """
    inner = layer._unfolded
    if isinstance(inner, Sequential) and _is_sequence(inner):
        return sum(map(_num_places, inner.flat_layers))
    return 1


def _at_next_place(layer: Module, x: Any) -> Any:
    """Apply a flat layer; the layers of a recomputed sequence draw from separate
    places.
    """
    inner = layer._unfolded
    if isinstance(inner, Sequential) and _is_sequence(inner):
        unfolding: Any = layer
        return unfolding.compute(
            lambda given: inner._apply(given, inner.flat_layers, _at_next_place), x
        )
    place = current_place()
    place.enter((place.layer or 0) + 1)
    return layer(x)


def boundary(x: Any) -> Any:
    """Return a value between two layers, made contiguous.

    In a pytree each tensor gets a separate node, so that its gradient is summed
    separately before it is passed on, as it would be if it came in a message.

    Examples
    --------
    >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> boundary((x, x.T))[1].data.flags.c_contiguous
    True
    """
    if isinstance(x, Tensor):
        return contiguous(x)
    separate = map(identity, tensors_in(x))
    return rebuilt(x, list(map(contiguous, separate)))


def _tied(layers: Iterable[Module]) -> list[Module]:
    """Return layers in which every parameter that an earlier layer holds is an
    alias.
    """
    seen: set[int] = set()
    result = []
    for layer in layers:
        layer = _twin(layer, seen)
        result.append(layer)
        seen |= set(map(id, parameters_of(layer)))
    return result


def parameters_of(layer: Module) -> Iterator[Parameter]:
    """Yield every parameter in a layer, aliases too.

    Examples
    --------
    >>> from minipipe import nn
    >>> embedding = nn.Embedding(5, 3)
    >>> [
    ...     parameter.use
    ...     for parameter in parameters_of(
    ...         nn.Sequential(embedding, nn.Unembedding(embedding))
    ...     )
    ... ]
    [0, 1]
    """
    for module in layer.modules():
        yield from (part for _, part in module._parts() if isinstance(part, Parameter))


def _twin(part: Any, seen: set[int]) -> Any:
    """Return a copy of a part with aliases of the parameters among ``seen``; a part
    without any is returned itself.
    """
    if isinstance(part, Parameter):
        return part.alias() if id(part) in seen else part
    return _changed(part, vars(part), partial(_twin, seen=seen))


def with_parts(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return an attribute of a module with each parameter and module in it changed;
    the attribute itself if none of them is.
    """
    if isinstance(value, Parameter | Module):
        return change(value)
    if isinstance(value, dict):
        return _changed(value, value, change)
    if not isinstance(value, list | tuple):
        return value
    items = [with_parts(item, change) for item in value]
    if all(map(operator.is_, items, value)):
        return value
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def _changed(owner: Any, held: dict[str, Any], change: Callable[[Any], Any]) -> Any:
    """Return a copy of a module or a dict with its parts changed, or it itself."""
    parts = {name: with_parts(value, change) for name, value in held.items()}
    if all(map(operator.is_, parts.values(), held.values())):
        return owner
    twin = copy.copy(owner)
    (twin if isinstance(twin, dict) else vars(twin)).update(parts)
    return twin
