"""The engine: a graph of results, and the walk back through it that gives gradients.

Read ``graph`` and ``walk`` first: they are the whole idea. ``split`` takes the walk in two halves, and ``recompute``
records a part of the graph only when the walk comes to it. ``watch`` finds arrays that were changed in place;
``memory`` measures what a graph holds. ``grad_mode`` says whether a graph is recorded, ``random_key`` from which key
random numbers are drawn.
"""

from minipipe.autograd.graph import Leaf, Node, StageInput
from minipipe.autograd.split import WeightWork, backward_input
from minipipe.autograd.walk import backward

__all__ = ["Leaf", "Node", "StageInput", "WeightWork", "backward", "backward_input"]
