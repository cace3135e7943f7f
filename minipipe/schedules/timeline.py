"""A timeline: who did what, and when. What is predicted and what is measured are of this one type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from minipipe.schedules.action import Action

__all__ = ["Span", "Timeline"]


class Span(NamedTuple):
    """One action with its start and end, in the unit of its timeline."""

    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """What every rank did, and when.

    Attributes
    ----------
    name : str
        The schedule's name.
    spans : tuple of tuple of Span
        ``spans[rank]``, in the order in which they ran. The first start of all ranks is 0.
    peak_activations : tuple of int
        By rank: the most (stage, microbatch) pairs whose activations were held at once.
    peak_bytes : tuple of int or None
        By rank: the most bytes that they took, where that was measured.
    unit : str
        ``"s"`` for seconds, ``"units"`` for those of the costs.
    note : str
        What to keep in mind when reading the times.
    """

    name: str
    spans: tuple[tuple[Span, ...], ...]
    peak_activations: tuple[int, ...]
    peak_bytes: tuple[int, ...] | None = None
    unit: str = "units"
    note: str = ""

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return len(self.spans)

    @property
    def makespan(self) -> float:
        """From the first start to the last end of all ranks."""
        starts = [row[0].start for row in self.spans if row]
        ends = [span.end for row in self.spans for span in row]
        return max(ends, default=0.0) - min(starts, default=0.0)

    def busy(self, rank: int) -> float:
        """Return the time that a rank spent computing."""
        return sum(span.end - span.start for span in self.spans[rank])

    @property
    def bubble_fraction(self) -> float:
        """Idle time over all time: idle / (num_ranks * makespan). GPipe and 1F1B give (p-1)/(m+p-1)."""
        available = self.num_ranks * self.makespan
        return 1 - sum(map(self.busy, range(self.num_ranks))) / available if available else 0.0

    def __str__(self) -> str:
        peak = ", ".join(map(str, self.peak_activations))
        makespan = f"{1000 * self.makespan:.4g} ms" if self.unit == "s" else f"{self.makespan:.6g} {self.unit}"
        return (
            f"{self.name}: makespan {makespan}, bubble {100 * self.bubble_fraction:.1f} %, "
            f"peak activations by rank {peak}"
        )
