"""Weights that are gathered before a stage computes, and released after it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from minipipe import Costs, schedules, simulate, verify
from minipipe.errors import ScheduleError
from minipipe.passes.framing import frame
from minipipe.passes.shards import shard
from minipipe.schedules import Program, data_parallel, lower
from tests.core.tables import legal_tables, problem
from tests.strategies import examples

COMPUTING = ("F", "R", "B", "I", "W")


@st.composite
def sharded_programs(draw):
    """Draw a framed program in which some stages are sharded."""
    schedule = draw(legal_tables().filter(lambda drawn: problem(drawn) is None))
    stages = draw(st.sets(st.integers(0, schedule.num_stages - 1), min_size=1))
    program = shard(lower(schedule), stages, draw(st.integers(0, 3)))
    return stages, frame(program, update=False)


def test_a_stage_is_gathered_before_its_first_computation_or_earlier():
    program = lower(data_parallel(schedules.interleaved_1f1b(1, 2), 2))
    rows = [shard(program, [1], ahead).actions[0] for ahead in (0, 1)]
    text = [" ".join(map(str, row)) for row in rows]
    assert text == [
        "0F0 1GATHER0 1F0 1B0 0F1 0B0 1F1 1B1 1FREE0 1REDUCE_GRAD1 0B1 0REDUCE_GRAD1",
        "1GATHER0 0F0 1F0 1B0 0F1 0B0 1F1 1B1 1FREE0 1REDUCE_GRAD1 0B1 0REDUCE_GRAD1",
    ]


@given(sharded_programs())
@examples(40)
def test_a_sharded_program_is_legal_and_its_text_is_read_back(drawn):
    _, program = drawn
    verify(program)
    assert Program.from_text(str(program), program.name) == program


@given(sharded_programs(), st.data())
@examples(40)
def test_a_gather_or_release_that_is_missing_or_in_the_wrong_place_is_refused(
    drawn, data
):
    stages, program = drawn
    stage = data.draw(st.sampled_from(sorted(stages)))
    rank = data.draw(st.sampled_from(program.ranks_of(stage)))
    row = list(program.actions[rank])
    own = [at for at, action in enumerate(row) if _is_of(action, stage)]
    if not own:
        return
    kind = data.draw(st.sampled_from(["GATHER", "FREE"]))
    at = next(i for i, a in enumerate(row) if a[:2] == (stage, kind))
    moved = row.pop(at)
    if data.draw(st.booleans()):
        rest = [i for i, action in enumerate(row) if _is_of(action, stage)]
        row.insert(rest[0] + 1 if kind == "GATHER" else rest[-1], moved)
    rows = [*program.actions]
    rows[rank] = row
    with pytest.raises(ScheduleError):
        verify(program.with_rows(Program, rows))


def _is_of(action, stage):
    return action.stage == stage and action.kind in COMPUTING


def test_who_is_blamed_for_a_computation_with_a_shard():
    program = shard(lower(schedules.gpipe(1, 1)), [0])
    gather, *computing, free = program.actions[0]
    for row, words in (
        (
            [*computing, free],
            "0FREE0 needs the whole weights of stage 0, which nothing",
        ),
        ([gather, *computing], "0GATHER0 gives the whole weights of .* nothing takes"),
        (
            [computing[0], gather, computing[1], free],
            "0F0 comes before 0GATHER0 .*need",
        ),
        ([gather, computing[0], free, computing[1]], "0B0 comes after 0FREE0 .*needs"),
    ):
        with pytest.raises(ScheduleError, match=words):
            verify(program.with_rows(Program, [row]))


def test_a_gather_takes_half_of_an_all_reduce():
    schedule = data_parallel(schedules.gpipe(1, 1), 2)
    costs = Costs(gradient_size=4, bandwidth=2, latency=0.5)
    program = shard(lower(schedule), [0])
    plain, sharded = (simulate(one, costs).makespan for one in (schedule, program))
    assert sharded - plain == costs.sum_times(schedule)[0][1] / 2 == 1.5
