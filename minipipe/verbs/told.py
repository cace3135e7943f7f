"""How answers are told: figures, names and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from minipipe.schedules import Schedule, Timeline

__all__ = ["after_name", "described", "figures", "sizes_as_data", "table"]


def sizes_as_data(schedule: Schedule) -> dict[str, Any]:
    """Return name and sizes, for machines."""
    return {
        "schedule": schedule.name,
        "num_ranks": schedule.num_ranks,
        "num_stages": schedule.num_stages,
        "num_microbatches": schedule.num_microbatches,
    }


def figures(schedule: Schedule, timeline: Timeline) -> dict[str, Any]:
    """Return sizes and figures, for machines."""
    return {
        **sizes_as_data(schedule),
        "makespan": timeline.makespan,
        "bubble_fraction": timeline.bubble_fraction,
        "bubble_over_ideal": timeline.bubble_over_ideal,
        "span_bubble_rate": timeline.span_bubble_rate,
        "peak_activations": list(timeline.peak_activations),
        "peak_memory": list(timeline.peak_memory or ()),
        "is_reproducible": schedule.is_reproducible,
    }


def described(schedule: Schedule) -> str:
    """Return name and sizes, for people."""
    counts = (schedule.num_ranks, schedule.num_stages, schedule.num_microbatches)
    parts = [f"{n} {noun}{'' if n == 1 else 's'}" for n, noun in zip(counts, ("rank", "stage"))]
    m = schedule.num_microbatches
    return f"{schedule.name}, {', '.join(parts)}, {m} microbatch{'' if m == 1 else 'es'}"


def after_name(timeline: Timeline) -> str:
    """Return a timeline's caption without the name."""
    return str(timeline).removeprefix(f"{timeline.name}: ")


def table(rows: Sequence[Sequence[str]], right: Iterable[int]) -> str:
    """Align columns; those in ``right`` to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    sides = [">" if i in set(right) else "<" for i in range(len(widths))]
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths)).rstrip() for row in rows
    )
