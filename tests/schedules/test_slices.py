"""Slices of a sequence: microbatches whose index is a pair, sequence and slice; and
their order in a row.
"""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Action, Schedule, schedules, verify
from minipipe.core.schedules.action import Slice
from minipipe.schedules import Program, data_parallel, lower, schedule_of_text
from minipipe.schedules.features import rank_of_each_stage
from minipipe.schedules.transforms import (
    first_stages,
    freeze_stages,
    repeat,
    split_backward,
    spread_stages,
)
from tests.refusals import refusal
from tests.schedules.sliced_tables import sliced_schedules
from tests.strategies import examples, overlapped

MINE = """
    rank 0: 0F0.0 0F0.1       0F1.0 0B0.1 0F1.1 0B0.0       0B1.1 0B1.0
    rank 1:       1F0.0 1F0.1 1B0.1 1F1.0 1B0.0 1F1.1 1B1.1 1B1.0
"""


# -- numbers, and text -----------------------------------------------------------------


def test_a_slice_is_a_microbatch_that_is_written_as_sequence_and_slice():
    mine = Schedule.from_text(MINE)
    assert (mine.num_slices, mine.num_microbatches) == (2, 4)
    assert mine.actions[0][2] == (0, "F", (1, 0)) and str(mine.actions[0][2]) == "0F1.0"
    assert list(map(str, mine.microbatches)) == ["0.0", "0.1", "1.0", "1.1"]
    assert mine.numbered[0][2] == Action.parse("0F2") and list(
        map(mine.number_of, mine.microbatches)
    ) == [0, 1, 2, 3]
    assert (
        str(mine).splitlines()[0]
        == "# text: 2 ranks, 2 stages, 2 sequences of 2 slices"
    )
    assert (
        str(mine).splitlines()[1]
        == "rank 0: 0F0.0 0F0.1 0F1.0 0B0.1 0F1.1 0B0.0 0B1.1 0B1.0"
    )
    assert str(pickle.loads(pickle.dumps(mine))) == str(mine)


@pytest.mark.parametrize("index", [2, (1, 0), Slice(1, 0)])
def test_an_action_of_a_slice_may_be_given_with_its_number_or_its_index(index):
    mine = Schedule.from_text(MINE)
    rows = [
        [Action(stage, kind, index if k == (1, 0) else k) for stage, kind, k in row]
        for row in mine.actions
    ]
    assert (
        replace(mine, actions=rows) == mine
        and replace(mine, actions=mine.numbered) == mine
    )
    found = {
        type(action.microbatch)
        for row in replace(mine, actions=rows).actions
        for action in row
    }
    assert found == {Slice}


def test_the_rank_of_a_slice_is_found_by_its_number_and_its_index():
    mine = Schedule.from_text("0F1.0 0F1.1 0B1.1 0B1.0\n0F0.0 0F0.1 0B0.1 0B0.0")
    assert (
        [mine.rank_of(0, k) for k in range(4)]
        == [mine.rank_of(0, k) for k in mine.microbatches]
        == [1, 1, 0, 0]
    )
    assert mine.ranks_of(0) == (1, 0)


def test_without_slices_numbers_are_plain():
    plain = replace(Schedule.from_text(MINE), num_slices=1)
    assert plain.microbatches == range(4) and plain.numbered is plain.actions
    assert {type(a.microbatch) for row in plain.actions for a in row} == {int}
    assert Schedule.from_csv(plain.to_csv(), name="text") == plain
    assert replace(plain, num_slices=2) == Schedule.from_text(MINE)
    assert str(replace(plain, num_slices=2)) == str(Schedule.from_text(MINE))


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (2, 6), (6, 3), (3, 3)])
def test_another_number_of_slices_keeps_the_number_of_each_microbatch(before, after):
    table = schedules.seq1f1b(
        num_ranks=2, num_microbatches=12 // before, num_slices=before
    )
    other = replace(table, num_slices=after)
    assert other.numbered == table.numbered
    assert {type(k) for k in other.microbatches} == {Slice} and replace(
        other, num_slices=before
    ) == table


