"""The places of a layer's parameters: an attribute of a module, or an entry of a list or
dict in one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minipipe.core.comm.process_group import ProcessGroup
from minipipe.core.nn.module import Module
from minipipe.core.nn.parameter import Parameter
from minipipe.nn.shards import FlatShard, ShardedParameter
from minipipe.parallel.reduction import equal_parts

Place = tuple[Any, Any]
"""A module, list or dict, and the key or index of a parameter in it."""
_DIVISIBLE = (Parameter, ShardedParameter)


class Places:
    """The places of each parameter of a layer, in an object: a module would search a
    list for layers.
    """

    def __init__(self, layer: Module) -> None:
        self.all = places_in(layer)


def places_in(layer: Module) -> list[list[Place]]:
    """Return the places of each parameter that can be divided.

    These parameters are in no other layer, and their class is Parameter or
    ShardedParameter.
    """
    places = dict[int, list[Place]]()  # by identity of a parameter
    for module in {id(part): part for part in layer.modules()}.values():
        for place in _within(module, vars(module)):
            places.setdefault(id(parameter_at([place])), []).append(place)
    return list(places.values())


def _within(owner: Any, items: Any) -> Iterator[Place]:
    if isinstance(items, list):
        items = dict(enumerate(items))
    for key, value in items.items():
        if isinstance(value, Parameter):
            # A shard would not have the attributes and methods of a custom class.
            if value.num_uses == 1 and type(value.owner) in _DIVISIBLE:
                yield owner, key
        elif isinstance(value, list | dict):
            yield from _within(value, value)


def parameter_at(places: list[Place]) -> Any:
    """Return the parameter in its places."""
    owner, key = places[0]
    return _items_of(owner)[key]


def put_parameter(places: list[Place], parameter: Parameter) -> None:
    """Put a parameter into each of the places."""
    for owner, key in places:
        _items_of(owner)[key] = parameter


def _items_of(owner: Any) -> Any:
    if isinstance(owner, Module):
        return vars(owner)
    return owner


def put_shards(places: list[list[Place]], group: ProcessGroup) -> None:
    """Replace parameters of one dtype with this rank's shards of them."""
    parameters = [parameter_at(of_one) for of_one in places]
    sizes = tuple(parameter.size for parameter in parameters)
    by_rank = list(map(dict, equal_parts(sizes, group.size)))
    for i, parameter in enumerate(parameters):
        pieces = tuple(slices.get(i, slice(0, 0)) for slices in by_rank)
        inner: Any = None
        if isinstance(parameter, ShardedParameter):
            inner = parameter.shard
        shard = FlatShard(group, parameter.shape, pieces, inner)
        put_parameter(places[i], ShardedParameter.of(parameter, shard))
