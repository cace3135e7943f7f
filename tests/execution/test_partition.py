"""Which layers make which stage."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Plan, nn, partition_by_cost, partition_evenly, split_microbatches
from minipipe.core.schedules.placement import looped_placement, neighbouring_placement
from minipipe.errors import ArgumentError, MicrobatchError, PartitionError, counted
from minipipe.execution.partition import (
    check_partition,
    partition_by_stage_cost,
    smallest_largest_rank,
    smallest_largest_stage,
)
from minipipe.schedules.placements import v_placement
from tests.strategies import examples


def sizes(partition):
    return [len(part) for part in partition]


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [(12, 4, [3, 3, 3, 3]), (10, 3, [4, 3, 3]), (4, 4, [1] * 4), (5, 1, [5])],
)
def test_the_first_stages_get_one_more(layers, stages, expected):
    partition = partition_evenly(layers, stages)
    assert all(isinstance(part, range) for part in partition)
    assert sizes(partition) == expected
    assert [i for part in partition for i in part] == list(range(layers))


@pytest.mark.parametrize(
    ("costs", "stages", "expected"),
    [
        ([100] * 8, 4, [2, 2, 2, 2]),
        ([100, 100, 100, 100, 400], 2, [4, 1]),
        ([99, 100, 1], 2, [1, 2]),  # greedy by the average puts 199 in one stage
        ([1, 2], 2, [1, 1]),  # greedy makes one stage
        ([1, 1, 1, 1], 3, [2, 1, 1]),
        ([0, 0, 0, 0, 0, 0], 3, [2, 2, 2]),
        ([5, 0, 0, 0], 2, [2, 2]),  # ties go to the most even
        ([0.1] * 10, 5, [2] * 5),
        ([10, 20, 15, 5], 2, [2, 2]),
    ],
)
def test_the_largest_stage_is_as_small_as_can_be(costs, stages, expected):
    assert sizes(partition_by_cost(costs, stages)) == expected


@examples(200)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data())
def test_no_partition_at_all_beats_partition_by_cost(costs, data):
    stages = data.draw(st.integers(1, len(costs)))
    key = lambda parts: (max(parts), sum(part**2 for part in parts))
    everything = [
        key([sum(costs[a:b]) for a, b in zip((0, *cuts), (*cuts, len(costs)))])
        for cuts in combinations(range(1, len(costs)), stages - 1)
    ]
    partition = partition_by_cost(costs, stages)
    assert [i for part in partition for i in part] == list(range(len(costs)))
    assert all(partition)
    assert key([sum(costs[i] for i in part) for part in partition]) == min(everything)


# -- several stages on a rank ----------------------------------------------------------


def loads(costs, placement, partition):
    """Return the cost of each rank, of costs by stage."""
    found = [0] * (max(placement) + 1)
    for stage, part in enumerate(partition):
        found[placement[stage]] += sum(costs[stage][i] for i in part)
    return found


def every_partition(num_layers, num_stages):
    for cuts in combinations(range(1, num_layers), num_stages - 1):
        yield [range(a, b) for a, b in zip((0, *cuts), (*cuts, num_layers))]


@st.composite
def placed_layers(draw):
    """Draw a placement of up to 6 stages and, by stage, the costs of up to 12 layers:
    so many are searched exactly.
    """
    placement = draw(
        st.one_of(
            st.integers(1, 3).map(v_placement),
            st.integers(1, 3).map(lambda ranks: looped_placement(ranks, 2)),
            st.integers(1, 2).map(lambda ranks: looped_placement(ranks, 3)),
            st.integers(1, 3).map(lambda ranks: neighbouring_placement(ranks, 2)),
            st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple),
        )
    )
    num_layers = draw(
        st.integers(len(placement), 12 if draw(st.booleans()) else len(placement) + 3)
    )
    row = st.lists(st.integers(0, 9), min_size=num_layers, max_size=num_layers)
    if draw(st.booleans()):
        return [draw(row)] * len(placement), placement
    return [draw(row) for _ in placement], placement


@examples(200)
@given(placed_layers())
def test_no_partition_at_all_beats_the_one_whose_largest_rank_is_smallest(placed):
    costs, placement = placed
    partition = partition_by_stage_cost(costs, len(placement), placement)
    check_partition(partition, len(costs[0]), len(placement))
    least = min(
        max(loads(costs, placement, other))
        for other in every_partition(len(costs[0]), len(placement))
    )
    assert max(loads(costs, placement, partition)) == least


@examples(20)
@given(
    st.lists(st.floats(0, 1), min_size=24, max_size=40),
    st.sampled_from([v_placement(6), looped_placement(4, 3)]),
)
def test_where_ways_are_dropped_it_is_never_worse_than_stage_by_stage(row, placement):
    costs = [row] * len(placement)
    partition = smallest_largest_rank(costs, placement)
    check_partition(partition, len(row), len(placement))
    by_stage = max(loads(costs, placement, smallest_largest_stage(costs)))
    assert max(loads(costs, placement, partition)) <= by_stage * (1 + 1e-12)


def test_in_a_v_the_rank_with_a_large_first_stage_gets_a_small_last_one():
    """The story: stages were balanced one by one, so the rank of the embedding had
    twice the work of the other.
    """
    costs, v = [6, 1, 1, 1, 1, 1, 1], v_placement(2)
    assert loads([costs] * 4, v, smallest_largest_stage([costs] * 4)) == [8, 4]
    assert loads([costs] * 4, v, partition_by_cost(costs, 4, v)) == [7, 5]


def test_a_plan_balances_the_ranks_of_its_schedule():
    model = nn.Sequential(*(nn.Linear(n, n) for n in (24, 8, 8, 8, 8, 8, 8)))

    def largest(schedule, **options):
        plan = Plan(model, schedule, num_ranks=2, **options)
        by_rank = [0, 0]
        for layer, rank in zip(plan.layers, plan.rank_of_layer):
            by_rank[rank] += layer.num_parameters
        return max(by_rank)

    by_stage = smallest_largest_stage([[layer.num_parameters for layer in model]] * 4)
    assert largest("zb-v") < largest("zb-v", partition=by_stage)
    costs = [1.0] * 6 + [6.0]
    ranks = Plan(model, "zb-v", num_ranks=2, layer_costs=costs).rank_of_layer
    assert sum(cost for cost, rank in zip(costs, ranks) if rank == 0) == 7.0


def test_a_placement_has_a_rank_for_each_stage():
    with pytest.raises(
        ArgumentError,
        match="The placement has 2 ranks; expected one for each of 3 stages",
    ) as caught:
        partition_by_cost([1, 2, 3], 3, placement=(0, 1))
    assert caught.value.code == "value"


# -- what cannot be --------------------------------------------------------------------


@pytest.mark.parametrize(
    "divide", [partition_evenly, lambda n, s: partition_by_cost([1] * n, s)]
)
@pytest.mark.parametrize(
    ("layers", "stages", "code"),
    [(3, 0, "value"), (3, -1, "value"), (3, 4, "too-few"), (0, 1, "too-few")],
)
def test_what_cannot_be_divided_says_what_to_do(divide, layers, stages, code):
    with pytest.raises(PartitionError) as caught:
        divide(layers, stages)
    assert caught.value.code == code
    assert isinstance(caught.value, ValueError)
    if code == "too-few":
        assert (
            f"{counted(layers, 'layer')} cannot make {counted(stages, 'stage')}"
            in str(caught.value)
        )
        assert "deeper model" in str(caught.value)


@pytest.mark.parametrize("cost", [-1, float("nan"), float("inf")])
def test_a_cost_must_be_a_finite_number(cost):
    with pytest.raises(PartitionError) as caught:
        partition_by_cost([1, cost], 1)
    assert caught.value.code == "value" and "layer 1" in str(caught.value)


@pytest.mark.parametrize(
    "parts",
    [
        [range(2)],
        [range(1), range(2, 4)],
        [range(2), range(2, 2), range(2, 4)],
        [range(3), range(2, 4)],
        [range(2), range(2, 5)],
        [range(0, 4, 2), range(2, 4)],
    ],
)
def test_a_partition_by_hand_must_cover_every_layer_once(parts):
    with pytest.raises(PartitionError) as caught:
        check_partition(parts, 4, 2)
    assert caught.value.code == "value"


@examples(100)
@given(st.integers(1, 200), st.integers(1, 200))
def test_microbatches_differ_by_at_most_one_and_drop_nothing(
    num_samples, num_microbatches
):
    if num_samples < num_microbatches:
        with pytest.raises(MicrobatchError) as caught:
            split_microbatches(num_samples, num_microbatches)
        assert caught.value.code == "too-few"
        return
    parts = [
        range(num_samples)[part]
        for part in split_microbatches(num_samples, num_microbatches)
    ]
    assert len(parts) == num_microbatches
    assert [i for part in parts for i in part] == list(range(num_samples))
    assert (
        max(map(len, parts)) - min(map(len, parts)) <= 1 and min(map(len, parts)) >= 1
    )


def test_a_batch_of_4_makes_2_microbatches_of_2():
    assert split_microbatches(4, 2) == [slice(0, 2), slice(2, 4)]


def test_no_microbatches_are_refused():
    with pytest.raises(MicrobatchError) as caught:
        split_microbatches(4, 0)
    assert caught.value.code == "out-of-range"
