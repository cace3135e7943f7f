"""Exercises as coursework: the student's copy and its grading. README.md says how they
work.
"""

from minipipe._lazy import names_on_demand

__getattr__, __dir__, __all__ = names_on_demand(__name__, __file__)
