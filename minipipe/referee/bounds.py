"""Bounds on the difference that the order of additions can make.

A sum of n terms, added in any order with unit roundoff u, has an error of at most
``(n - 1) u`` times the sum of the terms' absolute values; the errors of single
additions have random signs, so that ``8 sqrt(n) u`` holds with high probability. The
sum of absolute values is known if a run records its microbatches. Otherwise it is
estimated by the norm of the gradient: for terms of random signs it is ``sqrt(n)`` times
as large, and the partial sums are smaller than the sum, which cancels.

References
----------
N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, SIAM 2002,
sections 3.1 and 4.2.

N. J. Higham and T. Mary, "A new approach to probabilistic rounding error analysis",
SIAM Journal on Scientific Computing 41(5), 2019, theorem 2.4.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import numpy as np

from minipipe.referee.formats import FLOAT32, Format

# So many times the bound are needed for a bug: n is not known exactly.
DOUBT = 16.0
# The size by which a difference may grow in one step of training. Rounding differences
# grow exponentially; no step of a training that converges multiplies them by more.
GROWTH = 8.0
_CONFIDENCE = 8.0
TERMS = 4096  # of a sum, if their number is unknown


class Assumed(NamedTuple):
    """The assumptions of the bounds about both runs.

    Attributes
    ----------
    precision : Format, optional
        Of the arithmetic; by default the format of the arrays.
    terms : int
        Number of terms of a sum, such as the tokens of a batch.
    optimiser : str
        ``"sgd"``, ``"adam"`` for all that divide by the size of a gradient, or empty.
    """

    precision: Format | None
    terms: int
    optimiser: str

    def __str__(self) -> str:
        arithmetic = "the format of the arrays (state another one: precision)"
        if self.precision:
            arithmetic = self.precision.name
        terms = f"sums of {self.terms:,} terms (terms)"
        optimiser = self.optimiser or "unknown (state it: optimiser)"
        return f"arithmetic in {arithmetic}; {terms}; optimiser {optimiser}"

    def format_of(self, values: Format) -> Format:
        """Return the format in which both runs computed, by default the format of
        their values.
        """
        return self.precision or values

    def bound(self, arithmetic: Format) -> float:
        """Return the relative bound on a reordered sum of terms of random signs.

        Arithmetic below float32 accumulates in float32, as matrix units do, so that
        only the roundings of its inputs count.
        """
        if arithmetic.digits < FLOAT32.digits:
            return _CONFIDENCE * arithmetic.unit
        return _CONFIDENCE * sqrt(self.terms) * arithmetic.unit

    def of_losses(self, arithmetic: Format) -> float:
        """Return the relative bound on a mean of positive terms, which do not cancel;
        NumPy adds them in pairs, and others in blocks.
        """
        return max(2 * _CONFIDENCE, sqrt(self.terms)) * arithmetic.unit


def norm(*arrays: np.ndarray) -> float:
    """Return the norm of all elements together."""
    largest = max(float(np.abs(array).max(initial=0)) for array in arrays)
    if not 1e-100 < largest < 1e100 and largest:  # squares could leave the range
        return largest * norm(*(array / largest for array in arrays))
    return sqrt(sum(float(np.vdot(array, array)) for array in arrays))
