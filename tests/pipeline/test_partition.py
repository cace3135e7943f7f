"""Which layers make which stage."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import partition_by_cost, partition_evenly, split_microbatches
from minipipe.errors import MicrobatchError, PartitionError
from minipipe.partition import check_partition
from tests.strategies import examples


def sizes(partition):
    return [len(part) for part in partition]


@pytest.mark.parametrize(
    ("layers", "stages", "expected"), [(12, 4, [3, 3, 3, 3]), (10, 3, [4, 3, 3]), (4, 4, [1] * 4), (5, 1, [5])]
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


@pytest.mark.parametrize("divide", [partition_evenly, lambda n, s: partition_by_cost([1] * n, s)])
@pytest.mark.parametrize(
    ("layers", "stages", "code"),
    [(3, 0, "zero-stages"), (3, -1, "zero-stages"), (3, 4, "too-few-layers"), (0, 1, "too-few-layers")],
)
def test_what_cannot_be_divided_says_what_to_do(divide, layers, stages, code):
    with pytest.raises(PartitionError) as caught:
        divide(layers, stages)
    assert caught.value.code == code
    assert isinstance(caught.value, ValueError)
    if code == "too-few-layers":
        assert f"{layers} layers cannot make {stages} stages" in str(caught.value)
        assert "deeper model" in str(caught.value)


@pytest.mark.parametrize("cost", [-1, float("nan"), float("inf")])
def test_a_cost_must_be_a_finite_number(cost):
    with pytest.raises(PartitionError) as caught:
        partition_by_cost([1, cost], 1)
    assert caught.value.code == "invalid-cost" and "Layer 1" in str(caught.value)


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
    assert caught.value.code == "not-a-partition"


@examples(100)
@given(st.integers(1, 200), st.integers(1, 200))
def test_microbatches_differ_by_at_most_one_and_drop_nothing(num_samples, num_microbatches):
    if num_samples < num_microbatches:
        with pytest.raises(MicrobatchError) as caught:
            split_microbatches(num_samples, num_microbatches)
        assert caught.value.code == "too-few-samples"
        return
    parts = [range(num_samples)[part] for part in split_microbatches(num_samples, num_microbatches)]
    assert len(parts) == num_microbatches
    assert [i for part in parts for i in part] == list(range(num_samples))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1 and min(map(len, parts)) >= 1


def test_a_batch_of_4_makes_2_microbatches_of_2():
    assert split_microbatches(4, 2) == [slice(0, 2), slice(2, 4)]


def test_no_microbatches_are_refused():
    with pytest.raises(MicrobatchError) as caught:
        split_microbatches(4, 0)
    assert caught.value.code == "out-of-range"
