"""Costs fitted to timelines: what a simulation was made with comes out again."""

from math import inf, isfinite
from statistics import median

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from minipipe import Costs, Schedule, Timeline, schedules, simulate
from minipipe.core.schedules.action import Action, ActionKind
from minipipe.errors import ScheduleError
from minipipe.schedules.simulation.fitting import fit_messages
from minipipe.schedules.simulation.span import Message, Span
from minipipe.schedules.transforms import split_backward
from tests.strategies import examples, named_schedules

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
whole_times = st.integers(1, 64)  # sums of them are exact


@st.composite
def costs_for(draw, num_stages, **fixed):
    times = [
        draw(st.lists(whole_times, min_size=num_stages, max_size=num_stages))
        for _ in range(3)
    ]
    latency, overhead = draw(st.integers(0, 64)), draw(st.integers(0, 16))
    return Costs(*times, latency=latency, overhead=overhead, **fixed)


@examples(150)
@given(st.data())
def test_what_a_timeline_was_simulated_with_predicts_it_again(data):
    _, schedule = data.draw(
        named_schedules(max_ranks=4, max_microbatches=6, max_chunks=2)
    )
    timeline = simulate(schedule, data.draw(costs_for(schedule.num_stages)))
    again = simulate(schedule, Costs.measured(timeline))
    assert again.makespan == pytest.approx(timeline.makespan, rel=1e-12)


@examples(150)
@given(st.data())
def test_one_1f1b_run_in_halves_predicts_every_schedule_over_the_same_stages(data):
    # Two ranks, where every kind of message is awaited at least once: the first
    # activation, and the first gradient.
    p, m = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 6))
    costs = data.draw(costs_for(p))
    fitted = Costs.measured(
        simulate(split_backward(schedules.one_f_one_b(p, m)), costs)
    )
    other = schedules.build(
        data.draw(st.sampled_from(["gpipe", "zb-h1", "eager-1f1b", "sequential"])), p, m
    )
    exact = simulate(other, costs).makespan
    # else no rank has two actions of which the second waits for nothing, and overhead
    # shows nowhere
    if m > 1:
        assert simulate(other, fitted).makespan == pytest.approx(exact, rel=1e-12)


def measured(messages):
    spans = ((Span(Action(0, F, 0), 0.0, 1.0),), (Span(Action(1, F, 0), 9.0, 10.0),))
    return Timeline(
        "m",
        spans,
        (1, 1),
        unit="s",
        measured_messages=tuple(messages),
        is_measured=True,
    )


def message(size, time, was_awaited=True):
    return Message(
        Action(0, F, 0), Action(1, F, 0), 0, 1, 1.0, 1.0 + time, was_awaited, size
    )


def test_latency_and_bandwidth_are_told_apart_by_messages_of_different_sizes():
    costs = Costs.measured(measured([message(1000, 2.0), message(3000, 3.0)]))
    assert (costs.latency, costs.bandwidth, costs.message_size) == (
        1.5,
        2000.0,
        [2000, 0.0],
    )


def test_messages_that_nobody_awaited_say_nothing_about_the_way():
    costs = Costs.measured(
        measured([message(8, 0.25), message(8, 7.0, was_awaited=False)])
    )
    assert costs.latency == 0.25


@examples(100)
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=12))
def test_no_fit_is_negative_and_none_is_worse_than_a_constant(samples):
    latency, bandwidth = fit_messages(samples)
    assert latency >= 0 and bandwidth > 0
    if isfinite(bandwidth):
        medians = {
            size: median(t for s, t in samples if s == size) for size, _ in samples
        }

        def error(latency, bandwidth):
            return sum(
                (latency + size / bandwidth - medians[size]) ** 2 for size, _ in samples
            )

        best_constant = sum(medians[size] for size, _ in samples) / len(samples)
        found = error(latency, bandwidth)
        assert found <= error(best_constant, inf) + 1e-6
        # And of all lines near by none is better.
        for factor in (0.99, 1.01):
            assert found <= error(latency * factor, bandwidth) + 1e-6
            assert found <= error(latency, bandwidth * factor) + 1e-6


@given(st.integers(0, 50), st.integers(1, 50), st.sets(st.integers(0, 100), min_size=2))
def test_a_line_is_found_again(latency, bandwidth, sizes):
    assume(max(sizes) >= 2 * min(sizes))
    found = fit_messages([(size, latency + size / bandwidth) for size in sizes])
    assert found == pytest.approx((latency, bandwidth), abs=1e-9, rel=1e-6)


def test_sizes_that_hardly_differ_do_not_tell_latency_from_bandwidth():
    """The story: microbatches of 40 and 60 bytes, and noise, made a latency of 0 and a
    network of 100 kB a second.
    """
    assert fit_messages([(40, 0.4), (60, 0.6), (60, 0.6)]) == (0.6, inf)


def test_within_a_timeline_the_way_of_messages_is_their_mean():
    assert (
        Costs.measured(
            measured([message(8, 1.0), message(8, 1.0), message(8, 4.0)])
        ).latency
        == 2.0
    )


