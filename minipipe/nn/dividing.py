"""The division of a model among the ranks of a group: which of its layers
``parallel.py`` replaces.

A layer is divided only if all code that uses it is known: layers of exactly the classes
below, reached through containers that only call their layers. Custom code may read
weights, or values between two layers, so the layers inside it stay whole.
"""

from __future__ import annotations

import copy
from collections import Counter
from itertools import pairwise
from typing import Any

from minipipe.core.comm.process_group import ProcessGroup
from minipipe.core.nn.module import Module, computes_as, is_exactly
from minipipe.core.nn.parameter import Parameter
from minipipe.core.nn.sequential import Sequential, parameters_of, with_parts
from minipipe.core.specs import Spec
from minipipe.errors import ArgumentError
from minipipe.nn.auxiliary_loss import AuxiliaryLoss
from minipipe.nn.bundle import On
from minipipe.nn.layers import (
    GELU,
    Embedding,
    Linear,
    ReLU,
    Residual,
    Sigmoid,
    SiLU,
    Tanh,
    Unembedding,
)
from minipipe.nn.parallel import (
    ColumnParallelLinear,
    ParallelAttention,
    ParallelEmbedding,
    ParallelUnembedding,
    RowParallelLinear,
)
from minipipe.nn.recompute import Recompute
from minipipe.nn.transformer import (
    DecoderBlock,
    MultiHeadAttention,
    ResidualAttention,
    TransformerBlock,
)

ELEMENTWISE = (GELU, ReLU, Sigmoid, SiLU, Tanh)
_CONTAINERS = (
    Sequential,
    Residual,
    ResidualAttention,
    TransformerBlock,
    DecoderBlock,
    Recompute,
    On,
    AuxiliaryLoss,
)


def parallelise(module: Module, group: ProcessGroup) -> Module:
    """Return a copy of a model whose blocks are divided among the ranks of a group; the
    names of parameters stay.

    Three kinds of layers are divided: attention, by heads; in a sequence, two linear
    layers with only elementwise functions between them, by the features between them;
    and embeddings, by symbols, if their number is a multiple of the size of the group,
    also with an :class:`Unembedding` that shares the vectors. Every rank has all other
    layers whole, and also every parameter that other layers share. Layers that are
    already divided stay as they are. Layers keep their other attributes, such as their
    mode.

    Layers of a subclass, and layers with a custom ``forward`` or hook, stay whole with
    everything inside, since their code may read weights or values between two layers. A
    class whose ``forward`` uses the modules inside only by calling them declares
    ``is_divisible = True``; then its layers are divided.

    Parameters
    ----------
    module : Module
        The model, the same on all ranks.
    group : ProcessGroup
        The tensor-parallel ranks, such as the ``tensor`` of a :class:`minipipe.Grid`.

    Raises
    ------
    ArgumentError
        Code ``value``, if the size of the group does not divide heads or features, and
        for a fully sharded model.

    Examples
    --------
    >>> from minipipe import nn, spawn
    >>> block = nn.TransformerBlock(width=8, num_heads=2)
    >>> spawn(lambda group: nn.parallelise(block, group).num_parameters, num_ranks=2)
    [460, 460]
    """
    spec = Spec(Module, expected="a model, such as nn.Sequential(…)")
    spec.of_class("parallelise", module)
    Spec(ProcessGroup, expected="a group of ranks, such as grid.tensor").of_class(
        "parallelise", group
    )
    check_not_sharded(module)
    twin = copy.deepcopy(module)
    if group.size == 1:
        return twin
    return _Division(twin, group).divided()


def check_not_sharded(module: Module) -> None:
    """Refuse a fully sharded model, whose parameters have no axis to divide.

    Examples
    --------
    >>> from minipipe import nn
    >>> check_not_sharded(nn.Linear(2, 2))
    """
    if any(parameter.is_summed for parameter in module.parameters()):
        message = "Fully sharded layers cannot be divided; pass the plain model."
        raise ArgumentError(message)


def is_container(module: Module) -> bool:
    """Return whether a module does nothing with the modules inside but call them.

    Examples
    --------
    >>> from minipipe import nn
    >>> is_container(nn.Residual(nn.Tanh())), is_container(nn.Tanh())
    (True, False)
    """
    if getattr(type(module), "is_divisible", False):
        return computes_as(module, type(module))
    return any(computes_as(module, kind) for kind in _CONTAINERS)


