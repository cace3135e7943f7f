"""Saving and resuming training: the public names of
:mod:`minipipe.pipeline.checkpoint`.
"""

from minipipe.hints import names_of
from minipipe.pipeline.checkpoint import (
    BackgroundSaver,
    Restored,
    export,
    load_weights,
    newest,
    restore,
    save,
)

__all__ = [
    "BackgroundSaver",
    "Restored",
    "export",
    "load_weights",
    "newest",
    "restore",
    "save",
]
__getattr__ = names_of(__name__, __all__)
