"""Ranks and messages: one rank, threads of this process, or MPI."""

from minipipe._lazy import names_on_demand

__getattr__, __dir__, __all__ = names_on_demand(__name__, __file__)
