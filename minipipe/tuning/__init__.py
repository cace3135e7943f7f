"""What a model costs, layer by layer, and which cut, schedule and number of microbatches suit it."""

from minipipe._lazy import names_on_demand

__getattr__, __dir__, __all__ = names_on_demand(__name__, __file__)
