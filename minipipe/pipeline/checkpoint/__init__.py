"""Checkpoints: all that the next steps depend on, in files that any number of ranks can read.

The room in the order of its imports: ``storage`` (files, and nothing else) · ``manifest`` (what a checkpoint says of
itself) · ``state`` (what of a pipeline and its optimisers goes into one, and back) · ``tensors`` (arrays as a file) ·
``exchange`` (JSON between ranks) · ``saving`` and ``restoring`` · ``weights`` (the model alone, for other programs).
"""

from minipipe.pipeline.checkpoint.restoring import Restored, export, load_weights, newest, restore
from minipipe.pipeline.checkpoint.saving import BackgroundSaver, save

__all__ = ["BackgroundSaver", "Restored", "export", "load_weights", "newest", "restore", "save"]
