"""What a model costs, layer by layer, and what follows before a step: a partition, and the memory of each rank."""

from minipipe.profiling.balancing import balance
from minipipe.profiling.layers import LayerCosts, MeasuredLayers
from minipipe.profiling.measuring import measure_layers
from minipipe.profiling.memory import MemoryPrediction, RankMemory

__all__ = ["LayerCosts", "MeasuredLayers", "MemoryPrediction", "RankMemory", "balance", "measure_layers"]
