"""An action and its cell of text are two spellings of one thing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe.core.schedules.action import Action, ActionKind
from minipipe.core.schedules.action_table import Schedule
from minipipe.core.schedules.analysis.verifier import verify
from minipipe.errors import ScheduleError
from tests.refusals import code_of
from tests.strategies import examples, table

NUMBERS = st.integers(min_value=0, max_value=10**6)


def test_the_cells_are_those_of_pytorch():
    assert str(Action(2, ActionKind.FORWARD, 0)) == "2F0"
    assert str(Action(0, ActionKind.BACKWARD, 13)) == "0B13"
    assert str(Action(1, ActionKind.BACKWARD_INPUT, 4)) == "1I4"
    assert str(Action(1, ActionKind.BACKWARD_WEIGHT, 4)) == "1W4"
    assert str(Action(0, ActionKind.SEND_F, 3)) == "0SEND_F3"
    assert str(Action(1, ActionKind.RECV_F, 3)) == "1RECV_F3"
    assert str(Action(1, ActionKind.SEND_B, 3)) == "1SEND_B3"
    assert str(Action(0, ActionKind.RECV_B, 3)) == "0RECV_B3"


@given(stage=NUMBERS, kind=st.sampled_from(ActionKind), microbatch=NUMBERS)
def test_an_action_survives_its_text(stage, kind, microbatch):
    action = Action(stage, kind, microbatch)
    read = Action.parse(str(action))
    assert read == action
    assert (type(read.stage), type(read.kind), type(read.microbatch)) == (
        int,
        ActionKind,
        int,
    )


@pytest.mark.parametrize(
    "cell",
    [
        "",
        " ",
        "0F0junk",
        "junk0F0",
        "1FOO",
        "0F-1",
        "-1F0",
        "+1F0",
        " 0F0",
        "0F0 ",
        "0 F0",
        "0F0\n",
        "0F",
        "F0",
        "00",
        "0f0",
        "0FB0",
        "0SEND0",
        "0SEND_I0",
        "0SEND_F",
        "0OVERLAP_F_B0",
        "1.0F0",
        "1_0F0",
        "0F0,0F1",
        # digits of other scripts are digits to str.isdigit and to \d, not to this
        # format
        "٣F0",
        "0F²",
        "0F\uff13",
        # more digits than int() takes: a past bug, a bare ValueError without a code
        "9" * 5000 + "F0",
    ],
)
def test_what_is_not_a_cell_is_refused_as_syntax(cell):
    with pytest.raises(ScheduleError) as caught:
        Action.parse(cell)
    assert caught.value.code == "syntax"
    # of a long one, its beginning
    shown = repr(cell) if len(cell) <= 40 else repr(cell[:20])[:-1]
    assert shown in str(caught.value) and len(str(caught.value)) < 250


@examples(200)
@given(
    st.lists(
        st.sampled_from([*"07_- FBIWUROL٣²", "12", "SEND_F", "RECV_B", "REDUCE_GRAD"]),
        max_size=4,
    ).map("".join)
)
def test_whatever_is_accepted_is_a_number_a_kind_and_a_number(cell):
    try:
        stage, kind, microbatch = Action.parse(cell)
    except ScheduleError as error:
        assert error.code == "syntax"
        return
    before, _, after = cell.partition(kind.value)
    assert before.isascii() and before.isdigit() and int(before) == stage
    assert after.isascii() and after.isdigit() and int(after) == microbatch


def test_four_kinds_are_communication():
    assert [kind.value for kind in ActionKind if kind.is_communication] == [
        "SEND_F",
        "RECV_F",
        "SEND_B",
        "RECV_B",
    ]
    others = ["F", "B", "I", "W", "REDUCE_GRAD", "U", "R", "O", "L"]
    assert [kind.value for kind in ActionKind if not kind.is_communication] == others


@pytest.mark.parametrize(
    "cell", [(0.7, "F", 0), (0, "F", 0.9), ("0", "F", 0), Action(0.5, "F", 0)]
)
def test_a_stage_or_microbatch_that_is_no_integer_is_refused(cell):
    """0.7 became 0, and a string was a TypeError much later."""
    assert code_of(Schedule, "x", (0,), 1, [[cell]]) == "syntax"


@pytest.mark.parametrize(
    ("placement", "num_microbatches"),
    [(("0",), 1), ((0,), 1.0), ((0,), "1"), ((0.0,), 1)],
)
def test_a_placement_and_a_number_that_are_no_integers_are_refused(
    placement, num_microbatches
):
    """They were TypeErrors much later."""
    assert code_of(Schedule, "x", placement, num_microbatches, [["0F0"]]) == "placement"


def test_kinds_given_as_letters_become_kinds():
    schedule = table("mine", (0,), 1, ((Action(0, "F", 0), Action(0, "B", 0)),))
    assert {type(action.kind) for action in schedule.actions[0]} == {ActionKind}
    verify(schedule)
