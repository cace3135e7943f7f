"""Figures as data, and tables of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minipipe.schedules.action_table import ActionTable
from minipipe.schedules.simulation.comparison import Gap
from minipipe.schedules.simulation.timeline import Timeline

_FIGURES = (
    "makespan",
    "bubble_fraction",
    "bubble_over_ideal",
    "span_bubble_rate",
    "peak_activations",
    "peak_memory",
)


def gaps_as_data(gaps: Sequence[Gap]) -> dict[str, Any]:
    """Return the bounds on makespan and longest own span, and the gaps, for machines; None where there are none."""
    makespan, span = gaps or (None, None)
    return {
        "bound": makespan and makespan.bound.value,
        "gap": makespan and makespan.relative,
        "bound_by": makespan and makespan.bound.name,
        "bound_reason": makespan and makespan.bound.reason,
        "span_bound": span and span.bound.value,
        "span_gap": span and span.relative,
    }


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
