"""Figures as data, and tables of text."""

from __future__ import annotations

from typing import Any

from minipipe.schedules.action_table import ActionTable
from minipipe.simulation.timeline import Timeline

_FIGURES = (
    "makespan",
    "bubble_fraction",
    "bubble_over_ideal",
    "span_bubble_rate",
    "peak_activations",
    "peak_memory",
)


def sizes_as_data(schedule: ActionTable) -> dict[str, Any]:
    """Return name and sizes, for machines."""
    return {
        "schedule": schedule.name,
        "num_ranks": schedule.num_ranks,
        "num_stages": schedule.num_stages,
        "num_microbatches": schedule.num_microbatches,
    }


def figures(schedule: ActionTable, timeline: Timeline) -> dict[str, Any]:
    """Return sizes and figures, for machines."""
    summary = timeline.summary()
    return {
        **sizes_as_data(schedule),
        **{name: summary[name] for name in _FIGURES},
        "is_reproducible": schedule.is_reproducible,
    }
