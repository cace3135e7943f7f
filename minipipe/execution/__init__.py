"""One rank's part of a step: inputs, layers, computations and results."""

from minipipe._lazy import names_on_demand

__getattr__, __dir__, __all__ = names_on_demand(__name__, __file__)
