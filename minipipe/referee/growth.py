"""The class of the difference of two loss curves.

Rounding errors begin at the unit roundoff and grow exponentially, because training is
chaotic; an error of an update begins at its size times the change of the loss. So the
curves are compared while the difference is small: no step may multiply it by more than
``GROWTH``, and it must stay a small part of what training has changed so far.

References
----------
E. N. Lorenz, "Deterministic nonperiodic flow", Journal of the Atmospheric Sciences 20,
1963: exponential growth of small differences.
"""

from __future__ import annotations

from math import exp, inf, log2, sqrt

import numpy as np

from minipipe.errors import counted
from minipipe.referee.bounds import DOUBT, GROWTH, Assumed
from minipipe.referee.formats import FLOAT32, FLOAT64, Format
from minipipe.referee.judging import GRADIENTS, SEEDS
from minipipe.referee.pairs import Pair
from minipipe.referee.report import Difference, Verdict

# So large a part of all updates, or of a single one, may be wrong without being noticed.
_VISIBLE = 0.01
_VISIBLE_ONCE = 5e-5
_EARLY = 10  # steps that decide whether updates are right
_FEWEST = 16  # losses that show a rounding: few would agree by chance
_FEWEST_STEPS = 5  # that tell progress from differences between batches
_QUIET = 2  # unit roundoffs: the least that a loss may differ by


def judge_losses(
    pair: Pair, assumed: Assumed, spread: np.ndarray | None, usual: Format = FLOAT32
) -> Difference:
    """Return the difference of two loss curves, at the step that decides.

    Parameters
    ----------
    pair : Pair
        Of arrays of shape (steps,). Steps count from 1.
    assumed : Assumed
    spread : array of shape (steps,), optional
        The relative difference between repetitions of a run.
    usual : Format
        The format of the arithmetic, if none is stated. Losses are often sums in
        float64 of numbers that were computed in float32.
    """
    formats = (*pair.formats, _decimals(pair.a), _decimals(pair.b))
    grid = min(formats, key=lambda each: each.digits)
    sizes = np.abs(pair.b - pair.a)
    sizes /= np.maximum(np.maximum(np.abs(pair.a), np.abs(pair.b)), 1e-300)
    before = np.concatenate([[0.0], np.maximum.accumulate(sizes)[:-1]])
    if pair.is_same:
        return pair.difference(0.0, grid.unit)
    if grid.digits < FLOAT32.digits:
        bounds = np.maximum(before, grid.unit)
        return _of_coarse(pair, _at(pair, sizes, bounds), grid)
    arithmetic = assumed.precision or usual
    quiet = _QUIET * arithmetic.unit
    start = assumed.of_losses(arithmetic)
    bounds = GROWTH * np.maximum(before, quiet)
    bounds[0] = start
    if spread is not None:
        bounds = GROWTH * np.maximum(np.maximum.accumulate(spread), quiet)
        if spread[0] > _VISIBLE:
            where = f"repetitions differ by {spread[0]:.1e} of the loss of step 1"
            found = _at(pair, sizes, bounds, 0)
            return found.judged((True, Verdict.CANNOT_TELL, where, SEEDS))
    beyond = np.flatnonzero(sizes > bounds)
    if not beyond.size:
        found = _at(pair, sizes, bounds)
        return _of_near(pair.a, found, sizes, before, arithmetic.unit)
    # a later step may show more clearly that the curves part
    surely = np.flatnonzero(sizes > DOUBT * np.maximum(bounds, start))
    step = int(beyond[0])
    if surely.size and surely[0] <= step + 1:
        step = int(surely[0])
    found = _at(pair, sizes, bounds, step)
    where = f"{found.size:.1e} of the loss, rounding errors explain {found.bound:.1e}"
    if step:
        where += f" after {before[step]:.1e} in the steps before"
    doubt = DOUBT * max(1.0, start / found.bound)
    return found.judged(*found.by_size(where, GRADIENTS, doubt))


