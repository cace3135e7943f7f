"""Programs: schedules with their sends and receives, of a type of their own."""

import numpy as np
import pytest

from minipipe import Pipeline, Program, Schedule, nn, schedules, simulate, spawn, verify
from minipipe.errors import ScheduleError
from minipipe.schedules import lower, read_schedule, schedule_of_text
from minipipe.schedules.transforms import first_stages

TEXT = "rank 0: 0F0 0SEND_F0 0RECV_B0 0B0\nrank 1: 1RECV_F0 1F0 1B0 1SEND_B0\n"


def test_a_program_has_the_computations_of_its_schedule_and_survives_text_and_csv():
    program = Program.from_text(TEXT)
    assert program.schedule == Schedule.from_text("0F0 0B0\n1F0 1B0")
    assert Program.from_csv(program.to_csv(), name="text") == program == lower(program)
    assert (
        program != program.schedule
        and repr(program) == "<Program text: 2 ranks, 2 stages, 1 microbatch>"
    )
    verify(program)
    assert simulate(program).makespan == simulate(program.schedule).makespan == 6


@pytest.mark.parametrize("read", [Schedule.from_text, Schedule.from_csv])
def test_a_schedule_with_messages_is_refused_with_the_reader_that_takes_it(read):
    text = TEXT if read == Schedule.from_text else Program.from_text(TEXT).to_csv()
    with pytest.raises(
        ScheduleError,
        match=r"holds 0SEND_F0: it is a Program, .* Program.from_file, from_",
    ) as caught:
        read(text)
    assert caught.value.code == "type"


def test_a_file_is_read_as_what_it_holds(tmp_path):
    for text, kind in ((TEXT, Program), ("0F0 0B0", Schedule)):
        path = tmp_path / "mine.txt"
        path.write_text(text)
        assert type(read_schedule(path)) is type(schedule_of_text(text)) is kind
    path.write_text(TEXT)
    with pytest.raises(ScheduleError, match="mine holds 0SEND_F0"):
        Schedule.from_file(path)


@pytest.mark.parametrize(
    "call", [schedules.split_backward, lambda program: first_stages(program, 1)]
)
def test_where_a_schedule_is_needed_a_program_is_refused_with_how_to_get_it(call):
    with pytest.raises(
        ScheduleError, match="Expected a Schedule, not <Program .*are its .schedule"
    ) as caught:
        call(Program.from_text(TEXT))
    assert caught.value.code == "type"


def test_a_pipeline_runs_a_program_as_it_is(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text(TEXT)
    inputs, model = (
        np.ones((4, 2), np.float32),
        nn.Sequential(nn.Linear(2, 2), nn.Tanh()),
    )

    def run(group, schedule):
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), schedule=schedule)
        return (
            pipeline.schedule,
            pipeline.step(inputs, inputs),
            len(pipeline.timeline().messages),
        )

    (expected, loss, _), *_ = spawn(lambda group: run(group, schedules.gpipe(2, 1)), 2)
    for given in (path, Program.from_file(path)):
        for schedule, own_loss, messages in spawn(
            lambda group, given=given: run(group, given), 2
        ):
            assert type(schedule) is Schedule and schedule.actions == expected.actions
            assert (own_loss, messages) == (loss, 2)


@pytest.mark.parametrize("wrong", [9, -1, 4, True, 1.0, None])
def test_a_rank_or_a_stage_that_does_not_exist_is_refused(wrong):
    """The story: stages_of(9), stages_of(-1) and crosses_ranks(9) answered as if they
    were right.
    """
    schedule = schedules.gpipe(4, 2)
    for table in (schedule, lower(schedule)):
        for call, noun in ((table.stages_of, "rank"), (table.crosses_ranks, "stage")):
            with pytest.raises(
                ScheduleError,
                match=f"There is no {noun} {wrong!r}; there are 4, counted from 0",
            ) as caught:
                call(wrong)
            assert caught.value.code == "out-of-range"
    assert (
        schedule.stages_of(3) == (3,)
        and schedule.crosses_ranks(2)
        and not schedule.crosses_ranks(3)
    )


# -- the notation of papers ------------------------------------------------------------


def test_cells_without_a_stage_are_read_where_each_rank_has_one():
    text = "rank 0: F0 F1 B0 B1\nrank 1: F0 B0 F1 B1"
    assert Schedule.from_text(text).actions == schedules.one_f_one_b(2, 2).actions
    assert (
        Schedule.from_csv("F0,F1,,B0,B1\n,F0,B0,F1,B1\n").actions
        == schedules.one_f_one_b(2, 2).actions
    )
    assert (
        Schedule.from_text("F0 I0 W0").actions
        == Schedule.from_text("0F0 0I0 0W0").actions
    )


@pytest.mark.parametrize(
    ("text", "cell"), [("F0 Fl B0 B1", "cell 2: 'Fl'"), ("F0 - B0", "cell 2: '-'")]
)
def test_a_typo_among_cells_without_a_stage_is_blamed_itself(text, cell):
    """The story: one bad cell made the whole notation unreadable, and the first good
    cell was blamed.
    """
    with pytest.raises(ScheduleError, match=cell):
        Schedule.from_text(text)


@pytest.mark.parametrize("text", ["F0 0B0", "0F0 B0", "F0 B0\n1F0 1B0"])
def test_cells_with_and_without_a_stage_do_not_mix(text):
    with pytest.raises(
        ScheduleError,
        match="The stage may be left out only if no cell of the text has one",
    ):
        Schedule.from_text(text)
