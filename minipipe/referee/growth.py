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

from math import exp, inf, log, log2, sqrt

import numpy as np

from minipipe.errors import counted
from minipipe.referee.bounds import DOUBT, GROWTH, Assumed
from minipipe.referee.causes import repeated_rounding
from minipipe.referee.files import LOSS
from minipipe.referee.formats import FLOAT32, FLOAT64, Format, format_of
from minipipe.referee.report import Difference, Verdict

# So large a part of all updates, or of a single one, may be wrong without being noticed.
_VISIBLE = 0.01
_VISIBLE_ONCE = 5e-5
_EARLY = 10  # steps that decide whether updates are right
_FEWEST = 16  # losses that show a rounding: few would agree by chance
_FEWEST_STEPS = 5  # that tell progress from differences between batches
_QUIET = 2  # unit roundoffs: the least that a loss may differ by
_ALIKE = "gradients of step 1 (gradients/NAME), compared to their last digits"


def judge_losses(
    a: np.ndarray,
    b: np.ndarray,
    assumed: Assumed,
    spread: np.ndarray | None,
    usual: Format = FLOAT32,
) -> Difference:
    """Return the difference of two loss curves, at the step that decides.

    Parameters
    ----------
    a, b : array of shape (steps,)
        Steps count from 1.
    assumed : Assumed
    spread : array of shape (steps,), optional
        The relative difference between repetitions of a run.
    usual : Format
        The format of the arithmetic, if none is stated. Losses are often sums in
        float64 of numbers that were computed in float32.
    """
    if np.array_equal(a, b):
        return Difference(LOSS, -1, -1, 0.0, 0.0)
    formats = (format_of(a), format_of(b), _decimals(a), _decimals(b))
    grid = min(formats, key=lambda each: each.digits)
    if grid.digits < FLOAT32.digits:
        return _stored(a, b, grid)
    arithmetic = assumed.precision or usual
    unit = arithmetic.unit
    sizes = np.abs(b - a) / np.maximum(np.maximum(np.abs(a), np.abs(b)), 1e-300)
    start = assumed.of_losses(arithmetic)
    bounds = np.maximum(GROWTH * _before(sizes), GROWTH * _QUIET * unit)
    bounds[0] = start
    if spread is not None:
        bounds = GROWTH * np.maximum(np.maximum.accumulate(spread), _QUIET * unit)
        if spread[0] > _VISIBLE:
            found = Difference(LOSS, 1, -1, float(sizes[0]), float(bounds[0]))
            where = f"repetitions differ by {spread[0]:.1e} of the loss of step 1"
            missing = "functions whose repetitions differ only by rounding: fix seeds"
            return found.judged(Verdict.CANNOT_TELL, where, missing)
    beyond = np.flatnonzero(sizes > bounds)
    if beyond.size:
        return _beyond(sizes, bounds, int(beyond[0]), start)
    return _within(a, sizes, bounds, unit)


def _before(sizes: np.ndarray) -> np.ndarray:
    """Return by step the largest size of the steps before it."""
    largest = np.maximum.accumulate(sizes)
    return np.concatenate([[0.0], largest[:-1]])


def _beyond(
    sizes: np.ndarray, bounds: np.ndarray, first: int, start: float
) -> Difference:
    """Judge curves that part faster than rounding errors grow."""
    # a later step may show more clearly that the curves part
    surely = np.flatnonzero(sizes > DOUBT * np.maximum(bounds, start))
    if surely.size and surely[0] <= first + 1:
        first = int(surely[0])
    size = float(sizes[first])
    found = Difference(LOSS, first + 1, -1, size, float(bounds[first]))
    where = f"{size:.1e} of the loss, rounding errors explain {bounds[first]:.1e}"
    if first:
        where += f" after {sizes[first - 1]:.1e} in the step before"
    if size > DOUBT * max(bounds[first], start):
        return found.judged(Verdict.BUG, where)
    return found.judged(Verdict.CANNOT_TELL, where, _ALIKE)