def test_of_several_timelines_a_disturbed_one_leaves_nothing():
    quiet = simulate(schedules.one_f_one_b(2, 4), Costs(forward=[2, 3], latency=0.5))
    disturbed = simulate(
        schedules.one_f_one_b(2, 4), Costs(forward=[200, 3], latency=90)
    )
    assert Costs.measured(quiet, disturbed, quiet) == Costs.measured(quiet)


def test_overhead_is_the_time_between_two_actions_of_which_the_second_waits_for_nothing():
    spans = tuple(Span(Action(0, F, k), 2.0 * k, 2.0 * k + 1.5) for k in range(4))
    assert Costs.measured(Timeline("m", (spans,), (4,), unit="s")).overhead == 0.5


def test_a_backward_that_is_whole_and_one_in_halves_are_told_apart_even_if_the_first_half_is_free():
    """The story: a half that took no time was taken for one that never ran, and B for
    it: the W counted twice.
    """
    schedule = Schedule.from_text("0F0 0B0 0F1 0I1 0W1")
    costs = Costs(forward=1, backward_input=0, backward_weight=3)
    again = Costs.measured(simulate(schedule, costs))
    assert (again.backward_input, again.backward_weight) == ([0.0], [3.0])


@pytest.mark.parametrize(
    ("timelines", "words"),
    [
        ([[simulate(schedules.gpipe(2, 2))]], r"expected a Timeline, such as"),
        ([schedules.gpipe(2, 2)], r"expected a Timeline"),
        (
            [simulate(schedules.gpipe(2, 2)), simulate(schedules.gpipe(3, 2))],
            r"have 2 and 3 stages; expected one",
        ),
        (
            [
                simulate(schedules.gpipe(2, 2), Costs(unit=unit))
                for unit in ("s", "units")
            ],
            r"in s and in units; expected",
        ),
    ],
    ids=["list", "schedule", "stages", "units"],
)
def test_timelines_that_do_not_fit_each_other_are_refused(timelines, words):
    with pytest.raises(ScheduleError, match=words):
        Costs.measured(*timelines)


def test_without_a_timeline_there_is_nothing_to_fit():
    with pytest.raises(
        ScheduleError, match=r"Fitting costs needs at least one timeline"
    ):
        Costs.measured()


# -- stages cut further ----------------------------------------------------------------


@given(st.integers(1, 4), st.integers(1, 4))
def test_pieces_of_a_stage_take_its_time_together(num_stages, pieces):
    costs = Costs(
        forward=list(range(1, num_stages + 1)),
        weight_activation=7.0,
        message_size=[5.0] * num_stages,
    )
    cut = costs.cut(pieces)
    assert (
        sum(cut.forward) == pytest.approx(sum(costs.forward))
        and len(cut.forward) == num_stages * pieces
    )
    assert cut.weight_activation == 7.0 / pieces and set(cut.message_size) == {5.0}


def test_costs_in_an_array_are_cut_like_those_in_a_list():
    cut = Costs(forward=np.array([2.0, 4.0]), message_size=np.array([8.0, 0.0])).cut(2)
    assert (cut.forward, cut.message_size) == ((1, 1, 2, 2), (8, 8, 8, 0))


def test_between_two_pieces_a_message_has_the_mean_of_the_known_sizes():
    assert Costs(message_size=[4, 8, 0]).cut(2).message_size == (6, 4, 6, 8, 6, 0)


@pytest.mark.parametrize("pieces", [0, -1, 1.5, "2"])
def test_only_whole_pieces_are_made(pieces):
    with pytest.raises(ScheduleError, match=r"expected a whole number, 1 to 4096"):
        Costs().cut(pieces)


# -- the overhead in a simulation ------------------------------------------------------


def test_overhead_stands_between_two_actions_of_a_rank_and_nowhere_else():
    assert simulate(schedules.gpipe(1, 3), Costs(overhead=0.5)).makespan == 9 + 5 * 0.5
    # Rank 1 waits longer for rank 0 than its own overhead lasts.
    (first, _), (second, _) = simulate(
        schedules.gpipe(2, 1), Costs(overhead=0.5, latency=2)
    ).spans
    assert (first.end, second.start) == (1, 3)


@examples(60)
@given(st.data())
def test_sends_written_out_change_nothing_when_they_do_not_block(data):
    _, schedule = data.draw(
        named_schedules(max_ranks=4, max_microbatches=5, max_chunks=2)
    )
    costs = data.draw(costs_for(schedule.num_stages))
    assert (
        simulate(schedules.lower(schedule), costs).spans
        == simulate(schedule, costs).spans
    )


@pytest.mark.parametrize("overhead", [-1, float("nan"), float("inf"), [1, 2]])
def test_an_overhead_is_a_finite_time(overhead):
    with pytest.raises(
        ScheduleError, match=r"overhead is .*; expected a finite time, at least 0"
    ):
        simulate(schedules.gpipe(2, 2), Costs(overhead=overhead))
