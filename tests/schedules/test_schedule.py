"""A schedule is data: it survives text and CSV, cannot be changed, and says where it
cannot be read.
"""

import pickle
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import schedules
from minipipe.core.schedules.action import Action, ActionKind
from minipipe.core.schedules.action_table import Program, Schedule
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.core.schedules.analysis.verifier import verify
from minipipe.errors import ScheduleError
from minipipe.schedules import schedule_of_text
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.simulator import simulate
from tests.refusals import refusal
from tests.strategies import examples

F, B = ActionKind.FORWARD, ActionKind.BACKWARD


# -- what it is ------------------------------------------------------------------------


def test_a_schedule_cannot_be_changed_and_equal_ones_are_equal():
    schedule = schedules.gpipe(2, 3)
    with pytest.raises(FrozenInstanceError):
        schedule.name = "other"
    with pytest.raises(TypeError):
        schedule.actions[0][0] = Action(0, B, 0)
    assert schedule == schedules.gpipe(2, 3) and hash(schedule) == hash(
        schedules.gpipe(2, 3)
    )
    assert schedule != schedules.gpipe(2, 4)


def test_lists_become_tuples_so_that_the_caller_cannot_change_it_later():
    rows, placement = [[Action(0, F, 0), Action(0, B, 0)]], [0]
    schedule = Schedule("mine", placement, 1, rows)
    rows[0].clear()
    placement.append(7)
    assert schedule.placement == (0,)
    assert schedule.actions == ((Action(0, F, 0), Action(0, B, 0)),)


def test_the_placement_answers_who_holds_what_and_where_messages_pass():
    schedule = schedules.forward_only_over(placement=(0, 1, 1, 0), num_microbatches=1)
    assert (schedule.num_ranks, schedule.num_stages) == (2, 4)
    assert [schedule.stages_of(rank) for rank in (0, 1)] == [(0, 3), (1, 2)]
    assert [schedule.crosses_ranks(stage) for stage in range(4)] == [
        True,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("placement", "num_microbatches", "actions", "code"),
    [
        ((0,), 1, (), "syntax"),
        ((), 1, ((),), "syntax"),
        ((0,), 0, ((),), "syntax"),
        ((1,), 1, ((),), "placement"),
        ((0, -1), 1, ((),), "placement"),
    ],
)
def test_a_schedule_of_nothing_or_on_a_rank_that_is_not_there_is_refused(
    placement, num_microbatches, actions, code
):
    with pytest.raises(ScheduleError) as caught:
        Schedule("wrong", placement, num_microbatches, actions)
    assert caught.value.code == code


@pytest.mark.parametrize("home", [(), (1, 1), [0, 0]])
def test_a_stage_on_no_rank_or_twice_on_one_is_refused(home):
    with pytest.raises(
        ScheduleError,
        match="Stage 0 is placed on .*; expected a rank, or the different ranks",
    ) as caught:
        Schedule("wrong", (home,), 1, ((),) * 2)
    assert caught.value.code == "placement"


# -- reproducible ----------------------------------------------------------------------


def test_every_named_schedule_adds_its_gradients_in_ascending_order(every_schedule):
    for schedule in every_schedule:
        assert schedule.is_reproducible, str(schedule)
        for row in schedule.numbered:
            for stage in {action.stage for action in row}:
                added = [
                    divmod(a.microbatch, schedule.num_slices)
                    for a in row
                    if a.stage == stage and a.kind.value in "BW"
                ]
                assert added == sorted(
                    added, key=lambda place: (place[0], -place[1])
                ), str(schedule)


