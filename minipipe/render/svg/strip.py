"""The strip under a rank: the memory or the activations that it holds, over time."""

from __future__ import annotations

from dataclasses import dataclass

from minipipe.render.axis import Axis
from minipipe.render.descriptions import format_memory
from minipipe.render.lettering import number
from minipipe.render.panel import Panel
from minipipe.schedules.simulation.timeline import Timeline


@dataclass(frozen=True)
class Strip:
    """The memory or the activations that the ranks of a timeline hold.

    Attributes
    ----------
    curves : tuple of list of (float, float)
        ``curves[rank]`` is a curve of steps: (time, amount held).
    is_memory : bool
        Whether the amounts are bytes. Otherwise they count activations as the panel does.
    """

    curves: tuple[list[tuple[float, float]], ...]
    is_memory: bool

    @property
    def unit(self) -> str:
        """``"bytes"``, or ``"activations"`` for counts."""
        return "bytes" if self.is_memory else "activations"

    def peak(self, rank: int) -> float:
        """Return the peak of a rank."""
        return max((amount for _, amount in self.curves[rank]), default=0.0)

    def peak_label(self, rank: int) -> str:
        """Return the text beside the strip of a rank."""
        return f"peak {format_memory(self.peak(rank), self.unit)}"


def strip_of(panel: Panel) -> Strip:
    """Return the bytes that the ranks hold, if the timeline knows them, and otherwise their held activations.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> strip_of(Panel(simulate(schedules.gpipe(1, 1)))).curves
    ([(0.0, 1.0), (1.0, 1.0), (1.0, 1.0), (3.0, 0.0)],)
    """
    timeline, ranks = panel.timeline, range(panel.timeline.num_ranks)
    if timeline.memory is not None and timeline.memory_unit != "units":
        return Strip(tuple(map(timeline.memory_over_time, ranks)), is_memory=True)
    return Strip(tuple(map(panel.activations_over_time, ranks)), is_memory=False)


def strip_path(timeline: Timeline, strip: Strip, rank: int, axis: Axis, height: float, most: float) -> str:
    """Return the outline of a strip as path data: ``height`` pixels stand for ``most``, 0 is at the lower edge."""
    if not most:
        return ""
    heights: dict[str, str] = {}  # by x: of two changes at one x, only the later one is visible
    for time, level in strip.curves[rank]:
        heights[number(axis.x(time - timeline.start))] = number(height * (1 - level / most))
    bottom = drawn = number(height)
    path = []
    for x, y in heights.items():
        if y != drawn:
            path.append(f"H{x}V{y}")
        drawn = y
    return f"M{number(axis.left)} {bottom}{''.join(path)}V{bottom}" if path else ""
