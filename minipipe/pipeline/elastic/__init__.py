"""Training that continues after the loss of a rank, with the same bits as without a
loss.

In reading order: ``training`` (the loop, the copies, and why nothing is lost),
``vault`` (the copies of a rank's state, by the names of parameters), ``survivors`` (the
group of MPI processes that continues without the lost ones).
"""

from minipipe.pipeline.elastic.training import Trained, train

__all__ = ["Trained", "train"]
