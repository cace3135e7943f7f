"""An action that nothing handles ends a run with an error; it is never skipped."""

import pytest

from minipipe.errors import ScheduleError
from minipipe.execution.executor import _METHODS, Executor
from minipipe.schedules.action import Action, ActionKind


def test_every_kind_of_a_lowered_schedule_has_a_handler_or_an_error():
    for kind in ActionKind:
        step = _METHODS.get(kind, Executor._unhandled)
        assert callable(step), kind
    assert {kind for kind in ActionKind if kind not in _METHODS} == {*"URLO", "REDUCE_GRAD"}


@pytest.mark.parametrize("kind", [*"URLO", "REDUCE_GRAD"])
def test_an_action_without_a_handler_is_refused_by_its_name(kind):
    run = Executor._unhandled(None, Action(0, ActionKind(kind), 0))
    with pytest.raises(ScheduleError, match=f"0{kind}0 has no handler here: this run has no ") as caught:
        run(None, None)
    assert caught.value.code == "name"
