"""What a rank holds while each of its actions runs, and after it: one truth for counts, memory, names and curves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, schedules, simulate
from minipipe.analysis.activations import (
    Footprint,
    held_after,
    held_pairs,
    lifetimes,
    memory_after,
    memory_during,
    memory_peaks,
    peak_activations,
)
from tests.strategies import examples, named_schedules

amounts = st.integers(0, 9)


@examples(60)
@given(named_schedules(max_ranks=4, max_microbatches=6, max_chunks=2), amounts, amounts, amounts)
def test_named_pairs_counts_and_memory_say_the_same(named, activation, weight_activation, transient):
    schedule, n = named[1], named[1].num_stages
    footprint = Footprint([activation] * n, [weight_activation] * n, [transient] * n)
    after, during = memory_after(schedule, footprint), memory_during(schedule, footprint)
    for rank, pairs in enumerate(held_pairs(schedule, footprint)):
        row, forward_only = schedule.actions[rank], schedule.is_forward_only
        counted = list(held_after(row, forward_only))
        assert counted == [len((held if not forward_only else while_it_runs).pairs) for while_it_runs, held in pairs]
        if not forward_only:
            assert list(after[rank]) == [held.memory for _, held in pairs]
        if during is not None:
            assert list(during[rank]) == [while_it_runs.memory for while_it_runs, _ in pairs]
        assert max(counted) == peak_activations(schedule)[rank]
        most = max(max(while_it_runs.memory, held.memory) for while_it_runs, held in pairs)
        assert memory_peaks(schedule, footprint)[rank] == most
        for stage, k, first, last in lifetimes(row, forward_only):
            holders = [i for i, (while_it_runs, _) in enumerate(pairs) if (stage, k) in while_it_runs.pairs]
            assert holders == list(range(first, last + 1))


@pytest.mark.parametrize(
    ("activation", "weight_activation", "transient", "peak"), [(2, 2, 0, 8), (2, 2, 5, 13), (1, 9, 0, 36)]
)
def test_a_timeline_peaks_where_a_backward_needs_most(activation, weight_activation, transient, peak):
    costs = Costs(activation=activation, weight_activation=weight_activation, transient_activation=transient)
    timeline = simulate(schedules.zb_h1(4, 8), costs)
    assert (
        max(timeline.peak_memory)
        == peak
        == max(max(amount for _, amount in timeline.memory_over_time(r)) for r in range(4))
    )
