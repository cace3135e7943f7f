"""The sequence of layers that a pipeline cuts into stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from minipipe import functional
from minipipe.autograd.random_key import Place, current_place
from minipipe.errors import ArgumentError, MinipipeError
from minipipe.nn.module import Module
from minipipe.nn.parameter import Parameter
from minipipe.pytree import rebuilt, tensors_in
from minipipe.tensor import Tensor, as_tensor

__all__ = ["Sequential", "boundary", "shared_parameters"]

_BUNDLES = (Tensor, tuple, list, dict)


class Sequential(Module):
    """Layers, each applied to the result of the one before: what a pipeline cuts into stages.

    What passes from one layer to the next is a tensor, or a tuple, list or dict of tensors. It is made contiguous,
    activation and gradient, whether or not a pipeline cuts there, so that no cut changes a bit (see
    :func:`minipipe.functional.contiguous`). For the same reason a parameter that several layers of the outermost
    sequence share (a tied embedding) adds up its gradients layer by layer, and then those sums in the order of layers.
    Share it before the first call, or before ``zero_grad``.

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
                    "Write Sequential(*layers) to give a list.",
                )
        self.layers = list(layers)
        self.first_layer = 0  # the number of the first one, where these are part of a longer sequence
        self.shared: Mapping[int, list[Parameter]] | None = None  # by layer; looked up when it is called

    def _parts(self) -> Iterator[tuple[str, Any]]:
        for i, layer in enumerate(self.layers):
            yield str(i), layer

    def forward(self, x: Any) -> Any:
        """Apply every layer in turn."""
        place = current_place()
        if place.layer is not None:  # a sequence inside a layer of another one, which no cut divides
            return self._apply(x, None)
        if self.shared is None:
            self.shared = shared_parameters(self.layers)
        try:
            return self._apply(x, place)
        finally:
            place.leave()
            for parameters in self.shared.values():
                for parameter in parameters:
                    parameter.use_leaf_of(None)

    def _apply(self, x: Any, place: Place | None) -> Any:
        if not isinstance(x, _BUNDLES):
            x = as_tensor(x)
        i, last = 0, len(self.layers) - 1
        try:
            for i, layer in enumerate(self.layers):
                if place is not None:
                    place.enter(self.first_layer + i)
                    if self.shared:
                        self._use_leaves_of(i)
                x = layer(x)
                if not isinstance(x, Tensor):
                    x = boundary(x)
                elif i < last:
                    x = functional.contiguous(x)
        except MinipipeError as error:
            error.add_note(f"in layer {self.first_layer + i}, {self.layers[i].brief()}")
            raise
        return x

    def _use_leaves_of(self, i: int) -> None:
        for parameter in (self.shared or {}).get(i, ()):
            parameter.use_leaf_of(self.first_layer + i)

    def zero_grad(self) -> None:
        """Forget every gradient, and look up again what layers share."""
        self.shared = None
        super().zero_grad()

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Module]:
        return iter(self.layers)

    def __getitem__(self, index: int | slice) -> Module:
        if not isinstance(index, slice):
            return self.layers[index]
        part = Sequential(*self.layers[index])
        start, _, step = index.indices(len(self))
        part.first_layer = self.first_layer + start if step == 1 else 0
        return part


def boundary(x: Any) -> Any:
    """Return what passes from one layer to the next, made contiguous.

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


def shared_parameters(layers: Sequence[Module]) -> dict[int, list[Parameter]]:
    """Return, by layer, the parameters that another layer has, too.

    Examples
    --------
    >>> from minipipe import nn
    >>> embedding = nn.Embedding(5, 3)
    >>> shared = shared_parameters([embedding, nn.Linear(3, 3), nn.Unembedding(embedding)])
    >>> {layer: [parameter.shape for parameter in parameters] for layer, parameters in shared.items()}
    {0: [(5, 3)], 2: [(5, 3)]}
    """
    users: dict[int, list[int]] = {}
    by_layer = [list(layer.parameters()) for layer in layers]
    for i, parameters in enumerate(by_layer):
        for parameter in parameters:
            users.setdefault(id(parameter), []).append(i)
    shared = {i: [p for p in parameters if len(users[id(p)]) > 1] for i, parameters in enumerate(by_layer)}
    return {i: parameters for i, parameters in shared.items() if parameters}
