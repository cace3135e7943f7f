"""One rank's part of a step: what goes in, which layers are here, what runs, and what comes out."""

from minipipe.execution.objective import BatchLoss, PendingLoss
from minipipe.execution.samples import Microbatches, Replicated, split_microbatches

__all__ = ["BatchLoss", "Microbatches", "PendingLoss", "Replicated", "split_microbatches"]
