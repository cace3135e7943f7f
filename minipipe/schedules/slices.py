"""Slices of a sequence: microbatches whose numbers are written as sequence and slice.

The microbatch of an action stays one number, ``sequence * num_slices + slice``, and every rule about microbatches
applies to slices unchanged. Three parts of the code distinguish slices: the text, ``2F0.1`` for slice 1 of sequence 0;
the order of gradients, in which one process adds the last slice of a sequence first; and
``core/values.py``, the order within a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from numbers import Real

from minipipe.errors import ScheduleCode, ScheduleError, counted, misuse, unfit, whole_number
from minipipe.schedules.action import Action

_MOST = 1e100  # of a part of the work, whose unit is free: sums of them stay finite


class Slice(int):
    """The number of a microbatch that is a slice of a sequence; as text, sequence and slice.

    Examples
    --------
    >>> number = Slice(3, num_slices=2)
    >>> number == 3, str(number), f"2F{number}"
    (True, '1.1', '2F1.1')
    """

    num_slices: int

    def __new__(cls, number: int, num_slices: int) -> Slice:
        self = super().__new__(cls, number)
        self.num_slices = num_slices
        return self

    def __str__(self) -> str:
        return f"{self // self.num_slices}.{self % self.num_slices}"

    def __reduce__(self) -> tuple[type[Slice], tuple[int, int]]:
        return Slice, (int(self), self.num_slices)


def check_slices(name: str, num_microbatches: int, num_slices: int) -> None:
    """Refuse an invalid number of slices, or one that leaves a sequence of a schedule incomplete.

    Examples
    --------
    >>> check_slices("mine", num_microbatches=3, num_slices=2)
    Traceback (most recent call last):
        ...
    minipipe.errors.ScheduleError: [parameters] num_slices is 2, and 'mine' has 3 microbatches, ...
    """
    whole_number("num_slices", num_slices, error=ScheduleError.of, code=ScheduleCode.PARAMETERS)
    if num_microbatches % num_slices:
        message = (
            f"num_slices is {num_slices}, and {name!r} has {num_microbatches} microbatches, each of which is a slice;"
        )
        raise misuse(f"{message} expected a multiple of {num_slices}.")


def numbers_of(num_microbatches: int, num_slices: int) -> Sequence[int]:
    """Return the numbers of all microbatches, or of all slices.

    Examples
    --------
    >>> numbers_of(3, 1), list(map(str, numbers_of(4, 2)))
    (range(0, 3), ['0.0', '0.1', '1.0', '1.1'])
    """
    numbers = range(num_microbatches)
    return numbers if num_slices == 1 else tuple(Slice(k, num_slices) for k in numbers)


def with_numbers(rows: Iterable[Sequence[Action]], num_slices: int) -> tuple[tuple[Action, ...], ...]:
    """Return rows whose microbatches are written as sequence and slice.

    Examples
    --------
    >>> print(*with_numbers([[Action.parse("2F3"), Action.parse("2B3")]], num_slices=2)[0])
    2F1.1 2B1.1
    """
    rows = list(rows)
    number = {k: Slice(k, num_slices) for k in {action.microbatch for action in chain.from_iterable(rows)}}
    return tuple(tuple(Action(stage, kind, number[k]) for stage, kind, k in row) for row in rows)


def place_in_sum(num_slices: int) -> Callable[[int], int]:
    """Return, by microbatch, its place in the order in which one process adds gradients.

    Sequences ascend, slices descend: the backward of the last slice of a sequence comes first, because the others get
    gradients of their keys and values from it.

    Examples
    --------
    >>> list(map(place_in_sum(2), range(6)))
    [1, 0, 3, 2, 5, 4]
    """
    return int if num_slices == 1 else lambda k: k - 2 * (k % num_slices) + num_slices - 1


def relative_work(slice_work: Sequence[float] | None, num_slices: int) -> list[float]:
    """Return by slice its work over the mean of all slices.

    Raises
    ------
    ScheduleError
        Code ``costs``, if there is not one number for each slice, or none is above 0.

    Examples
    --------
    >>> relative_work([3, 1], num_slices=2), relative_work(None, num_slices=2), relative_work([3, 1], num_slices=1)
    ([1.5, 0.5], [1.0, 1.0], [1.0])
    """
    if slice_work is None:
        return [1.0] * num_slices
    parts = list(slice_work) if isinstance(slice_work, Sequence) else [slice_work]
    if not all(isinstance(part, Real) and 0 <= part <= _MOST for part in parts) or not any(parts):
        raise unfit("slice_work", slice_work, "numbers, at least 0 and not all 0, such as (3, 1)", ScheduleCode.COSTS)
    if len(parts) != num_slices > 1:
        raise unfit(
            "slice_work", slice_work, f"{counted(num_slices, 'number')}, one for each slice", ScheduleCode.COSTS
        )
    return [num_slices * part / sum(parts) for part in parts] if num_slices > 1 else [1.0]
