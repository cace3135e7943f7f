"""The work of each slice of a sequence, relative to the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minipipe.core.specs import SCHEDULE_NUMBER
from minipipe.errors import counted

_MOST = 1e100  # of a part of the work, whose unit is free: sums of them stay finite
_PARTS = SCHEDULE_NUMBER._replace(
    maximum=_MOST, expected="numbers, at least 0 and not all 0, such as (3, 1)"
)


def relative_work(slice_work: Sequence[float] | None, num_slices: int) -> list[float]:
    """Return by slice its work over the mean of all slices.

    Raises
    ------
    ScheduleError
        Code ``value``, if there is not one number for each slice, or none is above 0.

    Examples
    --------
    >>> (
    ...     relative_work([3, 1], num_slices=2),
    ...     relative_work(None, num_slices=2),
    ...     relative_work([3, 1], num_slices=1),
    ... )
    ([1.5, 0.5], [1.0, 1.0], [1.0])
    """
    if slice_work is None:
        return [1.0] * num_slices
    parts: list[Any] = [slice_work]
    if isinstance(slice_work, Sequence):
        parts = list(slice_work)
    _PARTS.check_items("slice_work", slice_work, parts)
    if not any(parts):
        raise _PARTS.refusal("slice_work", slice_work)
    if len(parts) != num_slices > 1:
        expected = f"{counted(num_slices, 'number')}, one for each slice"
        raise SCHEDULE_NUMBER.refusal("slice_work", slice_work, expected)
    if num_slices == 1:
        return [1.0]
    return [num_slices * part / sum(parts) for part in parts]
