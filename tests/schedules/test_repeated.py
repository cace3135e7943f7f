"""Several steps as one schedule: legal, each as before, and closer together where a
schedule lets them.
"""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, schedules, simulate, verify
from minipipe.errors import ScheduleError
from minipipe.schedules import lower, repeat
from tests.strategies import examples, named_schedules


@examples(60)
@given(
    named_schedules(max_ranks=4, max_microbatches=5, max_chunks=2),
    st.integers(1, 3),
    st.booleans(),
)
def test_several_steps_are_legal_and_each_is_what_one_was(named, num_steps, is_lowered):
    one = lower(named[1]) if is_lowered else named[1]
    several, m = repeat(one, num_steps), one.num_microbatches
    verify(several)
    assert type(several) is type(one) and several.num_microbatches == num_steps * m
    assert several.is_reproducible == one.is_reproducible
    for rank, row in enumerate(one.numbered):
        for n in range(num_steps):
            part = several.numbered[rank][n * len(row) : (n + 1) * len(row)]
            assert [
                action._replace(microbatch=action.microbatch - n * m) for action in part
            ] == list(row)


@examples(60)
@given(
    named_schedules(max_ranks=4, max_microbatches=5, max_chunks=2), st.integers(2, 4)
)
def test_without_a_barrier_steps_take_no_longer_and_no_rank_works_faster(
    named, num_steps
):
    costs = Costs(forward=2, backward_input=3, backward_weight=1, latency=0.5)
    one, several = (
        simulate(named[1], costs),
        simulate(repeat(named[1], num_steps), costs),
    )
    assert several.makespan <= num_steps * one.makespan + 1e-9
    most = max(one.busy(rank) for rank in range(one.num_ranks))
    assert several.makespan >= num_steps * most - 1e-9


def test_zb_h2_and_zb_v_overlap_their_steps_and_others_do_not():
    # What a step adds in the steady state, 4 ranks, 8 microbatches, F = I = W = 1: 24
    # units of work a chunk.
    added = {}
    for name in ("gpipe", "1f1b", "zb-h1", "zb-h2", "zb-v", "v-half", "dualpipe-v"):
        schedule = schedules.build(name, 4, 8)
        added[name] = (
            simulate(repeat(schedule, 3)).makespan
            - simulate(repeat(schedule, 2)).makespan
        )
    assert added == {
        "gpipe": 33,
        "1f1b": 33,
        "zb-h1": 27,
        "zb-h2": 24,
        "zb-v": 48,
        "v-half": 53,
        "dualpipe-v": 51,
    }


@pytest.mark.parametrize("num_steps", [0, -1, 1.5, True, "2"])
def test_there_is_at_least_one_step(num_steps):
    with pytest.raises(
        ScheduleError, match="num_steps is .*; expected a whole number, at least 1"
    ) as caught:
        repeat(schedules.gpipe(2, 2), num_steps)
    assert caught.value.code == "value"


def test_a_schedule_is_pickled_without_what_was_found_out_about_it():
    """The walk went along, and made it a fifth longer."""
    schedule = schedules.one_f_one_b(4, 16)
    before = len(pickle.dumps(schedule))
    verify(schedule)
    assert len(pickle.dumps(schedule)) == before
    verify(pickle.loads(pickle.dumps(schedule)))
