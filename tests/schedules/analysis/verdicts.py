"""Schedules that are changed, and what the verifier says of them."""

import pytest

from minipipe.errors import ScheduleError
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.analysis.verifier import verify
from tests.strategies import table

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
INPUT, WEIGHT = ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT


def refusal(schedule):
    with pytest.raises(ScheduleError) as caught:
        verify(schedule)
    return caught.value


def changed(schedule, change):
    """Return the schedule after ``change`` has had its way with a list of lists of its actions."""
    programs = [list(row) for row in schedule.actions]
    change(programs)
    return table(schedule.name, schedule.placement, schedule.num_microbatches, programs)


def trains(schedule):
    return not schedule.is_forward_only


def split(schedule):
    """Return the schedule with every B written as I, W."""
    halves = {B: (INPUT, WEIGHT)}
    rows = [
        [Action(s, part, k) for s, kind, k in row for part in halves.get(kind, (kind,))] for row in schedule.actions
    ]
    return table(schedule.name, schedule.placement, schedule.num_microbatches, rows)
