"""Formats of numbers: which grid the values of an array lie on, and rounding to it.

The analysis computes in float64, which holds the values of any smaller format.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Fewer values may lie on a coarse grid by chance. A random float32 is on the grid of
# bfloat16 with probability 2**-16.
_FEWEST = 4


class Format(NamedTuple):
    """A binary format of floating-point numbers.

    Attributes
    ----------
    name : str
    digits : int
        Significant binary digits, the hidden one included.
    least : int
        Exponent of the smallest normal number.
    """

    name: str
    digits: int
    least: int

    @property
    def unit(self) -> float:
        """Unit roundoff: the largest relative error of one rounding to nearest."""
        return 2.0**-self.digits

    def spacing(self, values: np.ndarray) -> np.ndarray:
        """Return the distance of neighbouring numbers of the format at each value."""
        _, exponents = np.frexp(values)
        return np.ldexp(1.0, np.maximum(exponents - 1, self.least) - self.digits + 1)

    def rounded(self, values: np.ndarray) -> np.ndarray:
        """Return values rounded to the nearest number of the format, ties to even."""
        if self.digits >= FLOAT64.digits:
            return values
        spacing = self.spacing(values)
        return np.rint(values / spacing) * spacing


FLOAT64 = Format("float64", 53, -1022)
FLOAT32 = Format("float32", 24, -126)
FLOAT16 = Format("float16", 11, -14)
BFLOAT16 = Format("bfloat16", 8, -126)
FORMATS = {each.name: each for each in (BFLOAT16, FLOAT16, FLOAT32, FLOAT64)}


def format_of(values: np.ndarray) -> Format:
    """Return the coarsest format that holds all values; float32 and float64 only if
    there are few of them.
    """
    nonzero = values[values != 0]
    coarse: tuple[Format, ...] = (BFLOAT16, FLOAT16, FLOAT32)
    if nonzero.size < _FEWEST:
        coarse = (FLOAT32,)
    for each in coarse:
        if np.array_equal(each.rounded(nonzero), nonzero):
            return each
    return FLOAT64


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """Return the values of bfloat16 numbers, from their 16 bits: NumPy stores them in
    a file without their type.
    """
    return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
