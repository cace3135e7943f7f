"""Joined actions: a forward that runs with the next action of its row, as data, text
and PyTorch's CSV.
"""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Action, Costs, Schedule, schedules
from minipipe.schedules import (
    Program,
    data_parallel,
    lower,
    schedule_of_text,
    tick_grid,
)
from minipipe.schedules.simulation.evaluation import evaluate
from minipipe.schedules.transforms import (
    first_stages,
    freeze_stages,
    repeat,
    split_backward,
    spread_stages,
)
from minipipe.search.clock import in_microbatch_order
from tests.refusals import refusal
from tests.strategies import (
    could_be_joined,
    examples,
    overlapped,
    replicated_schedules,
    runnable_schedules,
)

MINE = "0F0,1F0,(0F1;1B0)OVERLAP_F_B,1F1,1B1,0B0,0B1\n"


def rows(*lines):
    """Return a schedule whose rows are drawn as on paper."""
    return Schedule.from_text("\n".join(lines), name="mine")


# -- what is written, and read back ----------------------------------------------------


def test_a_joined_pair_stays_two_plain_actions_and_the_table_says_which_are_joined():
    schedule = Schedule.from_csv(MINE)
    assert (
        schedule.actions
        == Schedule.from_csv("0F0,1F0,0F1,1B0,1F1,1B1,0B0,0B1\n").actions
    )
    assert schedule.overlaps == {Action.parse("0F1")}
    assert schedule.joined == {Action.parse("0F1"): Action.parse("1B0")}
    assert schedule.to_csv() == MINE
    assert (
        str(schedule).splitlines()[1]
        == "rank 0: 0F0 1F0 (0F1;1B0)OVERLAP_F_B 1F1 1B1 0B0 0B1"
    )
    assert (
        schedule
        != replace(schedule, overlaps=())
        == Schedule.from_csv("0F0,1F0,0F1,1B0,1F1,1B1,0B0,0B1\n")
    )


def test_a_forward_may_be_joined_with_half_of_a_backward():
    split = Schedule.from_csv("0F0,(0F1;0I0)OVERLAP_F_B,0W0,0I1,0W1")
    assert split.joined == {Action.parse("0F1"): Action.parse("0I0")}


def test_dualpipe_v_written_with_overlapped_pairs_is_read_back():
    schedule = schedules.dualpipe_v(3, 8)
    pair = re.compile(r"(\d+F\d+),(\d+B\d+)(?=,|$)", re.MULTILINE)
    text = pair.sub(r"(\1;\2)OVERLAP_F_B", schedule.to_csv())
    read = Schedule.from_csv(text, name="dualpipe-v")
    assert len(read.overlaps) == text.count("OVERLAP_F_B") > 10
    assert (read.to_csv(), read.actions) == (text, schedule.actions)


@examples(200)
@given(
    overlapped(
        runnable_schedules() | replicated_schedules().map(lambda drawn: drawn[0])
    )
)
def test_text_and_csv_keep_what_is_joined(schedule):
    for text in (schedule.to_csv(), str(schedule)):
        read = replace(
            schedule_of_text(text, schedule.name),
            num_microbatches=schedule.num_microbatches,
        )
        assert read == schedule
        assert (
            text.count("OVERLAP_F_B") == len(schedule.overlaps) == len(schedule.joined)
        )
    assert Program.from_csv(schedule.to_csv(), schedule.name).schedule == schedule