class _Division:
    """A model in which layers are replaced. Layers share no parameter, except an
    embedding and its scores.

    Parameters
    ----------
    model : Module
        Changed.
    group : ProcessGroup
    """

    def __init__(self, model: Module, group: ProcessGroup) -> None:
        self._model = model
        self._group = group
        self._made: dict[int, Module] = {}  # by the layer that it replaces
        self._containers, self._layers = self._known(model)
        self._heads = [layer for layer in self._layers if _is_head(layer)]
        heads = Counter(id(head.weight.owner) for head in self._heads)
        every = {id(part): part for part in model.modules()}.values()
        parts = [part for each in every for _, part in each._parts()]
        own = [part.owner for part in parts if isinstance(part, Parameter)]
        uses = Counter(map(id, own))
        self._shared = {owner for owner, count in (uses - heads).items() if count > 1}
        self._holders = Counter[int]()  # by part, in how many modules it is
        for module in every:
            self._holders.update({id(part) for _, part in module._parts()})

    @staticmethod
    def _known(model: Module) -> tuple[list[Module], list[Any]]:
        """Return the containers, and the layers that containers alone hold."""
        held = dict[int, Module]()
        opaque = set[int]()
        coming = [model]
        while coming:
            module = coming.pop(0)
            if id(module) in held:
                continue
            held[id(module)] = module
            if is_container(module):
                parts = [part for _, part in module._parts()]
                coming += [part for part in parts if isinstance(part, Module)]
            else:
                opaque |= {id(part) for part in module.modules() if part is not module}
        known = [module for key, module in held.items() if key not in opaque]
        containers = list(filter(is_container, known))
        return containers, [module for module in known if not is_container(module)]

    def divided(self) -> Module:
        """Return the model, divided."""
        self._divide_embeddings()
        for layer in self._layers:
            if not self._is_plain(layer, MultiHeadAttention):
                continue
            if self._are_plain(layer.projections, layer.output):
                self._made[id(layer)] = ParallelAttention(layer, self._group)
        for container in self._containers:
            if isinstance(container, Sequential):
                self._divide_pairs(container.layers)
        for container in self._containers:
            for name, value in vars(container).items():
                vars(container)[name] = with_parts(value, self._replaced)
        return self._replaced(self._model)

    def _replaced(self, part: Any) -> Any:
        return self._made.get(id(part), part)

    def _divide_embeddings(self) -> None:
        # by the parameter that was divided
        embeddings: dict[int, ParallelEmbedding] = {}
        for layer in self._layers:
            is_plain = self._is_plain(layer, Embedding)
            if is_plain and len(layer.weight) % self._group.size == 0:
                layer.weight.owner.num_uses = 1  # the other uses follow
                divided = ParallelEmbedding(layer, self._group)
                self._made[id(layer)] = embeddings[id(layer.weight.owner)] = divided
        for head in self._heads:
            embedding = embeddings.get(id(head.weight.owner))
            if embedding is not None:
                self._made[id(head)] = ParallelUnembedding(embedding, head)

    def _divide_pairs(self, layers: list[Any]) -> None:
        """Divide pairs of linear layers with elementwise functions between them."""
        # The layers on which no elementwise function is applied, each with the next.
        others = [layer for layer in layers if not is_exactly(layer, *ELEMENTWISE)]
        for layer, other in pairwise(others):
            is_pair = layer is not other and self._are_plain(layer, other)
            if is_pair and not {id(layer), id(other)} & self._made.keys():
                self._made[id(layer)] = ColumnParallelLinear(layer, self._group)
                self._made[id(other)] = RowParallelLinear(other, self._group)

    def _are_plain(self, *layers: Any) -> bool:
        """Return whether layers are linear and plain, and each is in one place."""
        are_alone = all(self._holders[id(layer)] == 1 for layer in layers)
        return are_alone and all(self._is_plain(layer, Linear) for layer in layers)

    def _is_plain(self, layer: Module, kind: type[Module]) -> bool:
        """Return whether a layer is exactly of a class, with whole parameters that no
        other layer uses.
        """
        held = [vars(layer).get(name) for name in ("weight", "bias")]
        are_parameters = all(isinstance(each, Parameter | None) for each in held)
        owners = [parameter.owner for parameter in parameters_of(layer)]
        is_whole = all(type(owner) is Parameter for owner in owners)
        is_whole = is_whole and self._shared.isdisjoint(map(id, owners))
        return is_exactly(layer, kind) and is_whole and are_parameters


def _is_head(layer: Any) -> bool:
    return is_exactly(layer, Unembedding) and isinstance(layer.weight, Parameter)
