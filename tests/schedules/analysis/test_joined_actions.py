"""Joined actions in the walk, the verifier and lowering: both wait for the inputs of
both.
"""

from dataclasses import replace

import pytest
from hypothesis import assume, given

from minipipe import Schedule, schedules, verify
from minipipe.core.schedules.analysis.walk import walk
from minipipe.errors import ScheduleError
from minipipe.schedules import Program, lower, schedule_of_text
from tests.strategies import (
    could_be_joined,
    examples,
    overlapped,
    replicated_schedules,
    runnable_schedules,
)

originals = overlapped(
    runnable_schedules() | replicated_schedules(max_ranks=3).map(lambda drawn: drawn[0])
)


def rows(*lines):
    return schedule_of_text("\n".join(lines), name="mine")


def verdict(schedule):
    with pytest.raises(ScheduleError) as caught:
        verify(schedule)
    return caught.value


# -- verdicts --------------------------------------------------------------------------


def test_an_overlap_may_be_a_deadlock_where_the_same_rows_without_it_are_legal():
    schedule = rows("0F0 (0F1;0B0)OVERLAP_F_B 0B1", "1F0 1F1 1B0 1B1")
    verify(replace(schedule, overlaps=()))
    error = verdict(schedule)
    assert error.code == "deadlock"
    assert str(error) == (
        "[deadlock] These ranks wait for each other in a cycle: rank 0 cannot "
        "run 0F1 with 0B0 (position 1) "
        "before 1B0, which rank 1 runs later; rank 1 cannot run 1F1 (position 1) "
        "before 0F1, which rank 0 runs later. "
        "Without the overlaps it would end: overlapped actions wait for the "
        "inputs of both.\n\n"
        "rank 0:  0F0  >0F1<  0B0   0B1\n"
        "rank 1:  1F0  >1F1<  1B0   1B1"
    )


def test_the_same_pair_is_legal_where_its_gradient_is_there_before():
    verify(rows("0F0 (0F1;0B0)OVERLAP_F_B 0B1", "1F0 1B0 1F1 1B1"))


def test_a_deadlock_that_overlaps_do_not_cause_is_told_as_without_them():
    joined = rows("0F0 (0F1;0B0)OVERLAP_F_B 0B1 0B2 0F2", "1F2 1F0 1B0 1F1 1B1 1B2")
    plain = rows("0F0 0F1 0B0 0B1 0B2 0F2", "1F2 1F0 1B0 1F1 1B1 1B2")
    assert (
        str(verdict(joined)) == str(verdict(plain))
        and verdict(plain).code == "deadlock"
    )


def test_a_wrong_order_within_a_row_is_told_as_without_overlaps():
    error = verdict(rows("0F0 (0F1;0B0)OVERLAP_F_B 0B1", "1B0 1F0 1F1 1B1"))
    assert error.code == "order" and ">1B0<" in error.grid


def test_a_program_with_a_receive_between_the_actions_of_a_pair_is_no_pair():
    program = lower(schedules.one_f_one_b(2, 3))
    error = verdict(replace(program, overlaps=["0F2"]))
    assert error.code == "overlap"
    assert (
        "0F2 is overlapped with 0SEND_F2; expected a B or I of another "
        "microbatch after it."
    ) in str(error)


@pytest.mark.parametrize(
    ("row", "overlap", "told"),
    [
        (
            "0F0 0B0 0F1 0B1",
            "0F0",
            (
                "position 0: 0F0 is overlapped with 0B0, which needs it; expected a "
                "B or I of another"
            ),
        ),
        (
            "0F0 0F1 0B0 0B1",
            "0F0",
            (
                "position 0: 0F0 is overlapped with 0F1; expected a B or I of "
                "another microbatch"
            ),
        ),
        (
            "0F0 0I0 0F1 0W0 0I1 0W1",
            "0F1",
            "position 2: 0F1 is overlapped with 0W0; expected a B or I of another",
        ),
        (
            "0B0 0B1 0F0 0F1",
            "0F1",
            (
                "position 3: 0F1 is overlapped with nothing, because it is the last "
                "action of its row; expected"
            ),
        ),
    ],
)
def test_a_forward_joined_with_anything_else_is_marked(row, overlap, told):
    error = verdict(Schedule("mine", (0,), 2, [row.split()], overlaps=[overlap]))
    assert (
        error.code == "overlap" and told in str(error) and f">{overlap}<" in error.grid
    )


# -- laws ------------------------------------------------------------------------------


def is_legal(schedule):
    return not walk(schedule).blocked


@examples(150)
@given(originals)
def test_a_joined_pair_runs_in_one_round_and_its_messages_leave_behind_it(schedule):
    assume(is_legal(schedule))
    verify(schedule)
    order = [action for _, action in walk(schedule).order()]
    ran = {
        action: now for now, ranks in enumerate(rounds(schedule)) for action in ranks
    }
    for forward, backward in schedule.joined.items():
        assert (
            order[order.index(forward) + 1] == backward
            and ran[forward] == ran[backward]
        )
    program = lower(schedule)
    verify(program)
    assert program.joined == schedule.joined and program.schedule == schedule
    assert Program.from_text(str(program), program.name) == program


def rounds(schedule):
    heads = [iter(row) for row in schedule.actions]
    return [[next(heads[rank]) for rank in ranks] for ranks in walk(schedule).rounds]


@examples(150)
@given(originals)
def test_the_rows_alone_are_legal_and_overlaps_are_blamed_for_a_deadlock(schedule):
    verify(replace(schedule, overlaps=()))
    if not is_legal(schedule):
        error = verdict(schedule)
        assert error.code == "deadlock" and error.grid.count(">") >= 2


def test_the_steady_phase_of_1f1b_can_be_joined_on_all_ranks_but_the_last():
    schedule = schedules.one_f_one_b(3, 5)
    assert (
        " ".join(map(str, could_be_joined(schedule))) == "0F2 0F3 0F4 1F1 1F2 1F3 1F4"
    )
    verify(replace(schedule, overlaps=could_be_joined(schedule)))
