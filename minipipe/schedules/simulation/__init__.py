"""When the actions of a schedule run: costs, the simulator, timelines and their
explanation. No NumPy.

Files of these packages import from each other. Everywhere else, public names come from
:mod:`minipipe.schedules`.
"""

__all__: list[str] = []
