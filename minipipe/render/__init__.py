"""Drawings of schedules and timelines, one or several above each other on a common time
axis.

Each format is one function of the schedules and timelines to draw. All formats share
the data of :mod:`minipipe.render.panel`, the texts of
:mod:`minipipe.render.descriptions` and the colours of :mod:`minipipe.render.palette`.
"""

from minipipe._lazy import names_on_demand

__getattr__, __dir__, __all__ = names_on_demand(__name__, __file__)
