"""A workload in whole numbers, for a solver that knows no others: the same question, or an easier one.

Times and memory are multiplied by a scale and rounded **down**. Every schedule of the workload is then one of the
rounded workload, too, and takes no longer there, so a bound of the rounded workload is a bound of the workload itself.
Where the amounts are decimal fractions of a few digits, as most are, nothing is rounded at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import gcd, inf, isinf, lcm
from typing import NamedTuple

from minipipe.analysis.activations import Footprint
from minipipe.analysis.workload import Workload

_MOST = 10**6  # of the largest time, and of the largest amount of memory: their products fit into 64 bits
_ROUNDING = Fraction(1, 10**9)  # as `fits` of analysis/workload.py allows for the rounding of sums


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
    times = (workload.forward, workload.backward_input, workload.backward_weight, workload.message)
    scale = scale_of([*(time for by_stage in times for time in by_stage), workload.overhead])
    held = [tuple(amounts[s] for s in range(workload.num_stages)) for amounts in workload.footprint]
    finite = [limit for limit in workload.memory_limit if not isinf(limit)]
    memory = scale_of([*(amount for amounts in held for amount in amounts), *finite])
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


def scale_of(amounts: Iterable[float]) -> Fraction:
    """Return the least scale by which all amounts become whole, or the one by which the largest becomes ``10**6``.

    An amount is the decimal number that is printed for it: 0.1 is a tenth.

    Examples
    --------
    >>> scale_of([0.5, 0.75, 3.0]), scale_of([20, 40, 0]), scale_of([1e-9, 1e3])
    (Fraction(4, 1), Fraction(1, 20), Fraction(1000, 1))
    """
    parts = [_exact(amount) for amount in amounts if amount]
    if not parts:
        return Fraction(1)
    denominator = lcm(*(part.denominator for part in parts))
    scale = Fraction(denominator, gcd(*(int(part * denominator) for part in parts)))
    return scale if max(parts) * scale <= _MOST else _MOST / max(parts)


def _exact(amount: float) -> Fraction:
    return Fraction(repr(float(amount)))


def _floor(amount: float, scale: Fraction) -> int:
    return int(_exact(amount) * scale)


def _floors(amounts: Sequence[float], scale: Fraction) -> tuple[int, ...]:
    return tuple(_floor(amount, scale) for amount in amounts)
