"""R, O and L: activations that are computed again, taken off the device and loaded, and
what is wrong with that.
"""

from itertools import permutations

import pytest

from minipipe import Schedule, schedules, verify
from minipipe.errors import ScheduleError
from minipipe.schedules import lower
from minipipe.schedules.features import rank_of_each_stage
from tests.launch import for_each

ALL = "0F0 0O0 0F1 0B1 0L0 0R0 0I0 0W0"


def refusal(schedule):
    with pytest.raises(ScheduleError) as caught:
        verify(
            schedule if isinstance(schedule, Schedule) else Schedule.from_text(schedule)
        )
    return caught.value


# -- text ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [ALL, "F0 R0 B0 \n F0 B0", "F0 O0 L0 B0", "0F0 0B0 \n 0F1 0R1 0B1"]
)
def test_they_survive_text_and_lowering(text):
    schedule = Schedule.from_text(text)
    verify(schedule)
    program = lower(schedule)
    verify(program)
    assert program.schedule == schedule
    for table in (schedule, program):
        assert type(table).from_text(table.to_text(), name=table.name) == table


@pytest.mark.parametrize(
    ("text", "words"), [(ALL, "L and O and R"), ("0F0 0R0 0B0", "R")]
)
def test_the_csv_of_pytorch_has_no_word_for_them_so_they_are_refused_and_never_dropped(
    text, words
):
    with pytest.raises(ScheduleError) as caught:
        Schedule.from_text(text).to_csv()
    assert caught.value.code == "unsupported"
    assert f"text has {words}, and PyTorch's CSV has no such action" in str(
        caught.value
    )


# -- mistakes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (
            "0F0 0B0 0R0",
            "order",
            ">0B0<: 0B0 comes before 0R0 (position 2), which it needs.",
        ),
        (
            "0R0 0F0 0B0",
            "order",
            ">0R0<: 0R0 comes before 0F0 (position 1), which it needs.",
        ),
        (
            "0O0 0F0 0L0 0B0",
            "order",
            ">0O0<: 0O0 comes before 0F0 (position 1), which it needs.",
        ),
        (
            "0F0 0O0 0B0 0L0",
            "order",
            ">0B0<: 0B0 comes before 0L0 (position 3), which it needs.",
        ),
        (
            "0F0 0O0 0I0 0W0 0L0",
            "order",
            ">0I0<: 0I0 comes before 0L0 (position 4), which it needs.",
        ),
        (
            "0F0 0L0 0O0 0B0",
            "order",
            ">0L0<: 0L0 comes before 0O0 (position 2), which it needs.",
        ),
        (
            "0F0 0O0 0R0 0L0 0B0",
            "order",
            ">0R0<: 0R0 comes before 0L0 (position 3), which it needs.",
        ),
        (
            "0F0 0R0 0O0 0L0 0B0",
            "order",
            ">0R0<: 0R0 comes before 0O0 (position 2), which it needs.",
        ),
        (
            "0F0 0L0 0B0",
            "missing",
            ">0L0<: 0L0 comes without 0O0; expected both, or neither.",
        ),
        (
            "0F0 0O0 0B0",
            "missing",
            ">0O0<: 0O0 comes without 0L0; expected both, or neither.",
        ),
        (
            "0F0 0R0",
            "missing",
            ">0R0<: 0R0 comes without 0B0 or 0I0; expected both, or neither.",
        ),
        (
            "0F0 0O0 0L0",
            "missing",
            ">0O0<: 0O0 comes without 0B0 or 0I0; expected both, or neither.",
        ),
        (
            "0F0.0 0O0.0 0F0.1 0B0.1 0L0.0 0B0.0",
            "order",
            ">0F0.1<: 0F0.1 needs keys and values that 0O0.0 (posi",
        ),
        (
            "0F0.0 0F0.1 0O0.0 0B0.1 0L0.0 0B0.0",
            "order",
            ">0B0.1<: 0B0.1 needs keys and values that 0O0.0 (posi",
        ),
        (
            "0F0 0O0 0O0 0L0 0B0",
            "duplicate",
            ">0O0<: 0O0 is a duplicate of position 1.",
        ),
        ("0F0 0R0 0R0 0B0", "duplicate", ">0R0<: 0R0 is a duplicate of position 1."),
        (
            "0F0 0B0 0R1 \n 0F1 0B1",
            "placement",
            ">0R1<: 0R1 is on another replica than its forward",
        ),
    ],
)
def test_each_mistake_is_marked(text, code, words):
    error, (mark, sentence) = refusal(text), words.split(": ", 1)
    assert error.code == code, str(error)
    assert sentence in str(error)
    assert mark in str(error).partition("\n\n")[2]


def test_a_frozen_stage_before_all_others_has_no_backward_to_recompute_for():
    frozen = schedules.freeze_stages(
        Schedule.from_text("F0 O0 L0 R0 B0 \n F0 R0 B0"), [0]
    )
    verify(frozen)
    assert [" ".join(map(str, row)) for row in frozen.actions] == ["0F0", "1F0 1R0 1B0"]
    both = schedules.freeze_stages(Schedule.from_text("F0 R0 B0 \n F0 R0 B0"), [1])
    # what is frozen behind another stage has an I, for which it recomputes
    verify(both)


@for_each(row=[*permutations("FRB"), *permutations("FOLB"), *permutations("FOLRB")])
def test_of_all_orders_one_is_legal(row):
    schedule = Schedule("mine", (0,), 1, [[f"0{kind}0" for kind in row]])
    if "".join(row) in ("FRB", "FOLB", "FOLRB"):
        verify(schedule)
    else:
        assert refusal(schedule).code == "order"


def test_who_searches_schedules_refuses_them_with_one_sentence():
    with pytest.raises(
        ScheduleError, match=r"\(such as 0R0\), which a search does not support; it can"
    ) as caught:
        mine = Schedule.from_text("F0 R0 B0 \n F0 B0", name="mine")
        rank_of_each_stage(mine, "a search")
    assert caught.value.code == "unsupported"
    assert "mine has actions that recompute or offload activations" in str(caught.value)


def test_the_last_slice_of_a_sequence_may_be_offloaded_and_the_first_when_no_other_is_left():
    verify(
        Schedule.from_text(
            "0F0.0 0F0.1 0O0.1 0F1.0 0F1.1 0B1.1 0B1.0 0L0.1 0R0.1 0B0.1 0O0.0 "
            "0L0.0 0B0.0"
        )
    )
    with pytest.raises(
        ScheduleError, match="has slices, whose keys and values later slices need"
    ) as caught:
        schedules.offloaded(Schedule.from_text("0F0.0 0F0.1 0B0.1 0B0.0"), 1)
    assert caught.value.code == "value"
