"""Layers whose parameters are divided among replicas, and whole only while they compute: FSDP, ZeRO-3.

Each rank keeps a share of the elements of a layer, and their gradients and optimiser state::

    rank 0   share 0 --.   .-- whole -- F …   share 0 --.   .-- whole -- B --.   .-- sum of share 0 of the gradients
                        \\ /                              \\ /                 \\ /
    rank 1   share 1 ----'---- whole -- F …   share 1 ----'---- whole -- B ---'----- sum of share 1

The whole values stand in a workspace, where those of the next layer take their place. What a graph has captured are
views of it; before the gradient of a result enters the layer, the same values are gathered there once more. So a rank
sends (n - 1) / n of the parameters three times for each microbatch, where the sum of gradients of replicas takes
2 (n - 1) / n of them once for each step.

References
----------
Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models", section 5.3; Zhao et
al. 2023, "PyTorch FSDP: experiences on scaling fully sharded data parallel".
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from minipipe.autograd import Node, backend
from minipipe.autograd.backend import Array, array_module, prod
from minipipe.autograd.graph import BackwardWalk, Edge, Vjp
from minipipe.autograd.memory import buffer_of
from minipipe.autograd.modes import mode, next_order
from minipipe.comm.message import finish
from minipipe.comm.process_group import OwnTag, ProcessGroup
from minipipe.errors import ArgumentError, of_kind
from minipipe.nn.module import Module
from minipipe.nn.parameter import Parameter
from minipipe.nn.recompute import Recompute
from minipipe.nn.sequential import Sequential
from minipipe.nn.shards import FlatShard, ShardedParameter, pieces_of, sum_in_pairs
from minipipe.pytree import rebuilt, tensors_in
from minipipe.tensor import Tensor, record

_ALIGNED = 16  # elements at which a parameter may begin: a product may round by the place of its factors


# -- layers -----------------------------------------------------------------------------------------------------------


class Workspace:
    """The memory in which the parameters of one layer at a time are whole.

    Attributes
    ----------
    group : ProcessGroup
        Whose ranks keep a share of each layer.
    sizes : dict
        By dtype, the elements of the largest layer.
    arrays : dict
        By dtype, the memory, once it was needed.
    holder : object
        The computation whose parameters are there.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.sizes: dict[Any, int] = {}
        self.arrays: dict[Any, Array] = {}
        self.holder: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Workspace:
        return self  # copies of a model, and their stages, compute one after the other


