"""Splitting of every backward of a schedule into its two halves."""

from __future__ import annotations

from collections.abc import Iterator

from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.schedule import Schedule, check_schedule


def split_backward(schedule: Schedule) -> Schedule:
    """Return the schedule with every B replaced by I and W.

    The previous stage then waits for I alone.

    Parameters
    ----------
    schedule : Schedule

    Returns
    -------
    Schedule

    Examples
    --------
    >>> print(split_backward(Schedule.from_text("rank 0: 0F0 0B0", name="mine")))
    # mine: 1 rank, 1 stage, 1 microbatch
    rank 0: 0F0 0I0 0W0
    """
    check_schedule(schedule)
    return schedule.with_rows(Schedule, map(_halves, schedule.actions))


def _halves(row: tuple[Action, ...]) -> Iterator[Action]:
    for action in row:
        if action.kind is ActionKind.BACKWARD:
            yield action._replace(kind=ActionKind.BACKWARD_INPUT)
            yield action._replace(kind=ActionKind.BACKWARD_WEIGHT)
        else:
            yield action