@pytest.mark.parametrize(
    ("reproducible", "text"),
    [
        (True, "0F0 0F1 0B0 0B1"),
        # last in, first out: saves nothing, and the sums differ
        (False, "0F0 0F1 0B1 0B0"),
        # gradients of weights are added by W; the order of I is free
        (True, "0F0 0F1 0I1 0I0 0W0 0W1"),
        (False, "0F0 0F1 0I0 0I1 0W1 0W0"),
        (False, "0F0 0F1 0F2 0B0 0I2 0W2 0B1"),  # B and W add to the same sum
        (True, "0F0 0F1 1F0 1F1 1B0 1B1 0B0 0B1"),  # each stage has its own sum
    ],
)
def test_a_schedule_is_reproducible_when_every_stage_adds_in_ascending_order(
    reproducible, text
):
    schedule = Schedule.from_text(text)
    verify(schedule)
    assert schedule.is_reproducible is reproducible


# -- text ------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_schedule_survives_its_text_and_its_csv(every_schedule):
    for schedule in every_schedule:
        for written in (schedule, lower(schedule)):
            assert (
                type(written).from_text(written.to_text(), name=written.name) == written
            )
            if written.num_slices == 1:  # of which PyTorch knows none
                assert (
                    type(written).from_csv(written.to_csv(), name=written.name)
                    == written
                )
            has_messages = any(written.message_cuts)
            assert schedule_of_text(written.to_text(), written.name) == (
                written if has_messages else schedule
            )


def test_a_forward_only_schedule_survives_its_text_and_its_csv():
    for placement in [(0,), (0, 1, 1, 0)]:
        schedule = schedules.forward_only_over(placement, 3)
        assert Schedule.from_text(schedule.to_text(), name=schedule.name) == schedule
        assert Schedule.from_csv(schedule.to_csv(), name=schedule.name) == schedule


def test_text_and_csv_are_what_a_person_would_write():
    schedule = lower(schedules.gpipe(2, 1))
    assert schedule.to_text() == (
        "# gpipe: 2 ranks, 2 stages, 1 microbatch\n"
        "rank 0: 0F0 0SEND_F0 0RECV_B0 0B0\n"
        "rank 1: 1RECV_F0 1F0 1B0 1SEND_B0\n"
    )
    assert str(schedule) == schedule.to_text().rstrip()
    assert schedule.to_csv() == "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"


def test_text_may_hold_comments_and_blank_lines_and_leave_out_the_ranks():
    text = """
    # mine
    0F0   0F1 0B0 0B1   # the first rank
        # nothing

    rank 1: 1F0 1F1 1B0 1B1"""
    assert Schedule.from_text(text, name="gpipe") == schedules.gpipe(2, 2)


def test_empty_cells_of_a_csv_are_idle_time():
    drawn = "0F0,0F1,,,0B0,,0B1\n,1F0,1B0,1F1,1B1,,\n"
    assert Schedule.from_csv(drawn, name="drawn").actions == (
        (Action(0, F, 0), Action(0, F, 1), Action(0, B, 0), Action(0, B, 1)),
        (Action(1, F, 0), Action(1, B, 0), Action(1, F, 1), Action(1, B, 1)),
    )


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_csv_is_read_with_any_line_end_with_a_byte_order_mark_and_with_blanks(line_end):
    # A lone carriage return was once a bare csv.Error.
    text = "\ufeff" + line_end.join(["0F0, 0B0 ", "1F0 ,1B0", ""])
    assert Schedule.from_csv(text, name="gpipe") == schedules.gpipe(2, 1)


def test_a_rank_without_actions_survives_its_text_and_its_csv():
    # An empty line was once no rank at all in CSV.
    schedule = Schedule("gap", (0, 2), 1, ((Action(0, F, 0),), (), (Action(1, F, 0),)))
    assert Schedule.from_text(schedule.to_text(), name="gap") == schedule
    assert Schedule.from_csv(schedule.to_csv(), name="gap") == schedule


