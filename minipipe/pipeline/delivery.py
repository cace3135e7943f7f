"""What a call gives back: from the rank of the last stage to the others."""

from __future__ import annotations

from typing import Any

from minipipe.batch import BatchLoss, PendingLoss
from minipipe.batch.joining import joined, returned
from minipipe.batch.samples import Samples
from minipipe.comm import ProcessGroup
from minipipe.pipeline.consistency import part_of
from minipipe.pipeline.microbatch import Batch
from minipipe.pipeline.payload import Payload


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


def deliver_loss(group: ProcessGroup, root: int, batch: Batch) -> PendingLoss:
    """Begin to give the loss of a batch to every rank, and its outputs to those that are to have them.

    Collective; parameters are those of :func:`deliver_outputs`.
    """
    outputs = deliver_outputs(group, root, batch)
    numbers = batch.objective.numbers() if group.rank == root else None
    request = group.ibroadcast(numbers, root, step=batch.step, what=part_of(batch.call))
    num_microbatches, metrics = len(batch.slices), list(batch.objective.metrics)

    def receive() -> BatchLoss:
        return BatchLoss.read(request.wait().tolist(), num_microbatches, metrics, outputs)

    return PendingLoss(receive, batch.training_step + 1)
