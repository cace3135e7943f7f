"""A workload in whole numbers, for a solver that knows no others: the same question, or an easier one.

Times and memory are multiplied by a scale and rounded **down**. Every schedule of the workload is then one of the
rounded workload, too, and takes no longer there, so a bound of the rounded workload is a bound of the workload itself.
Where the amounts are fractions of small denominators, as 18.522 and 1/3, nothing is rounded at all. Of all others so
many digits are kept that what is lost is less than the rounding of sums, unless there are too many actions for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import chain
from math import floor, gcd, inf, isinf, lcm
from typing import NamedTuple

from minipipe.schedules.analysis.activations import Footprint
from minipipe.schedules.analysis.workload import Workload

_MOST_TIME = 2**52  # of all actions and messages together: the solver tells its bound as a float
_MOST_MEMORY = 10**6
_MOST_PRODUCT = 2**62  # of the two: the solver multiplies them in 64 bits
_MOST_DENOMINATOR = 10**4  # floats that are no such fractions are farther from all of them than they are exact
_EXACT = Fraction(1, 10**12)
_ROUNDING = Fraction(2, 10**9)  # `fits` of schedules/analysis/workload.py allows half of it for the rounding of sums


class WholeWorkload(NamedTuple):
    """A workload whose times and memory are whole numbers.

    Attributes
    ----------
    workload : Workload
        Rounded down.
    scale : Fraction
        Its times are those of the original times this.
    """

    workload: Workload
    scale: Fraction


def in_whole_numbers(workload: Workload) -> WholeWorkload:
    """Return a workload whose every number is whole, and none larger than that of the scaled original.

    Examples
    --------
    >>> from minipipe import Costs
    >>> whole, scale = in_whole_numbers(Costs(forward=18.522, backward_weight=9.337).workload((0, 1), 4, 2.5))
    >>> whole.forward, whole.backward_input, scale, whole.footprint.activation, whole.memory_limit
    ((18522, 18522), (1000, 1000), Fraction(1000, 1), (2, 2), (5, 5))
    """
    held = [tuple(amounts[s] for s in range(workload.num_stages)) for amounts in workload.footprint]
    amounts = [*chain(*held), *(limit for limit in workload.memory_limit if not isinf(limit))]
    most_held = max(amounts)
    memory = scale_of(amounts, most_held, _MOST_MEMORY)
    times = (workload.forward, workload.backward_input, workload.backward_weight, workload.message)
    overheads = 3 * workload.num_stages * workload.overhead
    whole_time = workload.num_microbatches * (sum(chain(*times)) + sum(workload.message) + overheads)
    most_time = min(_MOST_TIME, _MOST_PRODUCT / (1 + most_held * memory))
    scale = scale_of([*chain(*times), workload.overhead], whole_time, floor(most_time))
    forward, backward_input, backward_weight, message = (_floors(by_stage, scale) for by_stage in times)
    limits = (inf if isinf(limit) else _floor(limit, memory * (1 + _ROUNDING)) for limit in workload.memory_limit)
    whole = workload._replace(
        forward=forward,
        backward_input=backward_input,
        backward_weight=backward_weight,
        message=message,
        overhead=_floor(workload.overhead, scale),
        footprint=Footprint(*(_floors(amounts, memory) for amounts in held)),
        memory_limit=tuple(limits),
    )
    return WholeWorkload(whole, scale)


def scale_of(amounts: Iterable[float], largest: float, most: int) -> Fraction:
    """Return the least scale by which all amounts become whole, or the one by which the largest becomes the most.

    An amount is the fraction of a small denominator that it is close to, or the decimal number that is printed for it:
    0.1 is a tenth, and ``1 / 3`` a third.

    Examples
    --------
    >>> scale_of([0.5, 0.75, 1 / 3], 9.0, most=1000), scale_of([20, 40, 0], 40, 1000), scale_of([1e-9, 1e3], 1e3, 10**6)
    (Fraction(12, 1), Fraction(1, 20), Fraction(1000, 1))
    """
    parts = [_exact(amount) for amount in amounts if amount]
    if not parts:
        return Fraction(1)
    denominator = lcm(*(part.denominator for part in parts))
    scale = Fraction(denominator, gcd(*(int(part * denominator) for part in parts)))
    return min(scale, most / _exact(largest))


def _exact(amount: float) -> Fraction:
    printed = Fraction(repr(float(amount)))
    near = printed.limit_denominator(_MOST_DENOMINATOR)
    return near if abs(near - printed) <= _EXACT * printed else printed


def _floor(amount: float, scale: Fraction) -> int:
    return int(_exact(amount) * scale)


def _floors(amounts: Sequence[float], scale: Fraction) -> tuple[int, ...]:
    return tuple(_floor(amount, scale) for amount in amounts)