@examples(200)
@given(overlapped(sliced_schedules()))
def test_text_keeps_slices_and_what_is_joined(schedule):
    assert Schedule.from_text(str(schedule), schedule.name) == schedule
    assert Schedule.from_text(
        str(split_backward(schedule)), schedule.name
    ) == split_backward(schedule)


@examples(100)
@given(sliced_schedules())
def test_programs_keep_slices(schedule):
    program = lower(schedule)
    again = schedule_of_text(str(program), schedule.name)
    assert (
        again == (program if schedule.num_ranks > 1 else schedule)
        and program.schedule == schedule
    )
    assert type(program) is Program and program.num_slices == schedule.num_slices


def test_pytorchs_csv_has_no_slices_and_is_refused_not_misread():
    error = refusal(Schedule.from_text(MINE).to_csv)
    assert (
        error.code == "unsupported"
        and "text has slices, and PyTorch's CSV has none; write it as text"
        in str(error)
    )
    assert Schedule.from_csv("0F0.0,0F0.1,,0B0.1,0B0.0") == Schedule.from_text(
        "0F0.0 0F0.1 0B0.1 0B0.0", name="csv"
    )


@pytest.mark.parametrize(
    "text", ["F0.0 F0.1 B0.1 B0.0 REDUCE_GRAD0.1 U0.1", "0F0.0 0B0.0"]
)
def test_cells_may_leave_out_the_stage_or_have_one_slice(text):
    assert schedule_of_text(text).num_slices == 1 + ("0.1" in text)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (
            "0F0.0 0F0.1 0B1 0B0.0",
            "syntax",
            "Line 1, cell 3: 0B1 names no slice; expected the slice of a sequence in",
        ),
        (
            "0F0 0F0.1",
            "syntax",
            (
                "Line 1, cell 2: 0F0.1 names a slice, and the first cell names none; "
                "expected"
            ),
        ),
        ("0F0.0 0.1F0", "syntax", "'0.1F0' is not an action"),
        ("0F0.0.1 0B0", "syntax", "'0F0.0.1' is not an action"),
        ("0F0. 0B0", "syntax", "'0F0.' is not an action"),
        ("0F0.-1 0B0", "syntax", "'0F0.-1' is not an action"),
        ("0F0.0 0F0.1234567890", "syntax", "is not an action"),
        (
            "0F3.1",
            "missing",
            "0F3.1 names microbatch 3.1, but most lower ones are missing",
        ),
        ("0F0.999999999", "missing", "names microbatch 0.999999999, but most"),
    ],
)
def test_wrong_slices_in_text_are_named(text, code, words):
    error = refusal(Schedule.from_text, text)
    assert error.code == code and words in str(error)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "2"])
def test_a_wrong_number_of_slices_is_refused(wrong):
    error = refusal(Schedule, "mine", (0,), 2, [["0F0", "0F1"]], num_slices=wrong)
    assert error.code == "value" and "num_slices is" in str(error)


def test_a_sequence_has_all_its_slices():
    error = refusal(Schedule, "mine", (0,), 3, [["0F0", "0F1", "0F2"]], num_slices=2)
    assert str(error).endswith(
        "has 3 microbatches, each of which is a slice; expected a multiple of 2."
    )


# -- rules -----------------------------------------------------------------------------


@examples(100)
@given(sliced_schedules())
def test_gradients_of_slices_add_as_one_process_adds_them(schedule):
    """One process goes back through each sequence from its last slice; so sequences
    alone may be out of order.
    """
    own = [[k.sequence for s, kind, k in row if kind.value == "B" and s == stage]
           for row in schedule.actions for stage in range(schedule.num_stages)]  # fmt: skip
    verify(schedule)
    assert schedule.is_reproducible == all(found == sorted(found) for found in own)
    assert replace(schedule, num_slices=1).is_reproducible is False


