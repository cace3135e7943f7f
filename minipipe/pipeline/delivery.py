"""What a call gives back: from the rank of the last stage to the others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from minipipe.comm import ProcessGroup
from minipipe.execution import BatchLoss, PendingLoss
from minipipe.execution.checks import part_of
from minipipe.execution.joining import joined, returned
from minipipe.execution.microbatch import Batch
from minipipe.execution.payload import Payload
from minipipe.execution.samples import Samples


class Check(Protocol):
    """What looks at a loss and at the findings of all ranks: ``execution/checks/finite.py``."""

    @property
    def findings(self) -> tuple[float, ...]:
        """What this rank has found."""

    def judge(self, loss: BatchLoss, findings: Sequence[Sequence[float]]) -> None:
        """Look at the loss, and at what all ranks have found, by rank."""


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
    kept = batch.objective.outputs
    found = joined([kept[k] for k in sorted(kept)], batch.slices, batch.is_cut) if kept else None
    if batch.objective.where == "everywhere":
        # As if gradients of all were wanted: then a single array of real numbers travels as it is.
        message = None if found is None else Payload(found.arrays, [True] * len(found.arrays), found.form).to_message()
        payload = Payload.from_message(group.broadcast(message, root, what=part_of(batch.call)))
        found = Samples([a if a.flags.writeable else a.copy() for a in payload.arrays], payload.form)
    return None if found is None else returned(found, batch.is_cut)


def deliver_loss(group: ProcessGroup, root: int, batch: Batch, check: Check | None = None) -> PendingLoss:
    """Begin to give the loss of a batch to every rank, and its outputs to those that are to have them.

    Collective; parameters are those of :func:`deliver_outputs`, and what looks at the loss once it is there. Of that
    each rank tells its findings to each other rank: those of the root come with the loss. So the rank that ends last,
    on which all others wait, finds the findings of all others there already.
    """
    outputs = deliver_outputs(group, root, batch)
    own = () if check is None else check.findings
    numbers = batch.objective.numbers(*own) if group.rank == root else None
    tell = partial(group.ibroadcast, step=batch.step, what=part_of(batch.call))
    request = tell(numbers, root)
    others = [rank for rank in range(group.size) if rank != root] if own else []
    told = [tell(np.array(own) if rank == group.rank else None, rank) for rank in others]

    def receive() -> BatchLoss:
        numbers = request.wait().tolist()
        loss = BatchLoss.read(numbers, len(batch.slices), list(batch.objective.metrics), outputs)
        if check is not None:
            findings = [one.wait().tolist() for one in told]
            findings.insert(root, numbers[-len(own) :])
            check.judge(loss, findings)
        return loss

    return PendingLoss(receive, batch.training_step + 1)