@pytest.mark.parametrize(
    ("read", "text", "place"),
    [
        (
            Schedule.from_text,
            "rank 0: 0F0 0B0\n\n# rank 1\nrank 1: 1F0 1X0 1B0",
            "Line 4, cell 2: '1X0'",
        ),
        (Schedule.from_text, "0F0 0B0\n1F0 1B0junk", "Line 2, cell 2: '1B0junk'"),
        (
            Schedule.from_text,
            "0F0,0B0",
            "Line 1 has commas. Read CSV with Schedule.from_csv",
        ),
        (Schedule.from_csv, "0F0,0B0\n1F0,,1F-1,1B0\n", "Line 2, cell 3: '1F-1'"),
        (Schedule.from_csv, "0F0 0B0\n", "Line 1, cell 1: '0F0 0B0'"),
        (Schedule.from_csv, "0F0,0B0\n\n1F0,?\n", "Line 3, cell 2: '?'"),
    ],
)
def test_junk_is_refused_with_its_line_and_its_cell(read, text, place):
    error = refusal(read, text)
    assert error.code == "syntax"
    assert place in str(error)


def test_a_line_that_names_another_rank_is_refused():
    error = refusal(Schedule.from_text, "rank 0: 0F0 0B0\nrank 2: 1F0 1B0")
    assert error.code == "syntax"
    assert "Line 2 is labelled rank 2, but the next rank is 1" in str(error)


@pytest.mark.parametrize("read", [Schedule.from_text, Schedule.from_csv])
@pytest.mark.parametrize("text", ["", "\n\n", "  \n"])
def test_text_without_an_action_is_refused(read, text):
    assert refusal(read, text).code == "syntax"


def test_text_that_leaves_out_a_stage_or_nearly_every_microbatch_is_refused():
    error = refusal(Schedule.from_text, "0F0 0B0\n2F0 2B0")
    assert error.code == "missing" and "stage 1" in str(error)
    error = refusal(Schedule.from_text, "1F0 8F0")
    assert error.code == "missing" and "Stage 8 occurs without stage 0" in str(error)
    error = refusal(Schedule.from_text, "0F0 0F999999999")
    assert error.code == "missing" and "0F999999999 names microbatch 999999999" in str(
        error
    )


@examples(200)
@given(
    st.lists(
        st.sampled_from(
            [*'01FBIW,;#: "\n\r\t\x00\ufeff', "0F0", "1B1", "0SEND_F0", "rank 0:"]
        )
    ).map("".join)
)
def test_any_text_is_either_a_schedule_or_a_schedule_error(text):
    for read in (
        Schedule.from_text,
        Schedule.from_csv,
        Program.from_text,
        Program.from_csv,
    ):
        try:
            schedule = read(text)
        except ScheduleError as error:
            assert error.code in {"syntax", "missing", "type"}
            assert error.code != "type" or "SEND" in text or "RECV" in text
        else:
            assert (
                type(schedule).from_text(schedule.to_text(), name=schedule.name)
                == schedule
            )


def test_a_cell_too_long_for_the_csv_reader_is_refused_as_syntax():
    assert refusal(Schedule.from_csv, "0F0,0B0\n1F0," + "x" * 200_000).code == "syntax"


@examples(100)
@given(data=st.data())
def test_a_stray_action_in_a_csv_is_blamed_on_the_rank_where_it_stands(
    every_schedule, data
):
    whole = [
        s
        for s in every_schedule
        if s.num_slices == 1 and s.num_microbatches > 1 + s.is_forward_only
    ]
    # a stray one is in the minority
    fitting = [s for s in whole if s.num_ranks > 1 and not s.has_replicas]
    schedule = data.draw(st.sampled_from(fitting))
    rank = data.draw(st.integers(0, schedule.num_ranks - 1))
    step = data.draw(st.integers(0, len(schedule.actions[rank]) - 1))
    other = data.draw(
        st.sampled_from([r for r in range(schedule.num_ranks) if r != rank])
    )
    place = data.draw(st.integers(0, len(schedule.actions[other])))

    lines = [line.split(",") for line in schedule.to_csv().splitlines()]
    stray = lines[rank].pop(step)
    lines[other].insert(place, stray)
    read = Schedule.from_csv("\n".join(map(",".join, lines)))

    assert read.placement == schedule.placement
    with pytest.raises(ScheduleError) as caught:
        verify(read)
    (problem,) = caught.value.problems
    assert (problem.code, problem.rank, problem.step) == ("placement", other, place)
    assert f"stage {Action.parse(stray).stage} is on rank {rank}" in problem.message


