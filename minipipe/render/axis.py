"""The time axis: the x coordinate of a time, and the round times to mark."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from minipipe.render.lettering import text_width

_SHORTEST = 1e-300  # of any unit: below it, divisions overflow, so that such a duration counts as 0


@dataclass(frozen=True)
class Axis:
    """Time from left to right, from 0 at the start of each timeline.

    Attributes
    ----------
    duration : float
        The longest makespan, in the unit of the timelines.
    unit : str
        ``"s"`` or ``"units"``; seconds are marked in milliseconds.
    left, room : float
        The x coordinate of time 0, and the width available for the duration, in pixels.
    tick_size : float
        The font size of the marks, in pixels.

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
    tick_size: float = 11.0

    @cached_property
    def scale(self) -> float:
        """Pixels per unit of time, rounded down to a whole number if that costs little, so that edges are crisp."""
        if self.duration < _SHORTEST:
            return 0.0
        scale = self.room / self.duration
        is_near = self.unit != "s" and math.floor(scale) > 0.96 * scale
        return math.floor(scale) if is_near else scale

    @property
    def right(self) -> float:
        """The x coordinate of the end of the duration, in pixels."""
        return self.left + (self.duration * self.scale or self.room)

    def x(self, time: float) -> float:
        """Return the x coordinate of a time, rounded to a hundredth of a pixel: equal times have equal coordinates."""
        return round(self.left + time * self.scale, 2)

    @property
    def unit_label(self) -> str:
        """The unit of the marks."""
        return "ms" if self.unit == "s" else self.unit

    @cached_property
    def ticks(self) -> tuple[tuple[float, str], ...]:
        """The round times, as many as fit, each with its label."""
        factor = 1000 if self.unit == "s" else 1
        length = self.duration * factor
        if not self.scale:
            return ((0.0, "0"),)
        widest = text_width(f"{_round_step(length / 10) * 9:.10g}", self.tick_size)
        step = _round_step(length / max(1, min(12, int(self.room / (widest + 2.5 * self.tick_size)))))
        marks = (i * step for i in range(math.floor(length / step * (1 + 1e-12)) + 1))
        return tuple((mark / factor, f"{mark:.10g}") for mark in marks)


def _round_step(least: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
