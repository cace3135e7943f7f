"""Causes of a difference that leave a trace: a rounding that can be repeated, and
microbatches that were added with other weights.

A coarse precision has wide bounds, within which a bug could hide. So a difference is
only put down to one if rounding the finer run in the same way gives the coarser run: all
but a few values to the bit, and those to the next number of the format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt

import numpy as np

from minipipe.referee.bounds import norm
from minipipe.referee.formats import Format

# The relative error of the finer run that is allowed. It moves about this part of the
# values, divided by 1.4 u, to a neighbour: 1 % of them for bfloat16.
_FINE = 5e-5
_SAME = 0.02  # spacings: a scaled sum is on the grid up to float32
_EXPLAINED = 0.95  # part of the squared difference
_SUM = 3e-5  # of the norm: rounding errors of a sum in float32
_CLOSE = 0.02  # of weights of microbatches


def repeated_rounding(
    fine: np.ndarray, coarse: np.ndarray, terms: Sequence[np.ndarray], grid: Format
) -> str:
    """Return how the finer run must be rounded to give the coarser one, or nothing.

    Parameters
    ----------
    fine, coarse : array of any shape
    terms : sequence of array
        The parts of microbatches whose sum ``fine`` is, up to a factor; may be empty.
    grid : Format
        The format of the values in ``coarse``.
    """
    most = max(1.0, _FINE / (1.4 * grid.unit) * fine.size)
    for words, predicted, scale in _predictions(fine, terms, grid):
        off = np.abs(predicted - coarse / scale) / grid.spacing(predicted)
        moved = int(np.count_nonzero(off > _SAME))
        if off.max() <= 1 + _SAME and moved <= most:
            equal = off.size - moved
            return f"{words} {grid.name} gives {equal} of {off.size} values to the bit"
    return ""


def _predictions(
    fine: np.ndarray, terms: Sequence[np.ndarray], grid: Format
) -> Iterator[tuple[str, np.ndarray, float]]:
    yield "storing the finer values in", grid.rounded(fine), 1.0
    scale = scale_of(fine, terms)
    if not scale:
        return
    rounded = [grid.rounded(term) for term in terms]
    for words, parts in (("", terms), (" rounded", rounded)):
        for order, chosen in (("first", parts), ("last", parts[::-1])):
            total = np.zeros_like(fine)
            for part in chosen:
                total = grid.rounded(total + part)
            yield f"adding the{words} microbatches from the {order} in", total, scale


def scale_of(total: np.ndarray, terms: Sequence[np.ndarray]) -> float:
    """Return the factor between the sum of the terms and a total: 1 for a sum, 1/m for
    a mean of m; 0 if the total is neither.
    """
    for scale in (1.0, 1 / max(1, len(terms))):
        if terms and norm(scale * sum(terms) - total) <= _SUM * norm(total):
            return scale
    return 0.0


def weights_of(
    total: np.ndarray, difference: np.ndarray, terms: Sequence[np.ndarray]
) -> list[float]:
    """Return the weights of the terms in the other run, relative to this one; a single
    weight if there are no terms, and none if weights do not explain the difference.

    Parameters
    ----------
    total, difference : array of shape (values,)
    terms : sequence of array of shape (values,)
    """
    scale = scale_of(total, terms)
    basis = [scale * term for term in terms]
    if not scale:
        basis = [total]
    if difference.size < 8 * len(basis):
        return []
    weights, *_ = np.linalg.lstsq(np.stack(basis, axis=1), difference)
    rest = difference - sum(w * term for w, term in zip(weights, basis))
    if norm(rest) > sqrt(1 - _EXPLAINED) * norm(difference):
        return []
    return [1 + float(weight) for weight in weights]


def described_weights(weights: Sequence[float], numbers: Sequence[int]) -> str:
    """Return a sentence on the weights of microbatches in B, relative to A."""
    largest = max(map(abs, weights))
    change = max(abs(weight - 1) for weight in weights)
    if max(weights) - min(weights) <= _CLOSE * change:
        factor = f"{np.mean(weights):.6g}"
        if factor == "1":
            factor = f"1 {np.mean(weights) - 1:+.2g}"
        return f"B is {factor} times A: its loss or gradient is scaled"
    absent = []
    for number, weight in zip(numbers, weights):
        if abs(weight) <= _CLOSE * largest:
            absent.append(str(number))
    if absent:
        return f"microbatch {', '.join(absent)} is missing in B"
    listed = ", ".join(f"{weight:.5g}" for weight in weights)
    reason = "such as a mean of means over unequal numbers of tokens"
    return f"B weighs the microbatches by {listed} of A's weights, {reason}"
