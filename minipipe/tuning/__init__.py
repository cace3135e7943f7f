"""What a model costs, layer by layer, and which cut, schedule and number of microbatches suit it."""

from minipipe.tuning.advising import advise
from minipipe.tuning.cost_model import CostModel, Messages
from minipipe.tuning.layers import LayerCosts, MeasuredLayers, MemoryPrediction, RankMemory
from minipipe.tuning.measuring import balance, measure_layers
from minipipe.tuning.report import Advice
from minipipe.tuning.weighing import Candidate, Choice

__all__ = [
    "Advice",
    "Candidate",
    "Choice",
    "CostModel",
    "LayerCosts",
    "MeasuredLayers",
    "MemoryPrediction",
    "Messages",
    "RankMemory",
    "advise",
    "balance",
    "measure_layers",
]
