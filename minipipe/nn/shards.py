"""Parameters of which each rank of a group keeps a part: along an axis, or some of the
elements.

Tensor parallelism divides along axes (``parallel.py``), and fully sharded replicas by
elements (``fully_sharded.py``). Either way an optimiser, a checkpoint and a norm ask
the parameter alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from minipipe.comm.agreement import digest
from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Shape, array_module
from minipipe.core.comm.process_group import ProcessGroup
from minipipe.core.nn.initialisers import Initialiser, constant
from minipipe.core.nn.parameter import Parameter


@dataclass(frozen=True)
class Shard:
    """The part of a parameter that a rank of a group keeps, along an axis.

    Attributes
    ----------
    group : ProcessGroup
        Whose ranks keep one part each.
    shape : tuple of int
        The shape of the whole parameter.
    axis : int
        Along which it is divided.
    blocks : tuple of int
        Lengths along the axis of which every rank has an equal part each, such as
        queries, keys and values.
    """

    group: ProcessGroup
    shape: Shape
    axis: int
    blocks: Shape
    is_summed = False

    @property
    def groups(self) -> tuple[ProcessGroup, ...]:
        """The groups among which the elements are divided."""
        return (self.group,)

    @property
    def own_shape(self) -> Shape:
        """The shape of a part."""
        shape = list(self.shape)
        shape[self.axis] //= self.group.size
        return tuple(shape)

    def cut(self, values: Array) -> Array:
        """Return this rank's part of the whole values."""
        xp = array_module(values)
        rank = self.group.rank
        size = self.group.size
        own = []
        for block in self._split(values, self.blocks):
            lengths = [block.shape[self.axis] // size] * size
            own.append(self._split(block, lengths)[rank])
        return xp.concat(own, axis=self.axis)

    def joined(self, values: Array) -> Array:
        """Return the whole values from the part of each rank. Collective."""
        xp = array_module(values)
        own = [block // self.group.size for block in self.blocks]
        gathered = self.group.all_gather(backend.to_numpy(values))
        parts = [self._split(backend.moved(part, xp), own) for part in gathered]
        by_block = [part for block in zip(*parts) for part in block]
        return xp.concat(by_block, axis=self.axis)

    def _split(self, values: Array, lengths: Any) -> list[Array]:
        ends = np.cumsum(lengths).tolist()
        before = (slice(None),) * self.axis
        places = [slice(end - length, end) for end, length in zip(ends, lengths)]
        return [values[(*before, place, ...)] for place in places]

    def __deepcopy__(self, memo: dict[int, Any]) -> Shard:
        return self  # a group is not a value: copies of a layer share it


@dataclass(frozen=True)
class FlatShard:
    """The shard of a parameter that a rank keeps, as elements: a
    :class:`minipipe.nn.parallel.Shard` without an axis.

    Attributes
    ----------
    group : ProcessGroup
        The group whose ranks keep one shard each.
    inner_shape : tuple of int
        The shape of the parameter, or of the tensor-parallel part that each rank of the
        group would have unsharded.
    pieces : tuple of slice
        By rank, the elements of its shard.
    inner : Shard, optional
        The shard of tensor parallelism.
    """

    group: ProcessGroup
    inner_shape: Shape
    pieces: tuple[slice, ...]
    inner: Shard | None
    is_summed = True

    @property
    def shape(self) -> Shape:
        """The shape of the whole parameter."""
        if self.inner:
            return self.inner.shape
        return self.inner_shape

    @property
    def own_shape(self) -> Shape:
        """The shape of this rank's shard."""
        piece = self.pieces[self.group.rank]
        return (piece.stop - piece.start,)

    @property
    def groups(self) -> tuple[ProcessGroup, ...]:
        """The groups among which the elements are divided."""
        if self.inner:
            return self.group, *self.inner.groups
        return (self.group,)

    def cut(self, values: Array) -> Array:
        """Return this rank's shard of the whole values."""
        if self.inner:
            values = self.inner.cut(values)
        return backend.reshape(values, (-1,))[self.pieces[self.group.rank]]

    def joined(self, values: Array) -> Array:
        """Return the whole values from the shard of each rank. Collective."""
        xp = array_module(values)
        shares = self.group.all_gather(backend.to_numpy(values))
        flat = xp.concat([backend.moved(share, xp) for share in shares])
        part = backend.reshape(flat, self.inner_shape)
        if self.inner:
            return self.inner.joined(part)
        return part

    def __deepcopy__(self, memo: dict[int, Any]) -> FlatShard:
        return self  # a group is not a value: copies of a layer share it


class ShardedParameter(Parameter):
    """A parameter of which each rank of a group keeps a part; its shape is the shape of
    the part.

    First values, and values that are loaded, exist as a whole first, and each rank
    takes its part of them.

    Attributes
    ----------
    shard : Shard or FlatShard
    whole_digest : int
        Digest of the whole values from which the part was taken last, so that ranks can
        compare them; 0 without values.
    """

    __slots__ = ("shard", "whole_digest")

    def __init__(
        self,
        shard: Shard | FlatShard,
        initialiser: Initialiser | None,
        dtype: Any = None,
    ) -> None:
        super().__init__(shard.own_shape, initialiser or constant(0.0), dtype)
        self.initialiser = initialiser
        self.shard = shard
        self.whole_digest = 0

    @classmethod
    def of(cls, parameter: Parameter, shard: Shard | FlatShard) -> ShardedParameter:
        """Return this rank's part of a parameter, with its first values or those that
        it has.
        """
        own = cls(shard, parameter.initialiser, parameter.dtype)
        own.requires_grad = parameter.requires_grad
        own.xp = parameter.xp
        if parameter.is_filled:
            own.load(parameter.joined(parameter.data), "a parameter")
            # parts are concatenated to the same values on all ranks
            if isinstance(parameter.owner, ShardedParameter):
                own.whole_digest = parameter.owner.whole_digest
        return own

    is_divided = True
    is_summed = property(
        lambda self: self.shard.is_summed,
        doc="Whether a backward adds its gradient up over replicas.",
    )
    whole_shape = property(
        lambda self: self.shard.shape, doc="The shape of all ranks' parts together."
    )

    def joined(self, values: Array) -> Array:
        """Return the parts of all ranks together; an array of another shape than a part
        is returned as it is.
        """
        if values.shape != self.shape:
            return values
        return self.shard.joined(values)

    def cut(self, values: Array) -> Array:
        """Return this rank's part; an array of another shape than the whole is returned
        as it is.
        """
        if values.shape != self.whole_shape:
            return values
        return self.shard.cut(values)

    def load(self, values: Array, name: str) -> None:
        """Take this rank's part of the values of the whole parameter."""
        super().load(self.cut(values), name)
        is_whole = values.shape == self.whole_shape
        self.whole_digest = 0
        if is_whole:
            self.whole_digest = digest(backend.moved(values, self.xp, self.dtype))

    def __getstate__(self) -> dict[str, Any]:
        own = {"shard": self.shard, "whole_digest": self.whole_digest}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.shard = state["shard"]
        self.whole_digest = state["whole_digest"]
        super().__setstate__(state)


def over_parts(parameters: Iterable[Parameter], numbers: list[float]) -> list[float]:
    """Return a number of each parameter, added up over the ranks that keep parts of it.
    Collective among these.

    Examples
    --------
    >>> from minipipe import nn
    >>> over_parts([nn.Parameter([1.0, 2.0])], [5.0])
    [5.0]
    """
    shards = dict[int, Shard | FlatShard]()
    for i, each in enumerate(parameters):
        if isinstance(each.owner, ShardedParameter):
            shards[i] = each.owner.shard
    found = dict(enumerate(numbers))
    groups = [group for shard in shards.values() for group in shard.groups]
    for group in dict.fromkeys(groups):
        places = [i for i, shard in shards.items() if group in shard.groups]
        sums = group.all_reduce(np.array([found[i] for i in places]))
        found.update(zip(places, sums.tolist()))
    return list(found.values())
