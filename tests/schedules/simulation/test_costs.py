"""Costs that do not fit, and schedules that cannot be timed."""

import math

import pytest

from minipipe import schedules
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.errors import ScheduleError
from minipipe.schedules import schedule_of_text
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.simulator import simulate
from minipipe.schedules.simulation.timeline import Timeline
from tests.refusals import code_of
from tests.strategies import spans, table


@pytest.mark.parametrize("field", ["forward", "backward_input", "backward_weight"])
@pytest.mark.parametrize(
    "wrong",
    [[1, 2], [1, 2, 3, 4], [], -1, math.nan, math.inf, [1, -1, 1], [1, math.nan, 1]],
)
def test_costs_of_another_length_or_below_zero_or_not_finite_are_refused(field, wrong):
    with pytest.raises(ScheduleError) as caught:
        simulate(schedules.gpipe(3, 2), Costs(**{field: wrong}))
    assert caught.value.code == "value"
    assert field in str(caught.value)


@pytest.mark.parametrize("wrong", [0, -1, math.nan])
def test_a_bandwidth_that_carries_nothing_is_refused(wrong):
    with pytest.raises(
        ScheduleError, match="bandwidth is .*; expected a number, more than 0"
    ):
        simulate(schedules.gpipe(3, 2), Costs(bandwidth=wrong))


@pytest.mark.parametrize("field", ["message_size", "activation", "weight_activation"])
@pytest.mark.parametrize("wrong", [[1, 2], -1, math.inf])
def test_sizes_and_memory_of_another_length_or_below_zero_are_refused(field, wrong):
    with pytest.raises(ScheduleError, match=field):
        simulate(schedules.gpipe(3, 2), Costs(**{field: wrong}))


@pytest.mark.parametrize(
    "field", ["forward", "activation", "message_size", "keys_values"]
)
@pytest.mark.parametrize(
    ("wrong", "named"),
    [(-1, "-1"), ([-1, 1], r"\[-1, 1\]"), ([None, 1], r"\[None, 1\]")],
)
def test_costs_of_slices_and_of_pieces_are_refused_as_they_were_given(
    field, wrong, named
):
    """The story: a slice of a sequence takes half of its time, and -0.5 was refused
    where -1 was given.
    """
    with pytest.raises(ScheduleError, match=f"{field} is {named}; expected"):
        simulate(schedules.seq1f1b(2, 2), Costs(**{field: wrong}))
    if field != "message_size":
        with pytest.raises(ScheduleError, match=f"{field} is {named}; expected"):
            Costs(**{field: wrong}).cut(2)


@pytest.mark.parametrize("wrong", ["5F0", "0F9"])
def test_what_names_a_stage_or_microbatch_that_is_not_there_is_no_bare_index_error(
    wrong,
):
    schedule = table("wrong", (0,), 1, [["0F0", wrong, "0B0"]])
    for use in (simulate, lower):
        with pytest.raises(ScheduleError) as caught:
            use(schedule)
        assert caught.value.code == "out-of-range"


@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf])
def test_a_latency_below_zero_or_not_finite_is_refused(wrong):
    with pytest.raises(ScheduleError) as caught:
        simulate(schedules.gpipe(3, 2), Costs(latency=wrong))
    assert caught.value.code == "value"
    assert "latency" in str(caught.value)


def test_what_cannot_end_has_no_timeline():
    with pytest.raises(ScheduleError) as caught:
        simulate(schedule_of_text("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0"))
    assert caught.value.code == "deadlock"
    assert (
        "rank 0 cannot run 0B0 (position 1) before 1B0, which rank 1 runs later"
        in str(caught.value)
    )


@pytest.mark.parametrize(
    "name",
    [
        "activation",
        "weights",
        "weight_activation",
        "transient_activation",
        "keys_values",
    ],
)
def test_memory_that_no_number_can_hold_is_refused(name):
    """The story: it was printed as inf, and as Infinity in JSON, which is none."""
    schedule = (
        schedules.zb_h1(4, 8)
        if name == "weight_activation"
        else schedules.one_f_one_b(4, 8)
    )
    schedule = schedules.build("2bw", 4, 8) if name == "weights" else schedule
    schedule = (
        schedules.seq1f1b(4, 8, num_slices=3) if name == "keys_values" else schedule
    )
    given = {"activation": 1e308} if name == "weight_activation" else {}
    with pytest.raises(
        ScheduleError, match="sum of the memory is too large for a number"
    ):
        simulate(schedule, Costs(**{**given, name: 1e308}))


def test_a_cost_that_is_given_twice_is_refused():
    """The last one won in silence."""
    assert code_of(Costs.parse, "F=1,forward=2") == "value"


def test_times_beyond_all_numbers_are_refused():
    """They were printed as Infinity and NaN, which is no JSON."""
    assert code_of(simulate, schedules.gpipe(4, 8), Costs(forward=1e308)) == "value"


def test_measured_costs_are_means_and_of_mixed_backwards_those_of_the_halves():
    assert Costs.measured(
        Timeline("m", (spans(("0F0", 0, 1), ("0F1", 1, 4)),), (1,))
    ).forward == [2]
    schedule = schedules.dualpipe_v(2, 4)
    timeline = simulate(schedule, Costs(1, 2, 3))
    assert simulate(schedule, Costs.measured(timeline)) == timeline
