"""Schedules that hold less: `recomputed` and `offloaded`."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, schedules, simulate, verify
from minipipe.core.schedules.action import B, I, L, O, R, W
from minipipe.errors import ScheduleError
from tests.strategies import (
    examples,
    legally_overlapped,
    runnable_schedules,
    updated_schedules,
)

# F keeps its inputs, an eighth of what a backward needs
EIGHTH = Costs(activation=1 / 8, transient_activation=7 / 8)
originals = legally_overlapped(runnable_schedules()) | updated_schedules()


def kinds_left_out(schedule):
    """Return the rows without R, O and L."""
    return tuple(
        tuple(action for action in row if action.kind not in (R, O, L))
        for row in schedule.actions
    )


# -- recomputed ------------------------------------------------------------------------


def test_recomputation_as_an_action_is_quicker_than_within_the_backward_for_as_much_memory():
    one = schedules.one_f_one_b(4, 8)
    within = simulate(
        one, Costs(backward_input=2, activation=1 / 8, transient_activation=7 / 8)
    )
    apart = simulate(schedules.recomputed(one), EIGHTH)
    assert (within.makespan, apart.makespan) == (44, 41)
    assert within.peak_memory == apart.peak_memory == (1.375, 1.25, 1.125, 1)


def test_the_last_rank_of_1f1b_saves_nothing_by_recomputation():
    one = schedules.one_f_one_b(4, 8)
    assert R not in {
        action.kind for action in schedules.recomputed(one, range(3)).actions[3]
    }
    assert simulate(schedules.recomputed(one, range(3)), EIGHTH).makespan == 39


@examples(60)
@given(originals, st.data())
def test_an_r_stands_before_each_backward_of_the_stages_that_recompute(original, data):
    own = data.draw(st.sets(st.integers(0, original.num_stages - 1)) | st.none())
    found = schedules.recomputed(original, own)
    verify(found)
    assert (
        kinds_left_out(found) == original.actions
        and found.overlaps == original.overlaps
    )
    stages = set(range(original.num_stages)) if own is None else own
    for row in found.actions:
        backwards = [
            action[::2]
            for action in row
            if action.kind in (B, I) and action.stage in stages
        ]
        assert [action[::2] for action in row if action.kind is R] == backwards
    assert schedules.recomputed(found, own).actions == found.actions
    inside = Costs(backward_input=2, activation=1 / 8, transient_activation=7 / 8)
    # a pair waits for the gradient before both, so its R comes before both
    if own is None and not original.overlaps:
        assert simulate(found, EIGHTH).makespan <= simulate(original, inside).makespan
        assert (
            simulate(found, EIGHTH).peak_memory
            == simulate(original, inside).peak_memory
        )


# -- offloaded -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bandwidth", "num_held", "makespan", "peak"),
    [
        (inf, 2, 33, (2, 2, 2, 1)),
        (1, 2, 33, (3, 3, 2, 1)),
        (0.5, 2, 37, (4, 3, 2, 1)),
        (1, 1, 39, (2, 2, 2, 1)),
    ],
)
def test_copies_that_take_a_forward_hide_behind_computations(
    bandwidth, num_held, makespan, peak
):
    """Without offload, 1F1B holds 4, 3, 2 and 1."""
    timeline = simulate(
        schedules.offloaded(schedules.one_f_one_b(4, 8), num_held),
        Costs(copy_bandwidth=bandwidth),
    )
    assert (timeline.makespan, timeline.peak_activations) == (makespan, peak)


@examples(100)
@given(originals, st.integers(1, 4))
def test_a_rank_holds_no_more_than_it_may_and_runs_as_before_if_copies_take_no_time(
    original, num_held
):
    found = schedules.offloaded(original, num_held)
    verify(found)
    assert (
        kinds_left_out(found) == original.actions
        and found.overlaps == original.overlaps
    )
    if W not in original.kinds and (num_held > 1 or not original.overlaps):
        verify(found, memory_limit=num_held)
    assert simulate(found).spans == simulate(original).spans
    if num_held >= max(schedules.peak_activations(original)):
        assert found.actions == original.actions


@examples(40)
@given(originals, st.integers(1, 3), st.sampled_from([0.25, 1, 4, inf]))
def test_what_is_offloaded_can_be_recomputed_as_well(original, num_held, bandwidth):
    """What is offloaded then are the inputs."""
    both = schedules.recomputed(schedules.offloaded(original, num_held))
    verify(both)
    other = schedules.offloaded(schedules.recomputed(original), num_held)
    verify(other)
    costs = Costs(
        activation=1 / 8, transient_activation=7 / 8, copy_bandwidth=bandwidth
    )
    for found in (both, other):
        assert simulate(found, costs).memory[0][-1] == 0


@pytest.mark.parametrize(
    ("use", "code", "words"),
    [
        (
            lambda: schedules.recomputed(schedules.forward_only(2, 2)),
            "unsupported",
            "no activations to recompute",
        ),
        (
            lambda: schedules.offloaded(schedules.forward_only(2, 2), 1),
            "unsupported",
            "no activations to offload",
        ),
        (
            lambda: schedules.recomputed(schedules.gpipe(2, 2), [2]),
            "out-of-range",
            "There is no stage 2",
        ),
        (
            lambda: schedules.offloaded(schedules.gpipe(2, 2), 0),
            "value",
            "num_held is 0; expected a whole number",
        ),
        (
            lambda: schedules.offloaded(
                schedules.offloaded(schedules.gpipe(2, 3), 1), 1
            ),
            "value",
            "has O and L already; expected a schedule without them",
        ),
        (
            lambda: schedules.recomputed(schedules.lower(schedules.gpipe(2, 2))),
            "type",
            "its .schedule",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(use, code, words):
    with pytest.raises(ScheduleError, match=words) as caught:
        use()
    assert caught.value.code == code