@pytest.mark.parametrize(
    ("rows", "marked", "why"),
    [
        (
            "0F0.1 0F0.0 0B0.1 0B0.0",
            ">0F0.1<  0F0.0   0B0.1   0B0.0",
            "0F0.1 comes before 0F0.0 (position 1); forwards",
        ),
        (
            "0F0.0 0F0.1 0B0.0 0B0.1",
            "0F0.0   0F0.1  >0B0.0<  0B0.1",
            "0B0.0 comes before 0B0.1 (position 3); backwards",
        ),
        (
            "0F0.0 0F0.1 0I0.0 0W0.0 0B0.1",
            "0F0.1  >0I0.0<  0W0.0   0B0.1",
            "0I0.0 comes before 0B0.1 (position 4)",
        ),
    ],
)
def test_slices_out_of_order_are_marked(rows, marked, why):
    error = refusal(verify, Schedule.from_text(rows))
    assert error.code == "order" and why in str(error) and str(error).endswith(marked)
    verify(replace(Schedule.from_text(rows), num_slices=1))


def test_a_weight_gradient_may_wait_whatever_its_slice():
    verify(Schedule.from_text("0F0.0 0F0.1 0I0.1 0I0.0 0W0.0 0W0.1"))
    verify(Schedule.from_text("0F0.0 0F0.1 0I0.1 0I0.0 0W0.1 0W0.0"))


def test_all_slices_of_a_sequence_are_on_one_replica():
    error = refusal(verify, Schedule.from_text("0F0.0 0B0.0\n0F0.1 0B0.1"))
    assert (
        error.code == "placement"
        and "0F0.1 is on another replica than 0F0.0, on rank 0" in str(error)
    )
    verify(Schedule.from_text("0F0.0 0F0.1 0B0.1 0B0.0\n0F1.0 0F1.1 0B1.1 0B1.0"))


def test_a_missing_slice_is_named_as_it_is_written():
    assert "0B0.0 is missing on rank 0" in str(
        refusal(verify, Schedule.from_text("0F0.0 0F0.1 0B0.1"))
    )


def test_a_program_obeys_the_same_order():
    program = lower(Schedule.from_text(MINE))
    rows = [
        [a._replace(microbatch=a.microbatch ^ 1) for a in row]
        for row in program.numbered
    ]
    assert refusal(verify, replace(program, actions=rows)).code == "order"


@examples(100)
@given(sliced_schedules(), st.data())
def test_two_slices_swapped_are_never_legal(schedule, data):
    """A mutant: any two slices of a sequence change places in the F or B of one
    stage.
    """
    rows = list(map(list, schedule.actions))
    row = data.draw(st.sampled_from(list(filter(None, rows))))
    alike = [(i, j) for i, a in enumerate(row) for j, b in enumerate(row[:i])
             if (*a[:2], a.microbatch.sequence) == (*b[:2], b.microbatch.sequence)]  # fmt: skip
    i, j = data.draw(st.sampled_from(alike))
    row[i], row[j] = row[j], row[i]
    assert refusal(verify, replace(schedule, actions=rows)).code == "order"


# -- transformations, and who refuses --------------------------------------------------


@examples(50)
@given(sliced_schedules())
def test_transformations_keep_slices(schedule):
    n = schedule.num_slices
    for changed in (split_backward(schedule), repeat(schedule, 2), data_parallel(schedule, 2),
                    freeze_stages(schedule, [0]), first_stages(schedule, 1)):  # fmt: skip
        assert changed.num_slices == n
        assert all("." in str(action) for row in changed.actions for action in row)
        verify(changed)
    if schedule.num_stages == schedule.num_ranks:
        verify(spread_stages(schedule, schedule.num_stages + 2))


def test_a_search_refuses_slices():
    mine = Schedule.from_text(MINE)
    error = refusal(lambda: rank_of_each_stage(mine, "a search"))
    assert (
        error.code == "unsupported"
        and "text splits sequences into 2 slices, which" in str(error)
    )
    assert rank_of_each_stage(schedules.one_f_one_b(2, 4), "a search") == (0, 1)
