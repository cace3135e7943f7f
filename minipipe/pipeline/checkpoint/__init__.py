"""Checkpoints: the complete state of training, in files that any number of ranks can
read.

In reading order: ``storage`` (files and their format), ``state`` (of a pipeline and its
optimisers, by name), ``manifest`` (the description of a checkpoint), ``saving``,
``restoring``, and ``exporting`` (the model alone, for other programs).
"""

from minipipe.pipeline.checkpoint.exporting import export, load_weights
from minipipe.pipeline.checkpoint.restoring import Restored, newest, restore
from minipipe.pipeline.checkpoint.saving import BackgroundSaver, save

__all__ = [
    "BackgroundSaver",
    "Restored",
    "export",
    "load_weights",
    "newest",
    "restore",
    "save",
]
