"""What a model costs, layer by layer, and what follows before a step: a partition."""

from minipipe.profiling.balancing import balance
from minipipe.profiling.layers import LayerCosts, MeasuredLayers
from minipipe.profiling.measuring import measure_layers

__all__ = ["LayerCosts", "MeasuredLayers", "balance", "measure_layers"]