def test_more_joined_pairs_than_cells_are_remembered_are_all_read():
    cells = [f"({k}F1;{k}B0)OVERLAP_F_B" for k in range(70)]
    text = ",".join(
        [f"{k}F0" for k in range(70)] + cells + [f"{k}B1" for k in range(70)]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minipipe.core.schedules.text._KNOWN", 3)
        assert len(Schedule.from_csv(text).overlaps) == 70


@pytest.mark.parametrize("wrong", ["0F7", "0B0", "1F0", "0SEND_F0"])
def test_what_is_no_forward_of_the_rows_cannot_be_joined(wrong):
    error = refusal(
        Schedule, "mine", (0,), 2, [["0F0", "0F1", "0B0", "0B1"]], overlaps={wrong}
    )
    assert error.code == "overlap"
    assert str(error).endswith(
        f"{wrong} is among the overlaps of 'mine'; expected forwards of its rows."
    )


@pytest.mark.parametrize("wrong", ["junk", (0, "F"), 3])
def test_what_is_no_action_cannot_be_joined(wrong):
    assert (
        refusal(Schedule, "mine", (0,), 1, [["0F0", "0B0"]], overlaps=[wrong]).code
        == "syntax"
    )


@pytest.mark.parametrize(
    "row", ["0F0 0B0 0F1 0B1", "0B0 0B1 0F0 0F1", "0F1 0F0 0B0 0B1"]
)
def test_a_forward_without_a_backward_of_another_microbatch_behind_it_has_no_partner(
    row,
):
    schedule = Schedule("mine", (0,), 2, [row.split()], overlaps=["0F0", "0F1"])
    assert schedule.joined == {}


def test_a_wrongly_joined_pair_is_not_lost_in_text_but_cannot_be_read():
    text = str(
        Schedule("mine", (0,), 2, [["0F1", "0F0", "0B0", "0B1"]], overlaps=["0F1"])
    )
    assert "(0F1;0F0)OVERLAP_F_B 0B0" in text
    assert refusal(Schedule.from_text, text).code == "syntax"
    alone = Schedule("mine", (0, 1), 1, [["0F0"], ["1F0"]], overlaps=["0F0"])
    # which failed with an IndexError
    assert "(0F0;)OVERLAP_F_B" in str(alone) and "0F0;0SEND_F0" in str(lower(alone))
    twice = Schedule("mine", (0,), 2, [["0F0", "0F1", "0B0", "0F1"]], overlaps=["0F1"])
    assert lower(twice).actions == twice.actions  # as this did


@pytest.mark.parametrize(
    "cell", ["(0F1; 0B0)OVERLAP_F_B", "(0F1;0B0)", "(0F1,0B0)OVERLAP_F_B"]
)
def test_a_joined_pair_that_is_written_otherwise_is_refused_with_what_it_looks_like(
    cell,
):
    error = refusal(schedule_of_text, f"0F0 {cell} 0B1")
    assert (
        error.code == "syntax"
        and "one cell without blanks, such as (0F3;3B1)OVERLAP_F_B" in str(error)
    )


# -- transformations -------------------------------------------------------------------

ONE_RANK = rows(
    "0F0 1F0 (0F1;1B0)OVERLAP_F_B 1F1 1B1 (0F2;0B0)OVERLAP_F_B 1F2 1B2 0B1 0B2"
)


def test_a_split_backward_leaves_its_first_half_joined():
    assert split_backward(ONE_RANK) == rows(
        "0F0 1F0 (0F1;1I0)OVERLAP_F_B 1W0 1F1 1I1 1W1 (0F2;0I0)OVERLAP_F_B 0W0 "
        "1F2 1I2 1W2 0I1 0W1 0I2 0W2"
    )


def test_a_forward_joined_with_a_backward_that_frozen_stages_lack_runs_alone():
    frozen = freeze_stages(ONE_RANK, [0])
    assert (
        str(frozen).splitlines()[1]
        == "rank 0: 0F0 1F0 (0F1;1B0)OVERLAP_F_B 1F1 1B1 0F2 1F2 1B2"
    )
    frozen = freeze_stages(ONE_RANK, [1])
    assert (
        str(frozen)
        .splitlines()[1]
        .startswith("rank 0: 0F0 1F0 (0F1;1I0)OVERLAP_F_B 1F1 1I1 (0F2;0B0)OVERLAP_F_B")
    )


def test_a_forward_joined_with_a_stage_that_is_left_out_runs_alone():
    assert first_stages(ONE_RANK, 1) == rows("0F0 0F1 (0F2;0B0)OVERLAP_F_B 0B1 0B2")


def test_every_step_joins_what_one_does():
    assert str(repeat(ONE_RANK, 2)).splitlines()[1] == (
        "rank 0: 0F0 1F0 (0F1;1B0)OVERLAP_F_B 1F1 1B1 (0F2;0B0)OVERLAP_F_B 1F2 "
        "1B2 0B1 0B2"
        " 0F3 1F3 (0F4;1B3)OVERLAP_F_B 1F4 1B4 (0F5;0B3)OVERLAP_F_B 1F5 1B5 0B4 0B5"
    )


def test_every_replica_joins_what_one_does():
    assert str(data_parallel(rows("0F0 (0F1;0B0)OVERLAP_F_B 0B1"), 2)).splitlines()[
        1:
    ] == [
        "rank 0: 0F0 (0F1;0B0)OVERLAP_F_B 0B1 0REDUCE_GRAD1",
        "rank 1: 0F2 (0F3;0B2)OVERLAP_F_B 0B3 0REDUCE_GRAD3",
    ]


@examples(100)
@given(overlapped(runnable_schedules()), st.integers(1, 3))
def test_transformations_join_no_other_actions_than_the_table_does(schedule, num_steps):
    m = schedule.num_microbatches
    several = repeat(schedule, num_steps)
    assert (
        len(several.joined)
        == len(several.overlaps)
        == num_steps * len(schedule.overlaps)
    )
    assert {(a._replace(microbatch=a.microbatch % m), b._replace(microbatch=b.microbatch % m))
            for a, b in several.joined.items()} == set(schedule.joined.items())  # fmt: skip
    for changed in (
        split_backward(schedule),
        freeze_stages(schedule, [0]),
        first_stages(schedule, 1),
    ):
        assert set(changed.joined) == set(changed.overlaps) <= set(schedule.overlaps)
        assert all(
            changed.joined[a][::2] == schedule.joined[a][::2] for a in changed.overlaps
        )


def evaluated(schedule):
    return evaluate(
        schedule,
        Costs().workload(schedule.placement, schedule.num_microbatches),
        "makespan",
    )


@pytest.mark.parametrize(
    "reader",
    [lambda it: spread_stages(it, 4), in_microbatch_order, tick_grid, evaluated],
)
def test_who_knows_no_joined_actions_refuses_them(reader):
    error = refusal(reader, ONE_RANK)
    assert (
        error.code == "overlap"
        and "mine overlaps forwards with backwards (such as 0F1)" in str(error)
    )
    reader(replace(schedules.zb_h1(2, 2), overlaps=()))


def test_could_be_joined_is_drawn_right():
    assert could_be_joined(ONE_RANK) == [Action.parse("0F1"), Action.parse("0F2")]


def test_the_corners_of_csv():
    assert Schedule.from_csv(
        "0UNSHARD0,0F0,0B0,0RESHARD12", ignore_sharding=True
    ) == Schedule.from_csv("0F0,0B0")
    assert (
        Schedule.from_csv("0F0,( 0F1 ; 0B0 )OVERLAP_F_B,0B1").to_csv()
        == "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n"
    )
    assert "is not a supported overlap" in str(
        refusal(Schedule.from_csv, "0F0,0I0,(0F1;0W0)OVERLAP_F_B,0B1")
    )
    assert (
        refusal(Schedule.from_csv, "0F0,(0F1;0B0)OVERLAP_F_Bjunk,0B1").code == "syntax"
    )
    assert refusal(Schedule.from_text, "0F0 0B0 0F3").code == "missing"
    assert "bandwidth is a single number" in str(refusal(Costs.parse, "bandwidth=1:2"))
