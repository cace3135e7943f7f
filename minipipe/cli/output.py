"""Figures as data, and tables of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


def table(rows: Sequence[Sequence[str]], right: Iterable[int]) -> str:
    """Align columns; those in ``right`` to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    sides = [">" if i in set(right) else "<" for i in range(len(widths))]
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths)).rstrip() for row in rows
    )
