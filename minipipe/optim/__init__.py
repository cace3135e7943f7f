"""Optimisers, learning rates and loss scales that change, and clipping: the update
after each step. No messages.
"""

from minipipe._lazy import names_on_demand

__getattr__, __dir__, __all__ = names_on_demand(__name__, __file__)
