"""Schedules that are changed, and what the verifier says of them."""

from dataclasses import replace

import pytest

from minipipe.core.schedules.action import Action, ActionKind
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.errors import ScheduleError
from minipipe.schedules.analysis.limits import verify
from minipipe.schedules.simulation.simulator import simulate
from tests.strategies import table

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
INPUT, WEIGHT = ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT


def refusal(schedule, *limit):
    with pytest.raises(ScheduleError) as caught:
        verify(schedule, *limit)
    return caught.value


def assert_legal(schedule):
    """Verify a schedule as it is and lowered, and see in a simulation of each that
    every row is run to its end.
    """
    for one in (schedule, lower(schedule)):
        verify(one)
        assert computations(schedule.actions) == computations(
            [span.action for span in spans] for spans in simulate(one).spans
        )


def computations(rows):
    return [
        [action for action in row if not action.kind.is_communication] for row in rows
    ]


def changed(schedule, change):
    """Return the schedule after ``change`` has had its way with a list of lists of its
    actions.
    """
    programs = [list(row) for row in schedule.actions]
    change(programs)
    return table(
        schedule.name,
        schedule.placement,
        schedule.num_microbatches,
        programs,
        schedule.num_slices,
    )


def trains(schedule):
    return not schedule.is_forward_only


def split(schedule):
    """Return the schedule with every B written as I, W."""
    halves = {B: (INPUT, WEIGHT)}
    rows = [
        [Action(s, part, k) for s, kind, k in row for part in halves.get(kind, (kind,))]
        for row in schedule.actions
    ]
    return replace(schedule, actions=tuple(map(tuple, rows)))
