"""Measured costs of a model, layer by layer, and the partition, schedule and
microbatches that suit it.
"""

from minipipe._lazy import names_on_demand

__getattr__, __dir__, __all__ = names_on_demand(__name__, __file__)
