"""The sequence of layers that a pipeline cuts into stages."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Iterator
from typing import Any, TypeGuard, cast, overload

from minipipe import functional
from minipipe.autograd.modes import Place, current_place
from minipipe.errors import ArgumentError
from minipipe.nn.module import Module
from minipipe.nn.parameter import Parameter
from minipipe.nn.recompute import Recompute
from minipipe.pytree import as_tensors, rebuilt, tensors_in
from minipipe.tensor import Tensor, as_tensor

_BUNDLES = (Tensor, tuple, list, dict)


class Sequential(Module):
    """Layers, each applied to the result of the one before. A pipeline cuts them into stages.

    What passes from one layer to the next is a tensor, or a tuple, list or dict of tensors. It is made contiguous,
    activation and gradient, whether or not a pipeline cuts there, so that no cut changes a bit (see
    :func:`minipipe.functional.contiguous`). For the same reason a parameter that stands in several layers (a tied
    embedding, a layer used twice) is an alias in the later ones: each adds up its own gradients, and the owner adds the
    sums in the order in which they were declared.

    A sequence directly inside another one is no layer: its layers are, and a pipeline may cut between them. Parameters
    keep their nested names.

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
    >>> nn.Sequential(nn.Flatten(), nn.Linear(64, 10))(Tensor(np.ones((5, 8, 8), np.float32))).shape
    (5, 10)
    """

    def __init__(self, *layers: Module) -> None:
        for i, layer in enumerate(layers):
            if not isinstance(layer, Module):
                raise ArgumentError(
                    "type",
                    f"Sequential takes modules, one argument each; number {i} is {type(layer).__name__}. "
                    "Write Sequential(*layers) to give a list, nn.Function(f) to give a function.",
                )
        self.layers = _tied(layers)
        # Where these are part of a longer sequence: the number of the first one, for people, and its place, for random
        # numbers. They differ behind a recomputed sequence, which is one layer and has as many places as layers.
        self.first_layer = self.first_place = 0

    def _parts(self) -> Iterator[tuple[str, Any]]:
        for i, layer in enumerate(self.layers):
            yield str(i), layer

    def forward(self, x: Any) -> Any:
        """Apply every layer in turn."""
        place = current_place()
        if place.layer is not None:  # a sequence inside a layer of another one, which no cut divides
            return self._apply(x, None, 0, 0)
        try:
            x = x if isinstance(x, Tensor) else as_tensors(x)
            return self._apply(x, place, self.first_place, self.first_layer)
        finally:
            place.leave()

    def _apply(self, x: Any, place: Place | None, first_place: int, number: int) -> Any:
        if not isinstance(x, _BUNDLES):
            x = as_tensor(x)
        last, layer = len(self.layers) - 1, cast(Module, self)
        try:
            for i, layer in enumerate(self.layers):
                if place is not None:
                    place.enter(first_place)
                if place is not None and type(layer) in (Sequential, Recompute):
                    x = _in_its_places(cast(Any, layer), x, place, first_place, number)
                    places, layers = _num_places(layer), _num_layers(layer)
                else:
                    x, places, layers = layer(x), 1, 1
                if not isinstance(x, Tensor):
                    x = boundary(x)
                elif i < last:
                    x = functional.contiguous(x)
                first_place, number = first_place + places, number + layers
        except BaseException as error:  # Ctrl-C and sys.exit in a layer have a place, too
            if place is None or not _is_nested(layer):  # a nested sequence has named the layer
                error.add_note(f"in layer {number}, {layer.brief()}")
            raise
        return x

    def tied(self) -> Sequential:
        """Return this sequence, or a copy in which whatever later layers came to share since it was made is tied."""
        layers = _tied(self.layers)
        if all(map(operator.is_, layers, self.layers)):
            return self
        twin = copy.copy(self)
        twin.layers = layers
        return twin

    @property
    def flat_layers(self) -> list[Module]:
        """The layers, and instead of a sequence among them its own."""
        parts = ((layer.flat_layers if _is_nested(layer) else [layer]) for layer in self.layers)
        return [layer for part in parts for layer in part]

    def cut(self, layers: range) -> Sequential:
        """Return a part of the flat layers, which draws random numbers as it does in the whole."""
        flat = self.flat_layers
        part = Sequential(*flat[layers.start : layers.stop])
        part.first_layer = self.first_layer + layers.start
        part.first_place = self.first_place + sum(map(_num_places, flat[: layers.start]))
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
        part = Sequential(*self.layers[index])
        start, _, step = index.indices(len(self))
        if step == 1:
            part.first_layer = self.first_layer + sum(map(_num_layers, self.layers[:start]))
            part.first_place = self.first_place + sum(map(_num_places, self.layers[:start]))
        part.is_training = self.is_training
        return part


def _is_nested(layer: Module) -> TypeGuard[Sequential]:
    return type(layer) is Sequential and bool(layer.layers)


def _num_layers(layer: Module) -> int:
    return sum(map(_num_layers, layer.layers)) if _is_nested(layer) else 1


def _num_places(layer: Module) -> int:
    """Return how many places a layer has for random numbers: a sequence, recomputed or not, those of its layers."""
    inner = layer.module if type(layer) is Recompute else layer
    return sum(map(_num_places, inner.layers)) if _is_nested(inner) else 1


def _in_its_places(layer: Sequential | Recompute, x: Any, place: Place, first_place: int, number: int) -> Any:
    """Apply a nested sequence, recomputed or not: its layers have places of their own. Others are layers like all."""
    inner = layer.module if isinstance(layer, Recompute) else layer
    if not _is_nested(inner):
        return layer(x)
    if isinstance(layer, Recompute):
        return layer.compute(lambda given: inner._apply(given, current_place(), first_place, 0), x)
    return inner._apply(x, place, first_place, number)


def boundary(x: Any) -> Any:
    """Return a value between two layers, made contiguous.

    In a bundle each tensor gets a node of its own, so that its gradient is summed up by itself before it goes on, as it
    would be if it came in a message.

    Examples
    --------
    >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> boundary((x, x.T))[1].data.flags.c_contiguous
    True
    """
    if isinstance(x, Tensor):
        return functional.contiguous(x)
    return rebuilt(x, [functional.contiguous(functional.identity(tensor)) for tensor in tensors_in(x)])


def _tied(layers: Iterable[Module]) -> list[Module]:
    """Return layers in which the parameters that an earlier one has, too, are aliases."""
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
    >>> [parameter.use for parameter in parameters_of(nn.Sequential(embedding, nn.Unembedding(embedding)))]
    [0, 1]
    """
    for module in layer.modules():
        yield from (part for _, part in module._parts() if isinstance(part, Parameter))


def _twin(part: Any, seen: set[int]) -> Any:
    """Return a copy of a part that has aliases of the parameters among ``seen``; a part without these, as it is."""
    if isinstance(part, Parameter):
        return part.alias() if id(part) in seen else part
    if isinstance(part, list | tuple):
        items = [_twin(item, seen) for item in part]
        if all(map(operator.is_, items, part)):
            return part
        return type(part)(*items) if hasattr(part, "_fields") else type(part)(items)
    if isinstance(part, dict):
        changed = {key: twin for key, value in part.items() if (twin := _twin(value, seen)) is not value}
        twin = copy.copy(part) if changed else part
        twin.update(changed)
        return twin
    if not isinstance(part, Module):
        return part
    changed = {name: twin for name, value in vars(part).items() if (twin := _twin(value, seen)) is not value}
    if not changed:
        return part
    twin = copy.copy(part)
    vars(twin).update(changed)
    return twin
