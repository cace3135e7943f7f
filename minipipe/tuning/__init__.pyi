"""The public names of ``minipipe.tuning``, for type checkers and for ``minipipe._lazy``, one on a line."""

from minipipe.tuning.advising import advise as advise
from minipipe.tuning.layers import LayerCosts as LayerCosts
from minipipe.tuning.layers import MeasuredLayers as MeasuredLayers
from minipipe.tuning.measuring import balance as balance
from minipipe.tuning.measuring import measure_layers as measure_layers
from minipipe.tuning.memory import MemoryPrediction as MemoryPrediction
from minipipe.tuning.memory import RankMemory as RankMemory
from minipipe.tuning.report import Advice as Advice
from minipipe.tuning.stages import Messages as Messages
from minipipe.tuning.weighing import Candidate as Candidate
from minipipe.tuning.weighing import Choice as Choice
from minipipe.tuning.weighing import CostModel as CostModel
