"""minipipe: pipeline-parallel training to learn from and to run.

A schedule is data: for each rank a list of actions, written by a pure function. The
verifier proves it legal, the simulator times it, the executor runs it on real ranks,
the renderer draws it, and a person reads it as text.

Public names are loaded on first access: schedules, their pictures and the command line
need no NumPy.
"""

from minipipe._lazy import names_on_demand

__getattr__, __dir__, __all__ = names_on_demand(__name__, __file__)
