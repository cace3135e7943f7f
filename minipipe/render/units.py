"""The units and the round steps in which drawings mark times."""

from __future__ import annotations

import math


def scale_of(unit: str) -> tuple[float, str]:
    """Return the factor and the name of the unit in which times are marked:
    milliseconds for seconds.

    Examples
    --------
    >>> scale_of("s"), scale_of("units")
    ((1000.0, 'ms'), (1.0, 'units'))
    """
    if unit == "s":
        return 1000.0, "ms"
    return 1.0, unit


def round_step(least: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not below
    ``least``.

    Examples
    --------
    >>> round_step(0.3), round_step(20.0), round_step(21.0)
    (0.5, 20.0, 50.0)
    """
    power = 10.0 ** math.floor(math.log10(least))
    steps = (factor * power for factor in (1, 2, 5, 10))
    return next(step for step in steps if step >= least * (1 - 1e-9))