class FullySharded(Module):
    """A layer of whose parameters each rank of a group keeps a share; :func:`fully_shard` makes them.

    A call, and the backward of a call, are collective over the group: its ranks make them in one order.

    Parameters
    ----------
    layer : Module
        Changed: its attributes are the shares from now on, under their names.
    workspace : Workspace
        That of all layers of the model.

    Examples
    --------
    >>> from minipipe import nn, spawn
    >>> spawn(lambda group: nn.fully_shard(nn.Linear(8, 2), group), num_ranks=2)
    [FullySharded(Linear(8, 2)), FullySharded(Linear(8, 2))]
    """

    is_replayable = False

    def __init__(self, layer: Module, workspace: Workspace) -> None:
        of_kind("FullySharded", workspace, Workspace, "a workspace", "nn.fully_shard makes both.")
        self._shown, self.layer, self.workspace = repr(layer), layer, workspace
        self.places = list(_places_in(layer))
        self.kept: dict[Any, Array] | None = None  # the whole parameters, inside of `gathered`
        group = workspace.group
        self.offsets: list[tuple[Any, int, tuple[int, ...]]] = []  # by parameter: dtype, first element, shape
        ends = dict[Any, int]()  # by dtype
        for parameter in (parameters := self.shares):
            first = -(-ends.get(parameter.dtype, 0) // _ALIGNED) * _ALIGNED
            self.offsets.append((parameter.dtype, first, parameter.shape))
            ends[parameter.dtype] = first + parameter.size
        self.sizes = ends
        for dtype, end in ends.items():
            workspace.sizes[dtype] = max(end, workspace.sizes.get(dtype, 0))
            alike = [(place, one) for place, one in zip(self.places, parameters) if one.dtype == dtype]
            by_rank = [dict(pieces_of([one.size for _, one in alike], group.size, j)) for j in range(group.size)]
            for i, (place, one) in enumerate(alike):
                pieces = tuple(found.get(i, slice(0, 0)) for found in by_rank)
                inner: Any = one.shard if isinstance(one, ShardedParameter) else None
                _put(place, ShardedParameter.of(one, FlatShard(group, one.shape, pieces, inner)))

    # Parameters keep the names that they have in the layer, and so their first values.
    def _parts(self) -> Iterator[tuple[str, Any]]:
        yield from self.layer._parts()

    def modules(self) -> Iterator[Module]:
        """Yield this module and every module inside it."""
        yield self
        yield from self.layer.modules()

    def __repr__(self) -> str:
        return f"FullySharded({self._shown})"

    @property
    def shares(self) -> list[Any]:
        """The parameters of this rank."""
        return [_holder(place)[place[1]] for place in self.places]

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Compute the result of the layer, with whole parameters."""
        call, own = _Call(self), self.shares
        wholes = call.wholes(own)
        try:
            for place, whole in zip(self.places, wholes):
                _put(place, whole)
            result = self.layer(*inputs, **options)
        finally:
            for place, share in zip(self.places, own):
                _put(place, share)
        return call.passed_on(result, tensors_in([*inputs, *options.values()]))

    # -- messages -------------------------------------------------------------------------------------------

    def arrays_of(self, sizes: dict[Any, int]) -> dict[Any, Array]:
        """Return arrays of some sizes, by dtype, where the parameters of this layer are."""
        return {dtype: backend.moved(np.zeros(size, dtype), self.shares[0].xp) for dtype, size in sizes.items()}

    def gather(self, into: dict[Any, Array]) -> None:
        """Write the whole parameters into arrays, by dtype. Collective."""
        shares = self.shares
        for dtype in self.sizes:
            placed = [(share, first) for share, (kind, first, _) in zip(shares, self.offsets) if kind == dtype]
            xp = shares[0].xp
            own = backend.to_numpy(xp.concat([share.data for share, _ in placed]))
            parts = self.workspace.group.all_gather(own, what="a share of the parameters of a layer")
            for rank, part in enumerate(parts):
                part, done = backend.moved(part, xp), 0
                for share, first in placed:
                    piece = share.shard.pieces[rank]
                    end = done + piece.stop - piece.start
                    into[dtype][first + piece.start : first + piece.stop] = part[done:end]
                    done = end

    def scatter(self, gradients: dict[int, Array]) -> list[Edge]:
        """Return an edge to each share, with its sum of the gradients that all ranks have. Collective.

        Parameters
        ----------
        gradients : dict of int to array
            By the number of a parameter: of the same ones on all ranks. They are gone then.
        """
        shares, edges = self.shares, list[Edge]()
        for dtype in self.sizes:
            numbers = [i for i in sorted(gradients) if self.offsets[i][0] == dtype]
            if not numbers:
                continue
            own, first = gradients[numbers[0]].dtype, 0
            flat = [(_flat(gradients.pop(i)), shares[i].shard.pieces) for i in numbers]
            total = backend.as_array(self._sum_of_share(flat), own)
            for i in numbers:
                edges.append((shares[i].node, partial(_given, total[first : first + shares[i].size])))
                first += shares[i].size
        return edges

    def _sum_of_share(self, flat: list[tuple[Array, tuple[slice, ...]]]) -> Any:
        xp, group = array_module(flat[0][0]), self.workspace.group
        parts = [xp.concat([gradient[pieces[j]] for gradient, pieces in flat]) for j in range(group.size)]
        others = [j for j in range(group.size) if j != group.rank]
        sends = [group.isend(backend.to_numpy(parts[j]), j, OwnTag.GATHER) for j in others]
        words = "its part of the gradients of a layer"
        for j in others:
            parts[j] = backend.moved(group.irecv(j, OwnTag.GATHER, what=words).wait(), xp)
        finish(sends)
        return sum_in_pairs(parts)


class _Call:
    """One computation of a layer."""

    def __init__(self, layer: FullySharded) -> None:
        self._layer, self._order, self._is_kept = layer, next_order(), layer.kept is not None
        self._gradients: dict[int, Array] = {}

    def wholes(self, shares: Sequence[Parameter]) -> list[Tensor]:
        """Return the whole parameters, recorded as computed from the shares."""
        layer = self._layer
        if layer.kept is None:
            self._fill()
        arrays, joint = layer.workspace.arrays if layer.kept is None else layer.kept, _Shares(self, self._order)
        found = []
        for i, (share, (dtype, first, shape)) in enumerate(zip(shares, layer.offsets)):
            whole, order = record(backend.reshape(arrays[dtype][first : first + prod(shape)], shape)), next_order()
            if mode().is_enabled and share.requires_grad:
                whole.node = Node([(joint, partial(self._gradients.setdefault, i))], order, True, False, shape, dtype)
            found.append(whole)
        return found

    def passed_on(self, result: Any, given: list[Tensor]) -> Any:
        """Return the result, such that its gradient finds the whole parameters in their place again."""
        if self._is_kept:
            return result
        found = {id(tensor): tensor for tensor in given}
        for tensor in tensors_in(result):
            if id(tensor) not in found:
                found[id(tensor)] = record(self._apart(tensor.data), (tensor, self._filled))
        nodes = [tensor.node for tensor in tensors_in(result) if tensor.node is not None]
        if any(node.is_activation for node in nodes):
            self._look_after(nodes)
        return rebuilt(result, [found[id(tensor)] for tensor in tensors_in(result)])

    def scattered(self) -> list[Edge]:
        """Return the edges to the shares. Collective, unless the parameters are kept: then there are no gradients."""
        return [] if self._is_kept else self._layer.scatter(self._gradients)

    def _fill(self) -> None:
        layer, space = self._layer, self._layer.workspace
        space.holder = self
        space.arrays = space.arrays or layer.arrays_of(space.sizes)
        layer.gather(space.arrays)

    def _filled(self, gradient: Array) -> Array:
        self._fill()
        return gradient

    def _apart(self, data: Array) -> Array:
        """Return values that do not change with the workspace: those of a returned parameter would."""
        spaces = {id(space) for space in self._layer.workspace.arrays.values()}
        return backend.copy(data) if id(buffer_of(data)) in spaces else data

    def _look_after(self, nodes: list[Node]) -> None:
        """Let gradients of values that follow from parameters alone find the parameters in their place, also in W.

        There other layers have come between. All else that needs parameters is computed in I, before any other layer.
        """
        seen, inside = set(nodes), list(nodes)
        for node in inside:
            parents = [parent for parent, _ in node.edges or () if parent.order > self._order and parent not in seen]
            seen.update(parents)
            inside += dict.fromkeys(parents)
        for node in inside:
            edges = node.edges or []
            if not node.is_activation and not any(isinstance(parent, _Shares) for parent, _ in edges):
                node.edges = [(parent, partial(self._with_values, vjp)) for parent, vjp in edges]

    def _with_values(self, vjp: Vjp, gradient: Array) -> Array:
        if self._layer.workspace.holder is not self:
            self._fill()
        return vjp(gradient)


class _Shares(Node):
    """The shares of a layer in the graph of one call. The gradients of all its parameters come before they go on."""

    __slots__ = ("call",)

    def __init__(self, call: _Call, order: int) -> None:
        super().__init__([], order)
        self.call = call

    def add(self, contribution: Array, walk: BackwardWalk) -> None:
        """Enter the queue, once; the contributions are in the call."""
        if self.pending is None:
            super().add(contribution, walk)

    def release(self, gradient: Array) -> list[Edge]:
        """Return an edge to each share, with the sum of its gradients over the ranks. Collective."""
        super().release(gradient)
        return self.call.scattered()


def _flat(gradient: Array) -> Array:
    """Return the elements in a row; those of half precision as float32, in which they are added up."""
    wide = array_module(gradient).float32 if backend.is_half(gradient.dtype) else gradient.dtype
    return backend.reshape(backend.as_array(gradient, wide), (-1,))


def _given(gradient: Array, _: Array) -> Array:
    return gradient


# -- places of parameters: an attribute of a module, or an entry of a list or dict in one ---------------------------


def _places_in(layer: Module) -> Iterator[tuple[Any, Any]]:
    """Yield where the parameters of a layer are that no other layer shares."""
    for module in {id(part): part for part in layer.modules()}.values():
        yield from _within(module, vars(module))


def _within(owner: Any, items: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in items.items() if isinstance(items, dict) else enumerate(items):
        if isinstance(value, Parameter):
            if value.num_uses == 1:
                yield owner, key
        elif isinstance(value, list | dict):
            yield from _within(value, value)


def _holder(place: tuple[Any, Any]) -> Any:
    return vars(place[0]) if isinstance(place[0], Module) else place[0]


def _put(place: tuple[Any, Any], value: Tensor) -> None:
    _holder(place)[place[1]] = value


# -- models -----------------------------------------------------------------------------------------------------------


def fully_shard(module: Module, group: ProcessGroup) -> Module:
    """Return a copy of a model of which each rank of a group keeps a share; the names of parameters stay.

    Each layer with parameters, of the sequences that the model is made of, is one :class:`FullySharded`. A parameter
    that several layers share stays whole; its gradient is that of the rank alone, which a pipeline on a grid adds up.
    Collective for a model that has values, and is divided already.

    Parameters
    ----------
    module : Module
        The same on all ranks.
    group : ProcessGroup
        Of ranks that compute with different samples, such as the ``data`` of a :class:`minipipe.Grid`.

    Raises
    ------
    ArgumentError
        Code ``value``, for :class:`Recompute` inside of a layer; around one it is fine.

    Examples
    --------
    >>> from minipipe import nn, spawn
    >>> model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    >>> model.num_parameters, spawn(lambda group: nn.fully_shard(model, group).num_parameters, num_ranks=2)
    (90, [45, 45])
    """
    of_kind("fully_shard", group, ProcessGroup, "a group of ranks, such as grid.data")
    twin = copy.deepcopy(module)
    return twin if group.size == 1 else _sharded(twin, Workspace(group))


def _sharded(module: Module, workspace: Workspace) -> Module:
    if isinstance(module, Sequential):
        module.layers = [_sharded(layer, workspace) for layer in module.layers]
        return module
    if isinstance(module, Recompute):
        module.module = _sharded(module.module, workspace)
        return module
    if any(isinstance(part, Recompute) for part in module.modules()):
        message = f"{module.brief()} has nn.Recompute inside, which would compute with shares of its parameters"
        raise ArgumentError("value", f"{message}; put nn.Recompute around the layer.")
    return FullySharded(module, workspace) if any(True for _ in _places_in(module)) else module


def whole_arrays(module: Module) -> list[Array]:
    """Return the memory in which parameters of layers of a model are whole, which is no activation."""
    layers = [part for part in module.modules() if isinstance(part, FullySharded)]
    return [array for layer in layers for array in (layer.kept or layer.workspace.arrays).values()]


@contextmanager
def gathered(*modules: Module) -> Iterator[None]:
    """Keep the parameters of models whole inside this block, where ranks compute alone. Collective at its beginning.

    There is no gradient of them then.
    """
    layers = [part for module in modules for part in module.modules() if isinstance(part, FullySharded)]
    try:
        for layer in layers:
            kept = layer.arrays_of(layer.sizes)
            layer.gather(kept)
            layer.kept = kept
        yield
    finally:
        for layer in layers:
            layer.kept = None
