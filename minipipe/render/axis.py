"""The axis of time: where a time is drawn, and the round times that are marked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from minipipe.render.lettering import text_width

__all__ = ["Axis"]

_TICK_SIZE = 11  # pixels, of the letters
_SHORTEST = 1e-300  # of any unit: below it divisions overflow, so it counts as nothing


@dataclass(frozen=True)
class Axis:
    """Time from left to right, from 0 at the start of what is drawn.

    Attributes
    ----------
    duration : float
        The longest time to be drawn, in the unit of the timelines.
    unit : str
        ``"s"`` or ``"units"``; seconds are marked in milliseconds.
    left, room : float
        Where time 0 stands, and how far the duration may reach from there, in pixels.

    Examples
    --------
    >>> axis = Axis(33.0, "units", left=60, room=840)
    >>> axis.scale, axis.x(33.0), axis.ticks
    (25, 885.0, ((0.0, '0'), (5.0, '5'), (10.0, '10'), (15.0, '15'), (20.0, '20'), (25.0, '25'), (30.0, '30')))
    """

    duration: float
    unit: str
    left: float
    room: float

    @cached_property
    def scale(self) -> float:
        """Pixels for each unit of time; a whole number where that costs little, so that edges are crisp."""
        if self.duration < _SHORTEST:
            return 0.0
        scale = self.room / self.duration
        is_near = self.unit != "s" and math.floor(scale) > 0.96 * scale
        return math.floor(scale) if is_near else scale

    @property
    def right(self) -> float:
        """Where the duration ends, in pixels."""
        return self.left + (self.duration * self.scale or self.room)

    def x(self, time: float) -> float:
        """Return where a time stands, in hundredths of a pixel, so that what meets in time meets in the picture."""
        return round(self.left + time * self.scale, 2)

    @property
    def unit_label(self) -> str:
        """The unit of the marks."""
        return "ms" if self.unit == "s" else self.unit

    @cached_property
    def ticks(self) -> tuple[tuple[float, str], ...]:
        """The round times, as many as there is room for, each with what is written there."""
        factor = 1000 if self.unit == "s" else 1
        shown = self.duration * factor
        if not self.scale:
            return ((0.0, "0"),)
        widest = text_width(f"{_round_step(shown / 10) * 9:.10g}", _TICK_SIZE)
        step = _round_step(shown / max(1, min(12, int(self.room / (widest + 28)))))
        marks = (i * step for i in range(math.floor(shown / step * (1 + 1e-12)) + 1))
        return tuple((mark / factor, f"{mark:.10g}") for mark in marks)


def _round_step(least: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
