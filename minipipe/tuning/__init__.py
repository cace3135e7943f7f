"""What a model costs, layer by layer, and which cut, schedule and number of microbatches suit it."""

from minipipe.tuning.advising import advise
from minipipe.tuning.balancing import balance
from minipipe.tuning.candidates import Candidate
from minipipe.tuning.cost_model import CostModel
from minipipe.tuning.layers import LayerCosts, MeasuredLayers
from minipipe.tuning.measuring import measure_layers
from minipipe.tuning.memory import MemoryPrediction, RankMemory
from minipipe.tuning.messages import Messages
from minipipe.tuning.report import Advice
from minipipe.tuning.weighing import Choice

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
