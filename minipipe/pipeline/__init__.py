"""A model cut into stages, and the executor that runs a schedule on it."""

from minipipe.pipeline.pipeline import Pipeline
from minipipe.pipeline.plan import Plan
from minipipe.pipeline.stage import Stage

__all__ = ["Pipeline", "Plan", "Stage"]
