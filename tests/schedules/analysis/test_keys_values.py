"""What slices of a sequence keep for each other: keys, values and their gradients, by
their definition.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, schedules, simulate, verify
from minipipe.errors import ScheduleError
from minipipe.schedules import peak_memory, seq1f1b, split_backward
from tests.schedules.sliced_tables import sliced_schedules
from tests.strategies import examples


def kept(row, n, amounts):
    """Yield, after each action, the gradients of keys and values that were begun and
    are not over, one by one.
    """
    for i in range(1, len(row) + 1):
        done = {(a.stage, a.kind.value, a.microbatch) for a in row[:i]}
        gone_back = {(stage, k) for stage, letter, k in done if letter in "BI"}
        later = {(stage, j) for stage, k in gone_back for j in range(k // n * n, k)}
        yield sum(amounts[stage] for stage, _ in later - gone_back) / n


@examples(100)
@given(sliced_schedules(), st.booleans(), st.data())
def test_gradients_of_keys_and_values_are_held_until_the_backward_of_their_slice(
    schedule, splits, data
):
    schedule = split_backward(schedule) if splits else schedule
    amounts = [data.draw(st.integers(0, 3)) for _ in range(schedule.num_stages)]
    alone, whole = (
        simulate(schedule, Costs(activation=8, keys_values=given))
        for given in (0, amounts)
    )
    for row, before, after in zip(schedule.numbered, alone.memory, whole.memory):
        added = [b - a for a, b in zip(before, after)]
        assert added == pytest.approx(list(kept(row, schedule.num_slices, amounts)))
    assert all(
        during >= after
        for during, after in zip(sum(whole.memory_during, ()), sum(whole.memory, ()))
    )
    assert whole.peak_memory == peak_memory(
        schedule, Costs(activation=8, keys_values=amounts)
    )
    assert (alone.makespan, alone.peak_activations) == (
        whole.makespan,
        whole.peak_activations,
    )


@pytest.mark.parametrize(
    ("k", "peak"), [(1, 4), (2, 2.5 + 0.25 / 2), (4, 1.75 + 0.25 * 3 / 4)]
)
def test_on_the_first_rank_they_add_all_slices_but_one(k, peak):
    """At the peak the last slice of a sequence goes back: its activation, and the
    gradients for all those before it.
    """
    assert peak_memory(seq1f1b(4, 8, k), Costs(keys_values=0.25))[0] == peak


def test_without_a_backward_keys_and_values_stay_until_the_last_slice():
    only = schedules.Schedule.from_text("0F0.0 0F0.1 0F1.0 0F0.2 0F1.1 0F1.2")
    timeline = simulate(only, Costs(activation=0, keys_values=3))
    assert timeline.memory == ((1, 2, 3, 1, 2, 0),) and timeline.memory_during == (
        (1, 2, 3, 3, 2, 2),
    )


def test_whole_microbatches_keep_none():
    one = schedules.one_f_one_b(4, 8)
    assert peak_memory(one, Costs(keys_values=5)) == peak_memory(one, Costs())


def test_costs_of_pieces_and_slices_have_a_part_of_them():
    assert Costs(keys_values=[4, 8]).cut(2).keys_values == (2, 2, 4, 4)
    assert Costs(keys_values=[4, 8]).sliced(4).keys_values == (1, 2)
    assert Costs.parse("keys_values=2").keys_values == 2


def test_the_verifier_limits_them_as_the_simulator_counts_them():
    """The story: a limit of 5.1 was kept, by a schedule whose peak is 7."""
    schedule, costs = seq1f1b(4, 8), Costs(activation=2, keys_values=4)
    assert peak_memory(schedule, costs) == (7, 6, 5, 4)
    of_slices = costs.sliced(2)
    held = {
        "memory": of_slices.memory(4),
        "keys_values": of_slices.by_stage("keys_values", 4),
    }
    verify(schedule, (7, 6, 5, 4), **held)
    with pytest.raises(ScheduleError, match="it holds 7; the limit is 6.9") as caught:
        verify(schedule, 6.9, **held)
    assert caught.value.code == "memory"
    with pytest.raises(ScheduleError, match="keys_values"):
        verify(schedule, 7, keys_values=[1])
