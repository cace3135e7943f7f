"""Layers whose parameters are divided among replicas, and whole only while they
compute: FSDP, ZeRO-3.

Each rank keeps a shard of the elements of a layer, and their gradients and optimiser
state::

    rank 0   shard 0 --.   .-- whole -- F …   shard 0 --.   .-- whole -- B --.   .-- sum of shard 0 of the gradients
                        \\ /                              \\ /                 \\ /
    rank 1   shard 1 ----'---- whole -- F …   shard 1 ----'---- whole -- B ---'----- sum of shard 1

The whole values are in a workspace; the values of the next layer replace them there.
The arrays that a graph has captured are views of it; before the gradient of a result
enters the layer, the same values are gathered there once more. So a rank sends (n - 1)
/ n of the parameters three times for each microbatch; the gradient all-reduce of
replicas sends 2 (n - 1) / n of them once for each step.

References
----------
Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter
models", section 5.3; Zhao et al. 2023, "PyTorch FSDP: experiences on scaling fully
sharded data parallel".
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from minipipe.autograd.memory import buffer_of, saved_by
from minipipe.core.autograd import backend, graph
from minipipe.core.autograd.backend import Array, array_module, prod
from minipipe.core.autograd.graph import Backward, BackwardWalk, Leaf, Node, Saved
from minipipe.core.autograd.modes import current_mode, mode, next_order, setting
from minipipe.core.comm.message import finish
from minipipe.core.comm.process_group import OwnTag, ProcessGroup
from minipipe.core.nn.module import Module, computes_as
from minipipe.core.nn.parameter import Parameter
from minipipe.core.nn.sequential import Sequential
from minipipe.core.pytree import rebuilt, tensors_in
from minipipe.core.specs import Spec
from minipipe.core.tensor import Tensor, record
from minipipe.errors import ArgumentError
from minipipe.nn.collected_losses import auxiliary_losses, losses_so_far
from minipipe.nn.places import (
    Places,
    parameter_at,
    places_in,
    put_parameter,
    put_shards,
)
from minipipe.nn.recompute import Recompute
from minipipe.parallel.reduction import AllGather, Channel, ReduceScatter

# Saved values that refer to no parameter.
_WITHOUT_ARRAYS = (
    *(int, float, str, slice, range, type, type(None), type(...)),
    *(np.dtype, np.generic, ProcessGroup),
)
# the values of the shards in the graph, which no operation computes
_NOTHING = np.zeros(0)
# elements at which a parameter may begin: the rounding of a product may depend on the
# alignment
_ALIGNED = 16


# -- layers ----------------------------------------------------------------------------


class Workspace:
    """The memory that holds the whole parameters of one layer at a time.

    Attributes
    ----------
    group : ProcessGroup
        The group whose ranks keep a shard of each layer.
    sizes : dict
        By dtype, the elements of the largest layer.
    arrays : dict
        By dtype, the memory, after its first use.
    holder : array or None
        The first of the parameters that are gathered, as the call that uses them knows
        it.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.sizes: dict[Any, int] = {}
        self.arrays: dict[Any, Array] = {}
        self.holder: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Workspace:
        return self  # copies of a model, and their stages, compute one after the other


_ADVICE = "nn.fully_shard makes both."
_WORKSPACE = Spec(Workspace, expected="a workspace", advice=_ADVICE)


