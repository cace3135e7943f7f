"""What a rank holds while each of its actions runs, and after it: one truth for counts, memory, names and curves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, schedules, simulate
from minipipe.core.flow import flow_of
from minipipe.core.memory import Changes, held_pairs, lifetimes, pairs_of
from minipipe.schedules.analysis.activations import Footprint, memory_levels, peak_activations, sizes_of
from tests.strategies import examples, named_schedules

amounts = st.integers(0, 9)


@examples(60)
@given(named_schedules(max_ranks=4, max_microbatches=6, max_chunks=2), amounts, amounts, amounts)
def test_named_pairs_counts_and_memory_say_the_same(named, activation, weight_activation, transient):
    schedule, n = named[1], named[1].num_stages
    footprint = Footprint([activation] * n, [weight_activation] * n, [transient] * n)
    flow = flow_of(schedule)
    counts, changes = pairs_of(flow), Changes(flow, sizes_of(footprint, n))
    for rank in range(schedule.num_ranks):
        pairs, counted = list(held_pairs(changes, rank)), list(counts.levels(rank))
        assert counted == [(len(during.pairs), len(after.pairs)) for during, after in pairs]
        levels = memory_levels(schedule, footprint)[rank]
        assert levels == [(during.memory, after.memory) for during, after in pairs]
        assert max(during for during, _ in counted) == peak_activations(schedule)[rank]
        for stage, k, first, last in lifetimes(counts, rank):
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
