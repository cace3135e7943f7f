"""The results of a batch on their way from the rank of the last stage to the others:
its loss, and its outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minipipe.comm import ProcessGroup
from minipipe.comm.channel import ExchangeChannel
from minipipe.core.comm.process_group import OwnTag
from minipipe.core.execution.payload import Payload
from minipipe.execution import BatchLoss, PendingLoss
from minipipe.execution.batch import Batch
from minipipe.execution.checks.calls import Part, part_of
from minipipe.execution.checks.finite import StepCheck

# of losses, each with its channels: they differ in numbers of microbatches and metrics
_MOST_FORMS = 8


class LossDelivery:
    """Gives each rank the loss of a batch, and the findings of all ranks.

    Each rank sends its findings to all others itself, the root with the loss. So when
    the slowest rank finishes, the findings of all others have arrived already; in a
    tree, or in rounds, each would wait for others on the way.

    Parameters
    ----------
    group : ProcessGroup
    root : int
        The rank of the last stage.
    """

    def __init__(self, group: ProcessGroup, root: int) -> None:
        self.group = group
        self.root = root
        self.part = Part()
        self._channels: dict[tuple[int, ...], ExchangeChannel] = {}

    def exchanged(
        self, batch: Batch, own: list[float], num_findings: int
    ) -> dict[int, list[float]]:
        """Return the numbers of all ranks that send some, over channels. Collective.

        Parameters
        ----------
        batch : Batch
        own : list of float
            Of this rank: of the root the losses, the metrics and its findings, of
            others their findings.
        num_findings : int
            Of each rank.
        """
        self.part.call = batch.call
        channel = self.channel(_num_results(batch), num_findings)
        return channel.exchange(own, batch.step)

    def channel(self, num_results: int, num_findings: int) -> ExchangeChannel:
        """Return the channel for so many results of the root, and findings of each
        rank.
        """
        length = num_results + num_findings
        channels = self._channels.get((length, num_findings))
        if channels is None:
            while len(self._channels) >= _MOST_FORMS:
                del self._channels[next(iter(self._channels))]
            lengths = dict.fromkeys(self._senders(num_findings), num_findings) | {
                self.root: length
            }
            channels = ExchangeChannel(
                self.group, lengths, OwnTag.IBROADCAST, self.part
            )
            self._channels[length, num_findings] = channels
        return channels

    def broadcast(
        self, batch: Batch, own: list[float], num_findings: int
    ) -> Callable[[], dict[int, list[float]]]:
        """Send the messages of :meth:`exchanged`; return a function that waits for the
        others'.

        Collective, but no rank waits for another. The group keeps the order if several
        broadcasts are under way.
        """
        group = self.group
        requests = {}
        for rank in self._senders(num_findings):
            mine = np.array(own) if rank == group.rank else None
            requests[rank] = group.ibroadcast(
                mine, rank, step=batch.step, what=part_of(batch.call)
            )
        return lambda: {
            rank: request.wait().tolist() for rank, request in requests.items()
        }

    def _senders(self, num_findings: int) -> list[int]:
        others = [rank for rank in range(self.group.size) if rank != self.root]
        if not num_findings:
            return [self.root]
        return [self.root, *others]


def _num_results(batch: Batch) -> int:
    return 1 + len(batch.sizes) + len(batch.objective.metrics)


def exchange_loss(
    delivery: LossDelivery, batch: Batch, check: StepCheck | None = None
) -> BatchLoss:
    """Return the loss of a batch on every rank, with its outputs on the ranks that are
    to have them.

    Collective; parameters are as in :func:`deliver_loss`.
    """
    if delivery.group.under_way:  # which come first
        return deliver_loss(delivery, batch, check).wait()
    reading = _Reading(delivery, batch, check)
    return reading.loss(delivery.exchanged(batch, reading.own, reading.num_findings))


def deliver_loss(
    delivery: LossDelivery, batch: Batch, check: StepCheck | None = None
) -> PendingLoss:
    """Begin to give the loss of a batch to every rank, and its outputs to the ranks
    that are to have them.

    Collective, but no rank waits for another, except for outputs.

    Parameters
    ----------
    delivery : LossDelivery
    batch : Batch
    check : StepCheck, optional
        Of the loss and the gradients.
    """
    reading = _Reading(delivery, batch, check)
    arrived = delivery.broadcast(batch, reading.own, reading.num_findings)
    return PendingLoss(lambda: reading.loss(arrived()), batch.training_step + 1)


class _Reading:
    """The results of a batch that this rank sends, and the loss that it makes of the
    results of all.

    Attributes
    ----------
    own : list of float
    num_findings : int
    """

    def __init__(
        self, delivery: LossDelivery, batch: Batch, check: StepCheck | None
    ) -> None:
        group = delivery.group
        root = delivery.root
        findings = check.findings if check else ()
        self._delivery = delivery
        self._batch = batch
        self._check = check
        self._outputs = None
        if batch.objective.where:
            self._outputs = deliver_outputs(group, root, batch)
        self.num_findings = len(findings)
        self.own: list[float] = [*findings]
        if group.rank == root:
            self.own = batch.objective.numbers(*findings)

    def loss(self, found: dict[int, list[float]]) -> BatchLoss:
        """Return the loss from the numbers of all ranks, after checking it."""
        batch = self._batch
        root = self._delivery.root
        size = _num_results(batch)
        numbers = found[root]
        loss = BatchLoss.read(
            numbers[:size], len(batch.sizes), batch.objective.metrics, self._outputs
        )
        if self._check is not None:
            found[root] = numbers[size:]
            self._check.judge(loss, [found[rank] for rank in sorted(found)])
        return loss


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
    outputs = batch.outputs() if group.rank == root else None
    if batch.objective.where == "everywhere":
        message = None if outputs is None else outputs.to_message()
        outputs = Payload.from_message(
            group.broadcast(message, root, what=part_of(batch.call))
        )
        arrays = [a if a.flags.writeable else a.copy() for a in outputs.arrays]
        outputs = outputs._replace(arrays=arrays)
    if outputs is None:
        return None
    return batch.returned(outputs)
