"""A logarithmic axis: the coordinate of an amount, and the round amounts to mark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple


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
    def over(cls, amounts: Iterable[float], start: float, end: float, floor: float = 0.0) -> LogAxis:
        """Return an axis for the amounts, with a little room beyond them; it begins at ``floor`` or above."""
        known = [max(amount, floor) for amount in amounts]
        room = 1.12 if max(known) < 8 * min(known) else 1.25
        return cls(max(min(known) / room, floor), max(known) * room, start, end)

    def at(self, amount: float) -> float:
        """Return the coordinate of an amount, to a hundredth of a pixel; what is beyond an end is drawn there."""
        inside = min(max(amount, self.least), self.most)
        share = math.log(inside / self.least) / math.log(self.most / self.least)
        return round(self.start + share * (self.end - self.start), 2)

    def powers_of_two(self) -> list[float]:
        """Return the powers of two on the axis."""
        first, last = math.ceil(math.log2(self.least)), math.floor(math.log2(self.most))
        return [2.0**power for power in range(first, last + 1)]

    def round_amounts(self, factors: Sequence[int] = (1, 2, 5)) -> list[float]:
        """Return the amounts on the axis that are a factor times a power of ten.

        Examples
        --------
        >>> LogAxis(0.03, 0.4, 0, 100).round_amounts()
        [0.05, 0.1, 0.2]
        """
        first, last = math.floor(math.log10(self.least)), math.floor(math.log10(self.most))
        marks = (float(f"{factor}e{power}") for power in range(first, last + 1) for factor in factors)
        return [mark for mark in marks if self.least <= mark <= self.most]
