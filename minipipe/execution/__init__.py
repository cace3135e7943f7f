"""One rank's part of a step: inputs, layers, computations and results."""

from minipipe.execution.objective import BatchLoss, PendingLoss
from minipipe.execution.samples import Microbatches, Replicated, split_microbatches

__all__ = [
    "BatchLoss",
    "Microbatches",
    "PendingLoss",
    "Replicated",
    "split_microbatches",
]
