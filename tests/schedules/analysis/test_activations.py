"""What a rank holds while each of its actions runs, and after it: one truth for counts,
memory, names and curves.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, Schedule, schedules, simulate
from minipipe.core.flow import flow_of
from minipipe.core.memory import Changes, pairs_of
from minipipe.core.schedules.action_table import check_range
from minipipe.schedules import schedule_of_text
from minipipe.schedules.analysis.activations import (
    Footprint,
    memory_levels,
    peak_activations,
    sizes_of,
)
from minipipe.schedules.analysis.held import held_pairs, lifetimes
from minipipe.schedules.simulation.simulator import peak_memory
from tests.refusals import code_of
from tests.strategies import examples, named_schedules, table

amounts = st.integers(0, 9)


@examples(60)
@given(
    named_schedules(max_ranks=4, max_microbatches=6, max_chunks=2),
    amounts,
    amounts,
    amounts,
)
def test_named_pairs_counts_and_memory_say_the_same(
    named, activation, weight_activation, transient
):
    schedule, n = named[1], named[1].num_stages
    footprint = Footprint([activation] * n, [weight_activation] * n, [transient] * n)
    flow = flow_of(schedule)
    counts, changes = pairs_of(flow), Changes(flow, sizes_of(footprint))
    for rank in range(schedule.num_ranks):
        pairs, counted = list(held_pairs(changes, rank)), list(counts.levels(rank))
        assert counted == [
            (len(during.pairs), len(after.pairs)) for during, after in pairs
        ]
        levels = memory_levels(schedule, footprint)[rank]
        assert levels == [(during.memory, after.memory) for during, after in pairs]
        assert max(during for during, _ in counted) == peak_activations(schedule)[rank]
        for stage, k, first, last in lifetimes(counts, rank):
            holders = [
                i
                for i, (while_it_runs, _) in enumerate(pairs)
                if (stage, k) in while_it_runs.pairs
            ]
            assert holders == list(range(first, last + 1))


AMOUNTS = {
    "F": (0.1,),
    "R": (1.3,),
    "B": (-0.1, -1.3),
    "I": (-0.1, 0.3, -1.3),
    "W": (-0.3,),
}


@pytest.mark.parametrize(
    "build", [schedules.one_f_one_b, schedules.zb_h1, schedules.pipedream]
)
def test_memory_with_recomputation_is_a_running_sum_to_the_last_bit(build):
    schedule = schedules.recomputed(build(3, 6))
    levels = memory_levels(schedule, Footprint([0.1] * 3, [0.3] * 3, [1.3] * 3))
    for row, found in zip(schedule.actions, levels):
        held = 0.0
        for (_, kind, _), (_, after) in zip(row, found):
            for amount in AMOUNTS.get(kind, ()):
                held += amount
            assert after == held


def test_memory_of_gradients_of_keys_and_values_is_a_sum_to_the_last_bit():
    row = [
        f"0{kind}0.{index}"
        for kind, slices in (("F", range(4)), ("B", (3, 2, 1, 0)))
        for index in slices
    ]
    schedule = Schedule.from_text(" ".join(row))
    (found,) = memory_levels(
        schedule, Footprint([1 / 4], [0], [0]), keys_values=[0.1 / 4]
    )
    activations, gradients = 0.0, 0.0
    for (_, kind, (_, index)), (_, after) in zip(schedule.actions[0], found):
        activations += 1 / 4 if kind == "F" else -1 / 4
        before = 0.1 / 4 * (index + 1) if kind == "B" and index < 3 else 0
        later = 0.1 / 4 * index if kind == "B" else 0
        assert after == activations + gradients - before + later
        gradients += later - before


@pytest.mark.parametrize(
    ("activation", "weight_activation", "transient", "peak"),
    [(2, 2, 0, 8), (2, 2, 5, 13), (1, 9, 0, 36)],
)
def test_a_timeline_peaks_where_a_backward_needs_most(
    activation, weight_activation, transient, peak
):
    costs = Costs(
        activation=activation,
        weight_activation=weight_activation,
        transient_activation=transient,
    )
    timeline = simulate(schedules.zb_h1(4, 8), costs)
    assert (
        max(timeline.peak_memory)
        == peak
        == max(
            max(amount for _, amount in timeline.memory_over_time(r)) for r in range(4)
        )
    )


def test_memory_of_a_stage_that_is_not_there_is_refused():
    """It was a bare IndexError."""
    assert (
        code_of(peak_memory, table("x", (0,), 1, [["1F0"]]), Costs()) == "out-of-range"
    )
    check_range(schedules.gpipe(2, 2))


def test_w_gives_back_what_i_left():
    schedule = schedule_of_text("0F0 0I0 0W0 0F1 0F2 0I1 0W1 0I2 0W2")
    assert simulate(schedule, Costs(activation=5, weight_activation=3)).peak_memory == (
        10,
    )
