"""Schedules as data: actions, schedules, programs, their text format, and the builders
of the named schedules.

This package needs no NumPy. To add a schedule, write a function ``(num_ranks,
num_microbatches, …) -> Schedule`` and enter it in ``registry.py``. The names of
``analysis``, ``simulation`` and ``search`` are also available here. Names load on
demand.
"""

from minipipe._lazy import names_on_demand

# Importing a module later would hide the function of the same name, so these functions
# load first.
from minipipe.core.schedules.one_f_one_b import one_f_one_b
from minipipe.schedules.sequential import sequential

__getattr__, __dir__, __all__ = names_on_demand(__name__, __file__)
