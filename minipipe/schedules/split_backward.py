"""Splitting of every backward of a schedule into its two halves, and which second halves stand together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

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


def neighbouring_weights(row: Iterable[Action]) -> dict[Action, list[int]]:
    """Return by W which microbatches' work it can do: for the last of several W of a stage, all; for the others, none.

    Neighbours have no other computation between them.

    Examples
    --------
    >>> row = Schedule.from_text("F0 F1 F2 I0 I1 W0 W1 I2 W2").actions[0]
    >>> {str(w): microbatches for w, microbatches in neighbouring_weights(row).items()}
    {'0W0': [], '0W1': [0, 1], '0W2': [2]}
    """
    computations = (action for action in row if not action.kind.is_communication)
    runs = (list(run) for _, run in groupby(computations, key=lambda action: (action.kind, action.stage)))
    of_weights = (run for run in runs if run[0].kind is ActionKind.BACKWARD_WEIGHT)
    return {w: [other.microbatch for other in run] if w is run[-1] else [] for run in of_weights for w in run}
