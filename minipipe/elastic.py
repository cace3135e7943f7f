"""Training that survives the loss of a rank: the public names of :mod:`minipipe.pipeline.elastic`."""

from minipipe.pipeline.elastic import Trained, train

__all__ = ["Trained", "train"]
