"""A model partitioned into stages, and the executor that runs a schedule on it."""

from minipipe.core.execution.stage import Stage
from minipipe.execution.plan import Plan
from minipipe.hints import names_of
from minipipe.pipeline.pipeline import Pipeline

__all__ = ["Pipeline", "Plan", "Stage"]
__getattr__ = names_of(__name__, __all__)
