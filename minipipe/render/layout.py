"""Coordinates in a picture: the width of text, its line breaks, and axes for times and
for amounts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from unicodedata import combining

from minipipe.render.units import round_step, scale_of

# Widths in units of the font size, of DejaVu Sans: the widest of the sans-serif fonts
# that browsers fall back on.
_WIDTHS = {
    **dict.fromkeys("ijl'|", 0.34),
    **dict.fromkeys(" .,:;fIJt/\\", 0.4),
    **dict.fromkeys("r()[]-!", 0.46),
    **dict.fromkeys("szc?_", 0.56),
    **dict.fromkeys("FLvxyk*", 0.6),
    **dict.fromkeys("0123456789abdeghnopquETPY$", 0.64),
    **dict.fromkeys("ABCKRSVXZ", 0.7),
    **dict.fromkeys("DGHNOQUw&+<=>~#", 0.84),
    **dict.fromkeys("mMW%@", 1.0),
}


def text_width(text: str, size: float) -> float:
    """Return an upper estimate of the width of a text, in the unit of its font size.

    Examples
    --------
    >>> round(text_width("F3", 10), 2)
    12.4
    """
    return size * sum(map(_width, text))


def _width(character: str) -> float:
    if combining(character):
        return 0.0
    return _WIDTHS.get(character, 1.0)


def wrapped(text: str, size: float, width: float) -> list[str]:
    """Break a text into lines, between words where possible.

    Examples
    --------
    >>> wrapped("a makespan of 33 units", 10, 90)
    ['a makespan of', '33 units']
    """
    lines = [""]
    for word in _words(text, size, width):
        longer = f"{lines[-1]} {word}".lstrip()
        if text_width(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _words(text: str, size: float, width: float) -> Iterator[str]:
    """Yield the words of a text; words wider than a line come in pieces."""
    most = max(1, int(width / size))  # no character is wider than the size of its font
    for word in text.split():
        while text_width(word, size) > width and len(word) > most:
            yield word[:most]
            word = word[most:]
        yield word


def number(value: float) -> str:
    """Write a coordinate to a hundredth of a pixel, without trailing zeros.

    Examples
    --------
    >>> number(3.0), number(12.345678), number(-0.001)
    ('3', '12.35', '0')
    """
    digits = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if digits == "-0" else digits


# In any unit. Divisions by a shorter duration overflow, so it counts as 0.
_SHORTEST = 1e-300


@dataclass(frozen=True)
class Axis:
    """Time from left to right, from 0 at the start of each timeline.

    Attributes
    ----------
    duration : float
        The longest makespan, in the unit of the timelines.
    unit : str
        ``"s"`` or ``"units"``; seconds are marked in milliseconds.
    left, width : float
        The x coordinate of time 0, and the width available for the duration, in pixels.
    tick_size : float
        The font size of the marks, in pixels.

    Examples
    --------
    >>> axis = Axis(33.0, "units", left=60, width=840)
    >>> axis.scale, axis.x(33.0), axis.ticks
    (25, 885.0, ((0.0, '0'), (5.0, '5'), (10.0, '10'), (15.0, '15'), (20.0, '20'), (25.0, '25'), (30.0, '30')))
    """

    duration: float
    unit: str
    left: float
    width: float
    tick_size: float = 11.0

    @cached_property
    def scale(self) -> float:
        """Pixels per unit of time, rounded down to a whole number if that costs little,
        so that edges are crisp.
        """
        if self.duration < _SHORTEST:
            return 0.0
        scale = self.width / self.duration
        whole = math.floor(scale)
        if self.unit != "s" and whole > 0.96 * scale:
            return whole
        return scale

    @property
    def right(self) -> float:
        """The x coordinate of the end of the duration, in pixels."""
        return self.left + (self.duration * self.scale or self.width)

    def x(self, time: float) -> float:
        """Return the x coordinate of a time, rounded to a hundredth of a pixel: equal
        times have equal coordinates.
        """
        return round(self.left + time * self.scale, 2)

    @cached_property
    def ticks(self) -> tuple[tuple[float, str], ...]:
        """The round times that fit, each with its label."""
        factor, _ = scale_of(self.unit)
        length = self.duration * factor
        if not self.scale:
            return ((0.0, "0"),)
        widest = text_width(f"{round_step(length / 10) * 9:.10g}", self.tick_size)
        fitting = int(self.width / (widest + 2.5 * self.tick_size))
        step = round_step(length / max(1, min(12, fitting)))
        count = math.floor(length / step * (1 + 1e-12)) + 1
        marks = (i * step for i in range(count))
        return tuple((mark / factor, f"{mark:.10g}") for mark in marks)


class LogAxis(NamedTuple):
    """Amounts along a line, on which equal ratios have equal lengths.

    Attributes
    ----------
    least, most : float
        The amounts at the ends, above 0.
    start, end : float
        The coordinates of the ends, in pixels.

    Examples
    --------
    >>> axis = LogAxis(1, 16, start=0, end=400)
    >>> axis.at(2), axis.at(4), axis.at(0.1), axis.powers_of_two()
    (100.0, 200.0, 0.0, [1.0, 2.0, 4.0, 8.0, 16.0])
    """

    least: float
    most: float
    start: float
    end: float

    @classmethod
    def over(
        cls, amounts: Iterable[float], start: float, end: float, minimum: float = 0.0
    ) -> LogAxis:
        """Return an axis for the amounts, with a small margin beyond them; it begins at
        ``minimum`` or above.
        """
        known = [max(amount, minimum) for amount in amounts]
        least = min(known)
        most = max(known)
        margin = 1.25
        if most < 8 * least:
            margin = 1.12
        return cls(max(least / margin, minimum), most * margin, start, end)

    def at(self, amount: float) -> float:
        """Return the coordinate of an amount, to a hundredth of a pixel; amounts beyond
        an end are drawn at the end.
        """
        inside = min(max(amount, self.least), self.most)
        part = math.log(inside / self.least) / math.log(self.most / self.least)
        return round(self.start + part * (self.end - self.start), 2)

    def powers_of_two(self) -> list[float]:
        """Return the powers of two on the axis."""
        first = math.ceil(math.log2(self.least))
        last = math.floor(math.log2(self.most))
        return [2.0**power for power in range(first, last + 1)]

    def round_amounts(self, factors: Sequence[int] = (1, 2, 5)) -> list[float]:
        """Return the amounts on the axis that are a factor times a power of ten.

        Examples
        --------
        >>> LogAxis(0.03, 0.4, 0, 100).round_amounts()
        [0.05, 0.1, 0.2]
        """
        first = math.floor(math.log10(self.least))
        last = math.floor(math.log10(self.most))
        marks = (
            float(f"{factor}e{power}")
            for power in range(first, last + 1)
            for factor in factors
        )
        return [mark for mark in marks if self.least <= mark <= self.most]
