"""The results of a batch on their way from the rank of the last stage to the others: its loss, and its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from minipipe.comm import ProcessGroup
from minipipe.comm.channel import ExchangeChannel
from minipipe.comm.process_group import OwnTag
from minipipe.execution import BatchLoss, PendingLoss
from minipipe.execution.batch import Batch
from minipipe.execution.checks.calls import Part, part_of
from minipipe.execution.checks.finite import StepCheck
from minipipe.execution.payload import Payload

_MOST_FORMS = 8  # of losses, each with its channels: they differ in numbers of microbatches and metrics


class LossDelivery:
    """Gives each rank the loss of a batch, and the findings of all ranks.

    Each rank sends its findings to all others itself, the root with the loss. So when the slowest rank finishes, the
    findings of all others have arrived already; in a tree, or in rounds, each would wait for others on the way.

    Parameters
    ----------
    group : ProcessGroup
    root : int
        The rank of the last stage.
    """

    def __init__(self, group: ProcessGroup, root: int) -> None:
        self.group, self.root = group, root
        self._part = Part()
        self._channels: dict[tuple[int, ...], ExchangeChannel] = {}

    def start(
        self, call: str, step: int, lengths: Mapping[int, int], own: np.ndarray, waits: bool
    ) -> Callable[[], dict[int, list[float]]]:
        """Start to give numbers of some ranks to all. Collective, but no rank waits for another.

        Parameters
        ----------
        call : str
            The method, for messages.
        step : int
            The number of the call.
        lengths : mapping of int to int
            By sender, how many numbers it sends.
        own : array
            The numbers of this rank.
        waits : bool
            Whether this rank waits for them before any other call.

        Returns
        -------
        function
            Waits for the numbers, and returns them by sender.
        """
        if not waits or self.group.num_under_way:
            return self._broadcast(call, step, lengths, own)
        self._part.call = call
        channels = self._channels_for(lengths)
        channels.start(own, step)
        return lambda: {self.group.rank: own.tolist(), **channels.wait()}

    def _broadcast(
        self, call: str, step: int, lengths: Mapping[int, int], own: np.ndarray
    ) -> Callable[[], dict[int, list[float]]]:
        """Start broadcasts, of which several may be under way: the same messages, in an order that the group knows."""
        group, what = self.group, part_of(call)
        requests = {
            rank: group.ibroadcast(own if rank == group.rank else None, rank, step=step, what=what) for rank in lengths
        }
        return lambda: {rank: request.wait().tolist() for rank, request in requests.items()}

    def _channels_for(self, lengths: Mapping[int, int]) -> ExchangeChannel:
        key = tuple(lengths.values())
        if key not in self._channels:
            while len(self._channels) >= _MOST_FORMS:
                del self._channels[next(iter(self._channels))]
            self._channels[key] = ExchangeChannel(self.group, lengths, OwnTag.IBROADCAST, self._part)
        return self._channels[key]


def deliver_loss(
    delivery: LossDelivery, batch: Batch, waits: bool = True, check: StepCheck | None = None
) -> PendingLoss:
    """Begin to give the loss of a batch to every rank, and its outputs to those that are to have them.

    Collective.

    Parameters
    ----------
    delivery : LossDelivery
    batch : Batch
    waits : bool
        Whether this rank waits for the loss before any other call.
    check : StepCheck, optional
        Of the loss and the gradients.
    """
    group, root = delivery.group, delivery.root
    outputs = deliver_outputs(group, root, batch)
    findings = () if check is None else check.findings
    size, metrics = len(batch.sizes), list(batch.objective.metrics)
    lengths = {root: 1 + size + len(metrics) + len(findings)}
    if findings:
        lengths |= {rank: len(findings) for rank in range(group.size) if rank != root}
    own = batch.objective.numbers(*findings) if group.rank == root else np.array(findings)
    arrived = delivery.start(batch.call, batch.step, lengths, own, waits)

    def receive() -> BatchLoss:
        found = arrived()
        numbers = found[root]
        loss = BatchLoss.read(numbers, size, metrics, outputs)
        if check is not None:
            found[root] = numbers[-len(findings) :]
            check.judge(loss, [found[rank] for rank in range(group.size)])
        return loss

    return PendingLoss(receive, batch.training_step + 1)


def deliver_outputs(group: ProcessGroup, root: int, batch: Batch) -> Any:
    """Return the outputs of a batch on the ranks that are to have them.

    Collective, where that is all of them.

    Parameters
    ----------
    group : ProcessGroup
    root : int
        The rank of the last stage.
    batch : Batch
    """
    found = batch.outputs() if group.rank == root else None
    if batch.objective.where == "everywhere":
        message = None if found is None else found.to_message()
        found = Payload.from_message(group.broadcast(message, root, what=part_of(batch.call)))
        found = found._replace(arrays=[a if a.flags.writeable else a.copy() for a in found.arrays])
    return None if found is None else batch.returned(found)