class FullySharded(Module):
    """A layer of whose parameters each rank of a group keeps a shard;
    :func:`fully_shard` makes them.

    A call, and the backward of a call, are collective over the group: its ranks make
    them in one order.

    Parameters
    ----------
    layer : Module
        It is changed: its attributes are the shards from now on, under their names.
    workspace : Workspace
        The workspace of all layers of the model.

    Examples
    --------
    >>> from minipipe import nn, spawn
    >>> spawn(lambda group: nn.fully_shard(nn.Linear(8, 2), group), num_ranks=2)
    [FullySharded(Linear(8, 2)), FullySharded(Linear(8, 2))]
    """

    not_trained = "places"  # in which the layer has its parameters
    # a compiled program depends on its existence, not on its arrays
    _passing = ("kept",)
    # parameters keep the names that they have in the layer, and so their first values
    _inlined = "layer"

    def __init__(self, layer: Module, workspace: Workspace) -> None:
        _WORKSPACE.of_class("FullySharded", workspace)
        self._shown = repr(layer)
        self.layer = layer
        self.workspace = workspace
        self.is_training = layer.is_training
        self.places = Places(layer)
        self.kept: WholeLayers | None = None  # while its parameters stay whole
        # by parameter: dtype, first element, shape
        self.offsets: list[tuple[Any, int, tuple[int, ...]]] = []
        self.sizes = dict[Any, int]()  # by dtype
        for parameter in self.shares:
            dtype = parameter.dtype
            first = -(-self.sizes.get(dtype, 0) // _ALIGNED) * _ALIGNED
            self.offsets.append((dtype, first, parameter.shape))
            self.sizes[dtype] = first + parameter.size
        for dtype, end in self.sizes.items():
            workspace.sizes[dtype] = max(end, workspace.sizes.get(dtype, 0))
            alike = [
                each for each in self.places.all if parameter_at(each).dtype == dtype
            ]
            put_shards(alike, workspace.group)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return an attribute of the layer, under whose name the model has this
            one.
            """
            layer = vars(self).get("layer")
            if layer is not None and not name.startswith("__"):
                return getattr(layer, name)
            return super().__getattr__(name)

    def __repr__(self) -> str:
        return f"FullySharded({self._shown})"

    @property
    def whole_arrays(self) -> list[Array]:
        """The memory in which its parameters are whole."""
        arrays = self.workspace.arrays
        if self.kept is not None:
            arrays = self.kept.arrays[id(self)]
        return list(arrays.values())

    @property
    def shares(self) -> list[Any]:
        """The parameters of this rank."""
        return list(map(parameter_at, self.places.all))

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Compute the result of the layer, with whole parameters. Collective, and so is
        its backward.
        """
        call = _Call(self)
        shards = self.shares
        wholes = call.wholes(shards)
        with call.watching():
            try:
                for places, whole in zip(self.places.all, wholes):
                    put_parameter(places, whole)
                with auxiliary_losses() as losses:
                    result = self.layer(*inputs, **options)
            finally:
                for places, shard in zip(self.places.all, shards):
                    put_parameter(places, shard)
            results = tensors_in(result)
            arguments = tensors_in([*inputs, *options.values()])
            count = len(results)
            results = call.passed_on([*results, *losses], arguments)
        losses_so_far().extend(results[count:])
        return rebuilt(result, results[:count])

    # -- messages ----------------------------------------------------------------------

    def arrays_of(self, sizes: dict[Any, int]) -> dict[Any, Array]:
        """Return arrays of some sizes, by dtype, in which the parameters of this layer
        lie.
        """
        move = partial(backend.moved, xp=self.shares[0].xp)
        return {kind: move(np.zeros(size, kind)) for kind, size in sizes.items()}

    def wholes_in(self, arrays: dict[Any, Array]) -> list[Array]:
        """Return the elements of each parameter in arrays, by dtype."""
        return [
            arrays[dtype][first : first + prod(shape)]
            for dtype, first, shape in self.offsets
        ]

    def gather(self, into: dict[Any, Array]) -> None:
        """Write the whole parameters into arrays, by dtype. Collective."""
        _finished(_begun([self], [into], OwnTag.GATHER))

    def scatter(
        self, gradients: dict[int, Array], first: Array
    ) -> list[tuple[Leaf, Array]]:
        """Return the leaves that accumulate the gradients of shards, and their sums
        over the ranks. Collective.

        Parameters
        ----------
        gradients : dict of int to array
            By the number of a parameter, the gradients that the call of this rank has
            computed. They are removed.
        first : array
            The first of the whole parameters in this call.
        """
        nodes: list[Any] = []
        local: list[Array | None] = []
        for i, share in enumerate(self.shares):
            if share.requires_grad:
                nodes.append(share.node)
                gradient = gradients.pop(i, None)
                if gradient is not None:
                    gradient = _flat(gradient)
                local.append(gradient)
        if not nodes:
            return []
        totals = zip(nodes, _scattered(self, first, *local))
        return [(node, total) for node, total in totals if total is not None]


def _begun(
    layers: Sequence[FullySharded], into: Sequence[dict[Any, Array]], tag: OwnTag
) -> AllGather | None:
    """Begin to write the whole parameters of some layers into arrays, by dtype.

    Collective, with one message for all layers. None if there is nothing to wait for.
    """
    shares = list[Any]()
    wholes = list[Array]()
    for layer, arrays in zip(layers, into):
        for share, whole in zip(layer.shares, layer.wholes_in(arrays)):
            shares.append(share)
            wholes.append(whole)
            whole[share.shard.pieces[share.shard.group.rank]] = share.data
    if not shares:
        return None
    group = layers[0].workspace.group
    channel = Channel(group, tag, xp=shares[0].xp)
    parts = _parts(shares, group)
    label = "a shard of the parameters of a layer"
    return AllGather(channel, range(group.size), wholes, parts, label)


def _finished(gathering: AllGather | None) -> None:
    """Wait until the parameters are whole, and the shards of this rank are sent."""
    if gathering is not None:
        gathering.wait()
        finish(gathering.exchange.sends)


# Lines of a compiled stage. Each is given an array of the call, or its parameters,
# since lines depend on arrays.


@backend.collective
def _gathered(layer: FullySharded, *shares: Array) -> tuple[Array, ...]:
    """Return the whole parameters of a layer, gathered unless they are kept whole."""
    space = layer.workspace
    kept = layer.kept
    if kept is None:
        arrays = space.arrays = space.arrays or layer.arrays_of(space.sizes)
        layer.gather(arrays)
    else:
        kept.wait()
        arrays = kept.arrays[id(layer)]
    wholes = []
    for row, (_, _, shape) in zip(layer.wholes_in(arrays), layer.offsets):
        whole = backend.reshape(row, shape)
        if isinstance(whole, np.ndarray):
            whole.flags.writeable = False  # in the forward of the layer
        wholes.append(whole)
    if kept is None:
        space.holder = wholes[0]
    return tuple(wholes)


@backend.collective
def _restored(layer: FullySharded, first: Array, is_certain: bool) -> None:
    """Gather the parameters of an earlier call again, if it is certain or others have
    used the workspace since.
    """
    space = layer.workspace
    if is_certain or space.holder is not first:
        layer.gather(space.arrays)
        space.holder = first


@backend.collective
def _scattered(
    layer: FullySharded, first: Array, *gradients: Array | None
) -> tuple[Array | None, ...]:
    """Return the sums of this rank's shards of gradients, given as rows of elements."""
    group = layer.workspace.group
    shares = [share for share in layer.shares if share.requires_grad]
    channel = Channel(group, OwnTag.GATHER, xp=shares[0].xp)
    parts = _parts(shares, group)
    arrays = list(gradients)
    label = "its part of the gradients of a layer"
    reduction = ReduceScatter(channel, range(group.size), arrays, parts, label)
    totals = reduction.wait()
    finish(reduction.sends)
    return tuple(totals)


def _parts(shares: Sequence[Any], group: ProcessGroup) -> list[list[tuple[int, slice]]]:
    """Return, by rank, the elements of its shards in each of the whole parameters."""
    return [
        [(i, share.shard.pieces[rank]) for i, share in enumerate(shares)]
        for rank in range(group.size)
    ]


class _Call:
    """One computation of a layer."""

    def __init__(self, layer: FullySharded) -> None:
        self._layer = layer
        self._kept = layer.kept
        self._is_back = False
        self._gradients: dict[int, Array] = {}
        self._joint = _Shares(self, next_order())

    def wholes(self, shares: Sequence[Parameter]) -> list[Parameter]:
        """Return the whole parameters, recorded as computed from the shards."""
        layer = self._layer
        arrays = _gathered(layer, *[share.data for share in shares])
        self._first = arrays[0]
        wholes: list[Parameter] = []
        for i, (share, array) in enumerate(zip(shares, arrays)):
            saved = (partial(self._gradients.setdefault, i),)
            node = Node(
                graph.CUSTOM[1],
                (self._joint,),
                saved,
                next_order(),
                share.requires_grad,
                False,
                array.shape,
                share.dtype,
            )
            wholes.append(_Whole(array, node, share))
        return wholes

    def watching(self) -> AbstractContextManager[Any]:
        """Watch no array inside this block that is whole here: the next layer changes
        it, and backward restores it.
        """
        watch = mode().watch
        if watch is None:
            return nullcontext()
        return setting(current_mode, mode()._replace(watch=partial(self._watch, watch)))

    def _watch(
        self, watch: Callable[..., Any], values: tuple[Any, ...], arrays: list[Any]
    ) -> Any:
        kept = filter(backend.is_array, arrays)
        return watch(values, [array for array in kept if not self._is_whole(array)])

    def passed_on(self, results: list[Tensor], arguments: list[Tensor]) -> list[Tensor]:
        """Return the results, such that the whole parameters are in their place again
        when the gradients arrive.

        The gradient of a result always reaches the shards, since other ranks may have
        used other parameters. A returned input stays as it is otherwise: the gradients
        of its uses would be added up in another order.
        """
        kept = self._kept
        if kept is not None and (kept.is_alone or not mode().is_enabled):
            return results
        nodes = [result.node for result in results]
        inside = self._inside([node for node in nodes if node is not None])
        is_trained = any(share.requires_grad for share in self._layer.shares)
        is_reached = self._joint in inside or not is_trained
        if kept is None:
            self._look_after(inside)
        elif is_reached:
            return results
        passed = {}
        shares = Tensor.__new__(Tensor)
        shares.data = _NOTHING
        shares.node = self._joint
        if is_reached:
            passed = {id(tensor): tensor for tensor in arguments}
            shares.node = None
        for result in results:
            if id(result) not in passed:
                data = self._apart(result.data)
                passed[id(result)] = record(
                    data, (result, self._filled), (shares, graph.unchanged)
                )
        return [passed[id(result)] for result in results]

    def scattered(self) -> list[tuple[Leaf, Array]]:
        """Return the sums of gradients. Collective, unless this rank computes alone."""
        if self._kept is not None and self._kept.is_alone:
            return []
        return self._layer.scatter(self._gradients, self._first)

    def _filled(self, gradient: Array) -> Array:
        """Return the gradient of a result. The first one finds the parameters of a
        later layer in the workspace.
        """
        is_certain = not self._is_back
        self._is_back = True
        if self._kept is None:
            _restored(self._layer, self._first, is_certain)
        return gradient

    def _apart(self, data: Array) -> Array:
        """Return values that do not change with the workspace, as a returned parameter
        would.
        """
        if self._is_whole(data):
            return backend.copy(data)
        return data

    def _is_whole(self, array: Array) -> bool:
        spaces = map(buffer_of, self._layer.workspace.arrays.values())
        return any(buffer_of(array) is space for space in spaces)

    def _inside(self, nodes: list[Node]) -> dict[Node, None]:
        """Return the nodes of this call behind some nodes."""
        first = self._joint.order
        inside = dict.fromkeys(nodes)
        stack = list(inside)
        while stack:
            for parent in stack.pop().inputs:
                if parent.order >= first and parent not in inside:
                    inside[parent] = None
                    stack.append(parent)
        return inside

    def _look_after(self, inside: dict[Node, None]) -> None:
        """Restore the parameters before W computes gradients from them: other layers
        have used the workspace since.

        I computes its results from them before any other layer runs.
        """
        for node in inside:
            has_others = not all(parent.is_activation for parent in node.inputs)
            if has_others and self._joint not in node.inputs:
                node.saved = _Restored(self, node.saved).part(saved_by(node))

    def may_need_parameters(self, value: Any) -> bool:
        """Return whether a saved value is a parameter, or may refer to one: a custom
        vjp, or an unknown object.
        """
        if isinstance(value, dict):
            value = [*value.values()]
        if isinstance(value, tuple | list):
            return any(map(self.may_need_parameters, value))
        if backend.is_array(value):
            return self._is_whole(value)
        return not isinstance(value, _WITHOUT_ARRAYS)

    def fill(self) -> None:
        """Restore the parameters, if other layers have used the workspace since.
        Collective.
        """
        _restored(self._layer, self._first, False)


class _Restored:
    """Saved values among which are whole parameters, which are restored when a backward
    takes them.

    Parameters
    ----------
    call : _Call
    saved : tuple or Kept
    """

    def __init__(self, call: _Call, saved: Saved) -> None:
        self._call = call
        self._saved = saved

    @property
    def values(self) -> tuple[Any, ...]:
        """The values as they are now."""
        if isinstance(self._saved, tuple):
            return self._saved
        return self._saved.values

    def take(self) -> tuple[Any, ...]:
        """Restore the parameters, and return the values."""
        self._call.fill()
        if isinstance(self._saved, tuple):
            return self._saved
        return self._saved.take()

    def part(self, values: tuple[Any, ...]) -> Saved:
        """Return some of the values, in the same way if there are parameters among
        them.
        """
        saved: Saved = values
        if not isinstance(self._saved, tuple):
            saved = self._saved.part(values)
        if not self._call.may_need_parameters(values):
            return saved
        return _Restored(self._call, saved)


class _Whole(Parameter):
    """A whole parameter, inside the forward of its layer. Its values cannot be changed
    there.
    """

    __slots__ = ()

    def __init__(self, values: Array, node: Node, share: Parameter) -> None:
        own: Any = node  # of a call, and no leaf
        self.data = values
        self.node = own
        self.leaves = {0: own}
        self.initialiser = None
        self.shape = values.shape
        self.dtype = share.dtype
        self.xp = share.xp
        self.updates = None
        self.num_uses = 1
        self.is_placed = True
        self.arena = None


class _Shares(Node):
    """The shards of a layer in the graph of one call. The gradients of all its
    parameters arrive before they go on.
    """

    __slots__ = ("call", "walk")

    def __init__(self, call: _Call, order: int) -> None:
        super().__init__(graph.CUSTOM[0], (), (), order)
        self.call = call

    def add(self, contribution: Array, walk: BackwardWalk) -> None:
        """Enter the queue, once; the contributions are in the call."""
        if self.pending is None:
            self.walk = walk
            super().add(contribution, walk)

    def release(self, gradient: Array) -> Backward:
        """Add to each shard the sum of its gradients over the ranks. Collective."""
        for leaf, total in self.call.scattered():
            leaf.add(total, self.walk)
        return super().release(gradient)


def _flat(gradient: Array) -> Array:
    """Return the elements in one row; elements of half precision become float32, in
    which they are added up.
    """
    dtype = gradient.dtype
    if backend.is_half(dtype):
        dtype = array_module(gradient).float32
    return backend.reshape(backend.as_array(gradient, dtype), (-1,))


# -- models ----------------------------------------------------------------------------


_MODEL = Spec(Module, expected="a model, such as nn.Sequential(…)")
_GROUP = Spec(ProcessGroup, expected="a group of ranks, such as grid.data")


def fully_shard(module: Module, group: ProcessGroup) -> Module:
    """Return a copy of a model of which each rank of a group keeps a shard; the names
    of parameters stay.

    Each layer with parameters, of the sequences that the model is made of, is one
    :class:`FullySharded`. A parameter that several layers share, that is in a tuple, or
    that has a custom class, stays whole; each rank computes its own gradient, and a
    pipeline on a device mesh adds these up. Collective for a model that has values and
    is already divided.

    Parameters
    ----------
    module : Module
        The same on all ranks.
    group : ProcessGroup
        Ranks that compute with different samples, such as the ``data`` of a
        :class:`minipipe.Grid`.

    Raises
    ------
    ArgumentError
        Code ``value``, for :class:`Recompute` inside of a layer; around one it is fine.

    Examples
    --------
    >>> from minipipe import nn, spawn
    >>> model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    >>> (
    ...     model.num_parameters,
    ...     spawn(
    ...         lambda group: nn.fully_shard(model, group).num_parameters, num_ranks=2
    ...     ),
    ... )
    (90, [45, 45])
    """
    _MODEL.of_class("fully_shard", module)
    _GROUP.of_class("fully_shard", group)
    twin = copy.deepcopy(module)
    if group.size == 1:
        return twin
    return _sharded(twin, Workspace(group))


def _sharded(module: Module, workspace: Workspace) -> Module:
    # a custom forward may read its layers: it is a layer
    if computes_as(module, Sequential):
        module.layers = [_sharded(layer, workspace) for layer in module.layers]
        return module
    if isinstance(module, FullySharded):
        return module
    if isinstance(module, Recompute):
        module.module = _sharded(module.module, workspace)
        return module
    if any(isinstance(part, Recompute) for part in module.modules()):
        problem = f"{module.brief()} has nn.Recompute inside"
        reason = "which would compute with shards of its parameters"
        raise ArgumentError(f"{problem}, {reason}; put nn.Recompute around the layer.")
    if not places_in(module):
        return module
    return FullySharded(module, workspace)


class WholeLayers:
    """The fully sharded layers of a module, whole until they are released.

    Collective when it is made, which waits for nothing: a layer waits for its
    parameters when it computes.

    Parameters
    ----------
    module : Module
    is_alone : bool
        Whether this rank computes alone, and adds up no gradients of its layers.

    Attributes
    ----------
    arrays : dict of int to dict
        By the identity of a layer, the memory of its parameters by dtype.
    """

    def __init__(self, module: Module, is_alone: bool = False) -> None:
        parts = module.modules()
        self._layers = [part for part in parts if isinstance(part, FullySharded)]
        self.is_alone = is_alone
        self.arrays = {id(each): each.arrays_of(each.sizes) for each in self._layers}
        into = [*self.arrays.values()]
        # Layers may exchange gradients before: another tag keeps their messages apart.
        self._gathering = _begun(self._layers, into, OwnTag.COPY)
        for layer in self._layers:
            layer.kept = self

    def wait(self) -> None:
        """Wait until the parameters are whole."""
        gathering = self._gathering
        self._gathering = None
        _finished(gathering)

    def release(self) -> None:
        """Leave this rank its shards. Local."""
        for layer in self._layers:
            layer.kept = None
