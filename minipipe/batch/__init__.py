"""What goes into a step, and what comes out of it: samples, their loss, and what else was asked for."""

from minipipe.batch.division import split_microbatches
from minipipe.batch.loss import BatchLoss, PendingLoss
from minipipe.batch.samples import Microbatches, Replicated

__all__ = ["BatchLoss", "Microbatches", "PendingLoss", "Replicated", "split_microbatches"]
