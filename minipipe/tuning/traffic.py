"""Bytes that a rank of a device mesh sends in a step: counted in a run, and computed
from program and layer sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from minipipe.comm import Grid, ProcessGroup
from minipipe.comm.objects import unpack
from minipipe.core.comm.message import HEADER_SIZE, Header
from minipipe.core.execution.payload import Payload
from minipipe.core.schedules.action import SEND_B, SEND_F, F
from minipipe.core.schedules.analysis.dependencies import Transfer
from minipipe.execution.plan import Plan
from minipipe.nn.fully_sharded import FullySharded
from minipipe.nn.parallel import sums_in
from minipipe.parallel.reduction import bytes_sent_in_sum, has_label
from minipipe.tuning.layers import MeasuredLayers
from minipipe.tuning.memory import gradient_bytes, uses_in

KINDS = ("activations", "tensor sums", "gradient sums", "shares")
OTHER = "other"  # losses, checks, and descriptions of packed messages


class Traffic:
    """Counts the bytes that this rank sends over the groups of a device mesh, by kind.
    Local.

    The arrays of a packed message count with its kind, its description as ``"other"``.

    Parameters
    ----------
    grid : Grid
    plan : Plan

    Attributes
    ----------
    sent : dict of str to int
        By kind, the bytes sent within :meth:`counting`.
    """

    def __init__(self, grid: Grid, plan: Plan) -> None:
        self.sent = dict.fromkeys((*KINDS, OTHER), 0)
        # the tags of activations are below
        first_sum = 2 * plan.program.num_stages * plan.program.num_microbatches

        def of_pipeline(array: Any, tag: int) -> str:
            if tag < 0:
                return OTHER
            return KINDS[2 * (tag >= first_sum)]

        def of_data(array: Any, tag: int) -> str:
            return KINDS[3] if array.dtype.kind == "f" else OTHER

        def of_tensor(array: Any, tag: int) -> str:
            if array.dtype.kind == "f" or has_label(array):
                return KINDS[1]
            return OTHER

        self._kinds: list[tuple[ProcessGroup, Callable[[Any, int], str]]] = [
            (grid.pipeline, of_pipeline),
            (grid.data, of_data),
            (grid.tensor, of_tensor),
        ]

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the bytes that are sent inside this block."""
        for group, kind_of in self._kinds:
            group.on_send = partial(self._count, kind_of)
        try:
            yield
        finally:
            for group, _ in self._kinds:
                group.on_send = None

    def _count(
        self,
        kind_of: Callable[[Any, int], str],
        header: Header,
        array: Any,
        destination: int,
        tag: int,
    ) -> None:
        kind = kind_of(array, tag)
        size = header.nbytes
        if kind != OTHER and header.dtype == np.uint8:
            size = _bytes_of_arrays(array)
        self.sent[kind] += size
        self.sent[OTHER] += header.nbytes - size


def _bytes_of_arrays(message: np.ndarray) -> int:
    if has_label(message):
        return message.nbytes - HEADER_SIZE
    content = unpack(message)  # of a reduction; else it is the payload of a stage
    arrays = content
    if not isinstance(content, list):
        arrays = Payload.from_message(message).arrays
    return sum(part.nbytes for part in arrays if part is not None)


class Sizes(NamedTuple):
    """The bytes that the stages of a plan send.

    Attributes
    ----------
    messages : tuple of int
        By stage, its activation of a microbatch; the gradient of the activation has as
        many.
    forward_sums, backward_sums : tuple of tuple of (int, int)
        By stage, the elements of each all-reduce over its tensor-parallel ranks, of a
        microbatch, and the bytes of one.
    gradients : tuple of list of (int, int)
        By stage, the elements of each gradient that replicas all-reduce, and the bytes
        of one element.
    shares : tuple of list of list of int
        By stage and layer, the shard of each rank, if replicas are fully sharded.
    """

    messages: list[int]
    forward_sums: list[list[tuple[int, int]]]
    backward_sums: list[list[tuple[int, int]]]
    gradients: list[list[tuple[int, int]]]
    shares: list[list[list[int]]]

    @classmethod
    def of(cls, plan: Plan, layers: MeasuredLayers, positions: int) -> Sizes:
        """Return the sizes of a plan whose layers were measured, for microbatches of
        ``tokens`` tokens. Local.
        """
        messages = [layers[part.stop - 1].message_size for part in plan.partition]
        sizes = cls(messages, [], [], [], [])
        for part in map(plan.part, range(plan.schedule.num_stages)):
            both = (sizes.forward_sums, sizes.backward_sums)
            for ways, way in zip(both, sums_in(part)):
                ways.append([(n * positions, size) for n, size in way])
            uses = [use for use in uses_in(part) if not use.is_summed]
            counts = [(use.size, gradient_bytes([use]) // use.size) for use in uses]
            sizes.gradients.append(counts)
            sharded = (own for own in part.modules() if isinstance(own, FullySharded))
            sizes.shares.append(list(map(share_bytes, sharded)))
        return sizes


def promised(plan: Plan, grid: Grid, sizes: Sizes) -> dict[str, int]:
    """Return the bytes that a rank of a device mesh sends in a step, by kind. Local; it
    runs nothing.

    Activations and their gradients follow from the SENDs of its row, all-reduces from
    their sizes.
    """
    rank = grid.pipeline.rank
    row = plan.program.actions[rank]
    sends = (action for action in row if action.kind in (SEND_F, SEND_B))
    messages = [sizes.messages[Transfer.carried_by(send).cut] for send in sends]
    n = grid.tensor.size
    place = grid.tensor.rank
    m = grid.data.size
    own = grid.data.rank
    sums = shares = gradients = 0
    for stage in (stage for stage, kind, _ in row if kind is F):
        for each in (*sizes.forward_sums[stage], *sizes.backward_sums[stage]):
            sums += bytes_sent_in_sum([each], n, place)
        # Its own shard in F and in B, to all others; and the shards of the others of
        # each gradient.
        for layer in sizes.shares[stage]:
            shares += 2 * (m - 1) * layer[own] + sum(layer) - layer[own]
    for stage in plan.schedule.stages_of(rank):
        ranks = plan.program.ranks_of(stage)
        counts = sizes.gradients[stage]
        gradients += bytes_sent_in_sum(counts, len(ranks), ranks.index(rank))
    return dict(zip(KINDS, (sum(messages), sums, gradients, shares)))


def share_bytes(layer: FullySharded) -> list[int]:
    """Return, by rank, the bytes of its shard of a layer."""
    sizes = [0] * len(layer.shares[0].shard.pieces)
    for share in layer.shares:
        itemsize = np.dtype(share.dtype).itemsize
        for rank, piece in enumerate(share.shard.pieces):
            sizes[rank] += itemsize * (piece.stop - piece.start)
    return sizes
