"""Bytes that a rank of a device mesh sends in a step: counted in a run, and computed
from program and layer sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from minipipe.comm import Grid, ProcessGroup
from minipipe.comm.message import HEADER_SIZE, Header, Request
from minipipe.comm.objects import unpack
from minipipe.execution.payload import Payload
from minipipe.execution.plan import Plan
from minipipe.nn.fully_sharded import FullySharded
from minipipe.nn.parallel import sums_in
from minipipe.parallel.reduction import bytes_sent_in_sum, has_label
from minipipe.schedules.action import SEND_B, SEND_F, F
from minipipe.schedules.analysis.dependencies import Value
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
        self._kinds: list[tuple[ProcessGroup, Callable[[Any, int], str]]] = [
            (
                grid.pipeline,
                lambda array, tag: OTHER if tag < 0 else KINDS[2 * (tag >= first_sum)],
            ),
            (
                grid.data,
                lambda array, tag: KINDS[3] if array.dtype.kind == "f" else OTHER,
            ),
            (
                grid.tensor,
                lambda array, tag: (
                    KINDS[1] if array.dtype.kind == "f" or has_label(array) else OTHER
                ),
            ),
        ]

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the bytes that are sent inside this block."""
        # replaced on these objects alone: their class is unchanged
        for group, kind_of in self._kinds:
            vars(group)["_post_send"] = partial(
                self._count_and_post, group._post_send, kind_of
            )
        try:
            yield
        finally:
            for group, _ in self._kinds:
                del vars(group)["_post_send"]

    def _count_and_post(
        self,
        post: Any,
        kind_of: Callable[[Any, int], str],
        header: Header,
        array: Any,
        destination: int,
        tag: int,
    ) -> Request:
        kind, size = kind_of(array, tag), header.nbytes
        if kind != OTHER and header.dtype == np.uint8:
            size = _bytes_of_arrays(array)
        self.sent[kind] += size
        self.sent[OTHER] += header.nbytes - size
        return post(header, array, destination, tag)


def _bytes_of_arrays(message: np.ndarray) -> int:
    if has_label(message):
        return message.nbytes - HEADER_SIZE
    content = unpack(message)  # of a reduction; else it is the payload of a stage
    arrays = (
        content if isinstance(content, list) else Payload.from_message(message).arrays
    )
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

    messages: Sequence[int]
    forward_sums: Sequence[Sequence[tuple[int, int]]]
    backward_sums: Sequence[Sequence[tuple[int, int]]]
    gradients: Sequence[Sequence[tuple[int, int]]]
    shares: Sequence[Sequence[Sequence[int]]]

    @classmethod
    def of(cls, plan: Plan, layers: MeasuredLayers, positions: int) -> Sizes:
        """Return the sizes of a plan whose layers were measured, for microbatches of
        ``tokens`` tokens. Local.
        """
        parts = [plan.part(stage) for stage in range(plan.schedule.num_stages)]
        sums = [
            [[(n * positions, size) for n, size in way] for way in sums_in(part)]
            for part in parts
        ]
        added = [[use for use in uses_in(part) if not use.is_summed] for part in parts]
        uses = [
            [(use.size, gradient_bytes([use]) // use.size) for use in of_part]
            for of_part in added
        ]
        sharded = [
            [layer for layer in part.modules() if isinstance(layer, FullySharded)]
            for part in parts
        ]
        shares = [[share_bytes(layer) for layer in layers] for layers in sharded]
        messages = [layers[part.stop - 1].message_size for part in plan.partition]
        return cls(
            messages,
            [ways[0] for ways in sums],
            [ways[1] for ways in sums],
            uses,
            shares,
        )


def promised(plan: Plan, grid: Grid, sizes: Sizes) -> dict[str, int]:
    """Return the bytes that a rank of a device mesh sends in a step, by kind. Local; it
    runs nothing.

    Activations and their gradients follow from the SENDs of its row, all-reduces from
    their sizes.
    """
    rank = grid.pipeline.rank
    row, stages = plan.program.actions[rank], plan.schedule.stages_of(rank)
    cuts = [
        Value.carried_by(action).cut
        for action in row
        if action.kind in (SEND_F, SEND_B)
    ]
    n, place = grid.tensor.size, grid.tensor.rank
    added = [
        [*sizes.forward_sums[stage], *sizes.backward_sums[stage]]
        for stage, kind, _ in row
        if kind is F
    ]
    sums = sum(
        bytes_sent_in_sum([each], n, place) for of_stage in added for each in of_stage
    )
    places = [(stage, plan.program.ranks_of(stage)) for stage in stages]
    gradients = [
        bytes_sent_in_sum(sizes.gradients[s], len(ranks), ranks.index(rank))
        for s, ranks in places
    ]
    n, place = grid.data.size, grid.data.rank
    layers = [
        layer for stage, kind, _ in row if kind is F for layer in sizes.shares[stage]
    ]
    # Its own shard in F and in B, to all others; and the shards of the others of each
    # gradient.
    shares = [
        2 * (n - 1) * layer[place] + sum(layer) - layer[place] for layer in layers
    ]
    found = (
        sum(sizes.messages[cut] for cut in cuts),
        sums,
        sum(gradients),
        sum(shares),
    )
    return dict(zip(KINDS, found))


def share_bytes(layer: FullySharded) -> list[int]:
    """Return, by rank, the bytes of its shard of a layer."""
    sizes = [
        (share.shard.pieces, np.dtype(share.dtype).itemsize) for share in layer.shares
    ]
    by_rank = zip(
        *(
            [size * (piece.stop - piece.start) for piece in pieces]
            for pieces, size in sizes
        )
    )
    return list(map(sum, by_rank))