def _at(
    pair: Pair, sizes: np.ndarray, bounds: np.ndarray, step: int | None = None
) -> Difference:
    """Return the difference at a step, by default at the one closest to its bound."""
    if step is None:
        step = int(np.argmax(sizes / bounds))
    numbers = (float(sizes[step]), float(bounds[step]))
    return Difference(str(pair.name), step + 1, -1, *numbers)


def _of_coarse(pair: Pair, found: Difference, grid: Format) -> Difference:
    """Judge curves of which one, or both, were stored with few digits."""
    of_a, of_b = pair.formats
    words = ""
    if of_a != of_b and len(pair.a) >= _FEWEST:
        words = pair.repeated()
    where = f"{found.size:.1e} of the loss, a digit of {grid.name} is {grid.unit:.1e}"
    missing = f"losses in float32 instead of {grid.name}, or {GRADIENTS}"
    by_size = found.by_size(where, missing, is_blind=True)
    return found.judged((words, Verdict.ROUNDING, words), *by_size)


def _of_near(
    a: np.ndarray,
    found: Difference,
    sizes: np.ndarray,
    before: np.ndarray,
    unit: float,
) -> Difference:
    """Judge curves that part slowly: is an error of the updates excluded?"""
    progress = _progress(a)
    visible = np.maximum(sizes, unit)  # even if by chance the same numbers were rounded
    jumps = np.maximum(sizes - 2 * before, unit)
    part = inf
    once = inf
    if progress.any():
        part = float(np.median(visible[1:_EARLY] / progress[1:_EARLY]))
        once = float(jumps[1:].max() / progress[1])
    is_hidden = part > _VISIBLE or once > _VISIBLE_ONCE
    where = f"{_growth(sizes)}, at most {sizes.max():.1e} of the loss"
    if is_hidden:
        where += "; training changed the loss too little to see every wrong update"
    else:
        where += f", and {part:.1e} of what training changed"
    missing = f"the losses of more steps, a larger learning rate, or {GRADIENTS}"
    return found.judged(*found.by_size(where, missing, is_blind=is_hidden))


# -- curves ----------------------------------------------------------------------------


def _progress(a: np.ndarray) -> np.ndarray:
    """Return by step how much training has surely changed the loss, relative to it.

    The slope of a straight line, less twice its standard error: differences between
    batches are no progress. A few losses show none.
    """
    steps = np.arange(len(a), dtype=np.float64)
    if len(a) < _FEWEST_STEPS:
        return np.zeros_like(steps)
    centred = steps - steps.mean()
    slope = float(centred @ a / (centred @ centred))
    rest = a - a.mean() - slope * centred
    error = sqrt(float(rest @ rest / (centred @ centred)) / (len(a) - 2))
    return max(0.0, abs(slope) - 2 * error) * steps / np.maximum(np.abs(a), 1e-300)


def _growth(sizes: np.ndarray) -> str:
    """Return a description of the growth over the steps that differ."""
    steps = np.flatnonzero(sizes)
    first = f"begins with {sizes[steps[0]]:.1e} in step {steps[0] + 1}"
    if len(steps) == 1:
        return first
    slope = float(np.polyfit(steps, np.log(sizes[steps]), 1)[0])
    return f"{first}, grows by {exp(slope):.3g} a step"


def _decimals(values: np.ndarray) -> Format:
    """Return the format of losses that a program has printed with few decimals, in
    binary digits; float64 if it has not.
    """
    least = float(np.abs(values).min(initial=inf))
    largest = float(np.abs(values).max(initial=0))
    for count in range(1, 6):
        step = 10.0**-count
        is_fine = step < 100 * FLOAT32.unit * largest  # any float32 would be near
        off = np.abs(np.round(values, count) - values)
        if is_fine or len(values) < 4 or np.any(off > FLOAT32.unit * np.abs(values)):
            continue
        digits = int(log2(max(least, step) / step))
        return Format(counted(count, "decimal"), digits, -126)
    return FLOAT64
