"""A model cut into stages, and the executor that runs a schedule on it."""

from minipipe.execution.plan import Plan
from minipipe.execution.stage import Stage
from minipipe.pipeline.pipeline import Pipeline

__all__ = ["Pipeline", "Plan", "Stage"]
