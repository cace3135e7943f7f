"""An array in both runs: the formats of its values, its difference, and roundings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from minipipe.referee.bounds import norm
from minipipe.referee.causes import repeated_rounding
from minipipe.referee.files import Name
from minipipe.referee.formats import FLOAT32, Format, format_of
from minipipe.referee.report import Difference

_SHORTEST = 0.1  # of the usual row: shorter ones may cancel


@dataclass(frozen=True)
class Pair:
    """An array in both runs.

    Attributes
    ----------
    name : Name
    a, b : array of any shape
    """

    name: Name
    a: np.ndarray
    b: np.ndarray

    @cached_property
    def formats(self) -> tuple[Format, Format]:
        """The coarsest formats that hold the values of A and of B."""
        return format_of(self.a), format_of(self.b)

    @property
    def grid(self) -> Format:
        """The coarser of both formats."""
        return min(self.formats, key=lambda each: each.digits)

    @property
    def is_coarse(self) -> bool:
        """Whether a run has fewer digits than float32."""
        return self.grid.digits < FLOAT32.digits

    @property
    def is_same(self) -> bool:
        """Whether both are equal."""
        return np.array_equal(self.a, self.b)

    @property
    def length(self) -> float:
        """The larger norm of both arrays."""
        return max(norm(self.a), norm(self.b))

    def difference(self, length: float, bound: float) -> Difference:
        """Return the difference, relative to a length, without a verdict."""
        size = 0.0
        if length:
            size = norm(self.b - self.a) / length
        name = self.name
        return Difference(str(name), name.step, name.microbatch, size, bound)

    def repeated(self, terms: Sequence[np.ndarray] = ()) -> str:
        """Return how the finer array must be rounded to give the coarser one, or
        nothing; see :func:`minipipe.referee.causes.repeated_rounding`.
        """
        if not self.is_coarse:
            return ""
        of_a, of_b = self.formats
        if of_a.digits < of_b.digits:
            return repeated_rounding(self.b, self.a, terms, of_a)
        return repeated_rounding(self.a, self.b, terms, of_b)

    def worst_row(self, length: float) -> tuple[float, str]:
        """Return the largest relative difference of a row, of any axis, and its place:
        a bug in one row of a large array changes the whole little.
        """
        worst = (0.0, "")
        a = self.a / length
        b = self.b / length
        for axis in range(a.ndim):
            others = tuple(each for each in range(a.ndim) if each != axis)
            off, *both = (np.square(each).sum(axis=others) for each in (b - a, a, b))
            squares = np.maximum(*both)
            squares = np.maximum(squares, _SHORTEST**2 / squares.size)
            sizes = np.sqrt(off / squares)
            index = int(np.argmax(sizes))
            worst = max(worst, (float(sizes[index]), f"row {index} of axis {axis}"))
        return worst
