"""When the actions of a schedule run: costs, the simulator, timelines and their explanation. No NumPy.

Import from the files; public names can also be called from :mod:`minipipe.schedules`.
"""

__all__: list[str] = []
