"""Training that survives the loss of a rank: the public names of
:mod:`minipipe.pipeline.elastic`.
"""

from minipipe.hints import names_of
from minipipe.pipeline.elastic import Trained, train

__all__ = ["Trained", "train"]
__getattr__ = names_of(__name__, __all__)
