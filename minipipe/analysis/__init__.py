"""What follows from a schedule: dependencies, activations held, legality, lowering, closed forms. No NumPy.

``dependencies`` says who produces what for whom, ``activations`` what a rank holds; everything else asks these two.
"""

from minipipe.analysis import theory
from minipipe.analysis.activations import peak_activations
from minipipe.analysis.dependencies import Dependencies, Direction, Value
from minipipe.analysis.lowering import lower
from minipipe.analysis.tick_grid import tick_grid
from minipipe.analysis.verifier import verify

__all__ = ["Dependencies", "Direction", "Value", "lower", "peak_activations", "theory", "tick_grid", "verify"]