def test_cells_may_be_written_as_text_and_kinds_as_letters():
    row = ("0F0", Action(0, "B", 0))
    assert Schedule("mine", (0,), 1, (row,)) == Schedule.from_text(
        "0F0 0B0", name="mine"
    )
    with pytest.raises(ScheduleError):
        Schedule("mine", (0,), 1, (("0X0",),))


def test_one_of_a_thing_is_not_called_several():
    assert str(schedules.gpipe(1, 1)).startswith(
        "# gpipe: 1 rank, 1 stage, 1 microbatch\n"
    )


def test_an_error_survives_being_copied():
    with pytest.raises(ScheduleError) as caught:
        verify(Schedule.from_text("0B0 0F0"))
    twin = pickle.loads(pickle.dumps(caught.value))
    assert (str(twin), twin.code, twin.problems) == (
        str(caught.value),
        "order",
        caught.value.problems,
    )


def test_numbers_of_numpy_are_numbers():
    assert schedules.gpipe(np.int64(2), np.int32(2)) == schedules.gpipe(2, 2)
    assert simulate(schedules.gpipe(2, 2), Costs(forward=np.float32(2))).makespan == 12


# -- PyTorch's other cells -------------------------------------------------------------


def test_what_shards_parameters_is_left_out_on_request_and_otherwise_refused():
    text = "0UNSHARD,0F0,0B0,0REDUCE_GRAD,0RESHARD\n"
    assert Schedule.from_csv(text, ignore_sharding=True) == Schedule.from_csv("0F0,0B0")
    error = refusal(Schedule.from_csv, text)
    assert error.code == "syntax"
    assert "Line 1, cell 1: 0UNSHARD shards parameters" in str(
        error
    ) and "ignore_sharding=True" in str(error)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("0F0,0F0junk", "Line 1, cell 2: '0F0junk' is not an action"),
        ("0F0,0B0\n1FOO,1B0", "Line 2, cell 1: '1FOO' is not an action"),
        ("0F0,,0F-1", "Line 1, cell 3: '0F-1' is not an action"),
        ("0F0,0B٣", "Line 1, cell 2"),
        (
            "0F0,(0F1;0F2)OVERLAP_F_B",
            "Line 1, cell 2: (0F1;0F2)OVERLAP_F_B is not a supported overlap",
        ),
        ("0F0,(0B0;0F1)OVERLAP_F_B", "expected a forward, then a backward, such as"),
        ("0F0,(0F1)OVERLAP_F_B", "'(0F1)OVERLAP_F_B' is not an action"),
        ("0F0,(0F1;0B0;0F2)OVERLAP_F_B", "Line 1, cell 2"),
        ("0F0,(0F1;junk)OVERLAP_F_B", "'junk' is not an action"),
        ("0F0,0UNSHARDED", "'0UNSHARDED' is not an action"),
        (
            "0F0 0F1, 0B0",
            "'0F0 0F1' is not an action. In CSV, only commas separate cells",
        ),
        (
            f"{'nonsense' * 99},0F0",
            (
                "Line 1, cell 1: 'nonsensenonsensenonsensenonsensenonsense…' is not "
                "an action"
            ),
        ),
    ],
)
@pytest.mark.parametrize("ignore_sharding", [False, True])
def test_anything_else_is_an_error_with_line_and_cell(text, where, ignore_sharding):
    error = refusal(
        lambda content: Schedule.from_csv(content, ignore_sharding=ignore_sharding),
        text,
    )
    assert error.code == "syntax" and where in str(error)


