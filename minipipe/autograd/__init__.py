"""The engine: a graph of results, and the walk back through it that gives gradients
(README.md).
"""

from minipipe.core.autograd.graph import Leaf, Node, StageInput
from minipipe.core.autograd.split import WeightWork, backward_input
from minipipe.core.autograd.walk import backward
from minipipe.hints import names_of

__all__ = ["Leaf", "Node", "StageInput", "WeightWork", "backward", "backward_input"]
__getattr__ = names_of(__name__, __all__)