def _within(
    a: np.ndarray, sizes: np.ndarray, bounds: np.ndarray, unit: float
) -> Difference:
    """Judge curves that part slowly: is an error of the updates excluded?"""
    visible = np.maximum(sizes, unit)  # even if by chance the same numbers were rounded
    worst = int(np.argmax(sizes / bounds))
    found = Difference(LOSS, worst + 1, -1, float(sizes[worst]), float(bounds[worst]))
    if len(a) < _FEWEST_STEPS:
        steps = counted(len(a), "step")
        where = f"{sizes.max():.1e} of the loss of {steps}, too few to see each update"
        missing = f"the losses of more steps, or {_ALIKE}"
        return found.judged(Verdict.CANNOT_TELL, where, missing)
    progress = _progress(a)
    parts = np.full_like(progress, inf)
    np.divide(visible, progress, out=parts, where=progress > 0)
    part = float(np.median(parts[1:_EARLY]))
    jumps = np.maximum(sizes - 2 * _before(sizes), unit)
    once = inf
    if progress[1] > 0:
        once = float(jumps[1:].max() / progress[1])
    where = f"{_growth(sizes)}, at most {sizes.max():.1e} of the loss"
    if part > _VISIBLE or once > _VISIBLE_ONCE:
        where += "; training changed the loss too little to see every wrong update"
        missing = f"more steps, a larger learning rate, or {_ALIKE}"
        return found.judged(Verdict.CANNOT_TELL, where, missing)
    where += f", and {part:.1e} of what training changed"
    return found.judged(Verdict.ORDER, where)


def _progress(a: np.ndarray) -> np.ndarray:
    """Return by step how much training has surely changed the loss, relative to it.

    The slope of a straight line, less twice its standard error: differences between
    batches are no progress.
    """
    steps = np.arange(len(a), dtype=np.float64)
    centred = steps - steps.mean()
    slope = float(centred @ a / (centred @ centred))
    rest = a - a.mean() - slope * centred
    error = sqrt(float(rest @ rest / (centred @ centred)) / (len(a) - 2))
    return max(0.0, abs(slope) - 2 * error) * steps / np.maximum(np.abs(a), 1e-300)


def _growth(sizes: np.ndarray) -> str:
    """Return a description of the growth over the steps that differ."""
    steps = np.flatnonzero(sizes)
    logarithms = [log(float(sizes[step])) for step in steps]
    first = f"begins with {sizes[steps[0]]:.1e} in step {steps[0] + 1}"
    if len(steps) < _QUIET:
        return first
    slope = float(np.polyfit(steps, logarithms, 1)[0])
    return f"{first}, grows by {exp(slope):.3g} a step"


def _decimals(values: np.ndarray) -> Format:
    """Return the format of losses that a program has printed with few decimals, in
    binary digits; float64 if it has not.
    """
    least = float(np.abs(values).min(initial=1))
    largest = float(np.abs(values).max(initial=0))
    for count in range(1, 6):
        step = 10.0**-count
        is_fine = step < 100 * FLOAT32.unit * largest  # any float32 would be near
        off = np.abs(np.round(values, count) - values)
        if is_fine or len(values) < 4 or np.any(off > FLOAT32.unit * np.abs(values)):
            continue
        return Format(
            counted(count, "decimal"), int(log2(max(least, step) / step)), -126
        )
    return FLOAT64


def _stored(a: np.ndarray, b: np.ndarray, grid: Format) -> Difference:
    """Judge curves of which one, or both, were stored with few digits."""
    sizes = np.abs(b - a) / np.maximum(np.maximum(np.abs(a), np.abs(b)), 1e-300)
    bounds = np.maximum(_before(sizes), grid.unit)
    worst = int(np.argmax(sizes / bounds))
    found = Difference(LOSS, worst + 1, -1, float(sizes[worst]), float(bounds[worst]))
    fine, coarse = sorted((a, b), key=lambda each: -format_of(each).digits)
    words = repeated_rounding(fine, coarse, [], grid)
    if words and len(a) >= _FEWEST and format_of(fine) != grid:
        return found.judged(Verdict.ROUNDING, words)
    where = f"{sizes[worst]:.1e} of the loss, a digit of {grid.name} is {grid.unit:.1e}"
    if sizes[worst] > DOUBT * bounds[worst]:
        return found.judged(Verdict.BUG, where)
    missing = f"losses in float32 instead of {grid.name}, or {_ALIKE}"
    return found.judged(Verdict.CANNOT_TELL, where, missing)