@pytest.mark.parametrize("cell", [None, 7, (0, "F"), (0, "X", 0), ("a", "F", 0)])
def test_a_cell_that_is_no_action_is_refused(cell):
    with pytest.raises(ScheduleError) as caught:
        Schedule("mine", (0,), 1, [[cell]])
    assert caught.value.code == "syntax" and repr(cell) in str(caught.value)


def test_plain_tuples_and_strings_are_read_as_actions():
    schedule = Schedule("mine", [0], 1, [[(0, "F", 0), "0B0"]])
    assert schedule.actions == ((Action(0, F, 0), Action(0, B, 0)),)


@pytest.mark.parametrize("wrong", ["zb-v", None, schedules.zb_v])
@pytest.mark.parametrize("use", [verify, simulate, lower], ids=lambda use: use.__name__)
def test_what_is_no_schedule_is_refused_with_how_to_get_one(use, wrong):
    with pytest.raises(ScheduleError) as caught:
        use(wrong)
    assert caught.value.code == "type" and "schedules.build(name, num_ranks)" in str(
        caught.value
    )


@pytest.mark.parametrize("wrong", ["F=1", {"forward": 1}, 3])
def test_what_are_no_costs_is_refused_with_how_to_get_them(wrong):
    with pytest.raises(ScheduleError) as caught:
        simulate(schedules.gpipe(2, 2), wrong)
    assert caught.value.code == "value" and "Costs.parse" in str(caught.value)


@pytest.mark.parametrize("field", ["forward", "latency", "bandwidth", "message_size"])
@pytest.mark.parametrize("wrong", ["1", None, [None, 1], object()])
def test_costs_that_are_no_numbers_are_refused(field, wrong):
    with pytest.raises(ScheduleError, match=f"{field} is .*; expected (a|numbers)"):
        simulate(schedules.gpipe(2, 2), Costs(**{field: wrong}))


@pytest.mark.parametrize("read", [Schedule.from_csv, Schedule.from_text])
@pytest.mark.parametrize("wrong", ["mine.csv", Path("mine.csv"), b"0F0", None])
def test_a_path_in_place_of_a_text_is_refused_with_what_reads_files(read, wrong):
    with pytest.raises(ScheduleError, match="Schedule.from_file reads a file"):
        read(wrong)


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (
            Schedule.from_text,
            "rank 0 0F0",
            "Line 1 begins with 'rank 0 0F0'; expected 'rank 0:'",
        ),
        (
            Schedule.from_text,
            "rank 1: 0F0",
            (
                "Line 1 is labelled rank 1, but the next rank is 0; ranks are "
                "counted from 0"
            ),
        ),
        (
            Schedule.from_text,
            "1F0\n2F0",
            "Stage 2 occurs without stage 0; stages are counted from 0",
        ),
        (
            Schedule.from_csv,
            "0f0,0B0",
            "'0f0' is not an action. Did you mean upper case?",
        ),
    ],
)
def test_a_common_slip_is_named(read, text, words):
    assert words in str(refusal(read, text))


def test_a_schedule_and_its_timeline_are_short_where_python_shows_them():
    assert (
        repr(schedules.zb_v(4, 8))
        == "<Schedule zb-v: 4 ranks, 8 stages, 8 microbatches>"
    )
    assert repr(simulate(schedules.gpipe(2, 2))).startswith(
        "<Timeline gpipe: makespan 9 units"
    )


def test_text_may_begin_with_a_byte_order_mark_and_may_leave_out_sharding():
    """CSV could, text could not, although the message of text recommended it."""
    text = "\ufeffrank 0: 0F0 0UNSHARD 0B0"
    assert schedule_of_text(text, ignore_sharding=True) == schedule_of_text("0F0 0B0")
