"""Time against memory: the points are those of the table, the front is what nothing
beats, and bounds are below all.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, schedules
from minipipe.errors import ScheduleError
from minipipe.schedules.simulation.comparison import (
    TradeoffPoint,
    pareto_front,
    searched_choice,
    tradeoff,
)
from tests.strategies import examples

UPDATED = [name for name in schedules.REGISTRY if "U" in schedules.build(name, 4).kinds]
some_costs = st.sampled_from(
    [
        Costs(),
        Costs(latency=0.5),
        Costs(1, 2, 0.5, weight_activation=0.4),
        Costs(activation=3),
    ]
)


@examples(20)
@given(st.integers(2, 4), st.integers(1, 8), some_costs)
def test_the_points_are_those_of_the_table_and_no_bound_is_above_them(
    num_ranks, num_microbatches, costs
):
    rows = {
        row["schedule"]: row
        for row in schedules.table(num_ranks, num_microbatches, costs)
    }
    found = tradeoff(num_ranks, num_microbatches, costs)
    assert [choice.name for choice in found.choices] == [
        name
        for name, row in rows.items()
        if name not in {"forward-only", "seq1f1b", *UPDATED}
        and row["error"] is None
        and row["placement"] != "replicas"
    ]
    for choice in found.choices:
        row = rows[choice.name]
        assert choice.memory == max(row["peak_memory"])
        # otherwise ranks at work slow each other down, which is no idle time
        if costs.cores is None:
            assert choice.bubble == pytest.approx(row["bubble_fraction"])
        corners = [
            corner
            for corner in found.bounds.get(choice.placement, ())
            if corner[0] <= choice.memory
        ]
        assert not corners or corners[-1][1] <= choice.bubble + 1e-9, choice
    for corners in found.bounds.values():
        assert list(corners) == sorted(
            corners, key=lambda corner: (corner[0], -corner[1])
        )
        assert all(
            after < before for (_, before), (_, after) in zip(corners, corners[1:])
        )


@examples(40)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), max_size=8))
def test_the_front_is_what_no_other_choice_is_at_least_as_good_as(drawn):
    choices = [
        TradeoffPoint(f"{i}", "V", float(memory), bubble / 8, 1.0)
        for i, (memory, bubble) in enumerate(drawn)
    ]
    expected = {
        (a.memory, a.bubble)
        for a in choices
        if not any(
            b.memory <= a.memory and b.bubble <= a.bubble and b[2:4] != a[2:4]
            for b in choices
        )
    }
    front = pareto_front(choices)
    assert [(choice.memory, choice.bubble) for choice in front] == sorted(expected)


def test_schedules_with_replicas_or_updates_are_left_out_as_their_weights_take_memory_that_no_axis_shows():
    placements = {row["schedule"]: row["placement"] for row in schedules.table(4, 8)}
    twice = {name for name, placement in placements.items() if placement == "replicas"}
    assert (
        twice
        == {name for name, trade in schedules.TRADES.items() if "2x weights" in trade}
        >= {"chimera"}
    )
    assert not (twice | {*UPDATED}) & {choice.name for choice in tradeoff(4, 8).choices}


def test_no_bound_is_above_a_schedule_whose_ranks_share_cores():
    """The story: time that ranks lose to each other was no bubble, so ZB-H1 was below
    the bound of its memory.
    """
    found = tradeoff(4, 8, Costs(cores=2))
    (zb_h1,) = (choice for choice in found.choices if choice.name == "zb-h1")
    assert zb_h1.bubble == pytest.approx(1 - 24 / zb_h1.makespan)
    assert (
        zb_h1.bubble > dict(found.bounds["straight"])[4.0] == pytest.approx(1 - 24 / 27)
    )


def test_where_all_amounts_are_alike_the_bound_has_corners_at_their_multiples_alone():
    for costs, unit in ((Costs(), 1.0), (Costs(activation=3), 3.0)):
        bounds = tradeoff(4, 8, costs).bounds
        for memory in (memory for corners in bounds.values() for memory, _ in corners):
            assert memory in [unit / 2 * k for k in range(2, 17)]
    of_two_amounts = [
        memory
        for memory, _ in tradeoff(4, 8, Costs(weight_activation=0.4)).bounds["straight"]
    ]
    assert any(memory % 1 for memory in of_two_amounts)


def test_a_searched_schedule_is_a_point_under_the_costs_of_a_ranks_share():
    named = tradeoff(4, 8, Costs(latency=0.5)).choices
    (v_half,) = (choice for choice in named if choice.name == "v-half")
    assert searched_choice(
        schedules.v_half(4, 8), Costs(latency=0.5)
    ) == v_half._replace(is_searched=True)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            (1, 8),
            "value",
            "num_ranks is 1; expected at least 2, because one rank has no bubble",
        ),
        ((4, 0), "value", "num_microbatches is 0; expected a whole number"),
        ((4, 8, Costs(activation=0)), "value", "activation is 0; expected memory"),
        ((4, 8, Costs(0, 0, 0)), "value", "F, I and W take no time; expected some"),
        ((4, 8, Costs([1, 2])), "value", "forward has 2 values for 4 stages"),
    ],
)
def test_what_has_no_tradeoff_is_refused(arguments, code, words):
    with pytest.raises(ScheduleError) as caught:
        tradeoff(*arguments)
    assert caught.value.code == code and words in str(caught.value)
