"""Profiler traces of pipelines, PyTorch's and others': the schedule that ran, its
measured timeline, its costs, and the time of other schedules with these costs.
"""

from minipipe.trace.forecast import Forecast, costs_of, forecasts
from minipipe.trace.runs import RecordedRun, read_run

__all__ = [
    "Forecast",
    "RecordedRun",
    "costs_of",
    "forecasts",
    "read_run",
]
