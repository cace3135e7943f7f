"""Tests of 13_partition."""

import random
from itertools import combinations
from numbers import Integral

from minipipe import partition_by_cost
from minipipe.coursework import (
    expect_at_most,
    expect_equal,
    expect_sequence,
    expect_that,
)


def check(task, costs, num_stages, best):
    """Expect sizes that cover all layers, and a most expensive stage that costs no more
    than the optimum.
    """
    call = (
        f"partition({list(costs) if len(costs) < 12 else f'{len(costs)} costs'}, "
        f"{num_stages})"
    )
    # a copy, which the student may modify
    sizes = expect_sequence(task.partition(list(costs), num_stages), call)
    are_sizes = all(isinstance(size, Integral) and size >= 1 for size in sizes)
    expect_that(are_sizes, call, "whole numbers, at least 1", sizes)
    sizes = [int(size) for size in sizes]
    expect_equal(
        len(sizes), num_stages, f"number of stages of {call}, which is {sizes}"
    )
    expect_equal(
        sum(sizes),
        len(costs),
        f"number of layers in all stages of {call}, which is {sizes}",
    )
    expect_at_most(
        largest(costs, sizes),
        best * (1 + 1e-12),
        f"most expensive stage of {call}, which is {sizes}",
    )


def largest(costs, sizes):
    """Return the cost of the most expensive stage."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return max(sum(costs[end - size : end]) for size, end in zip(sizes, ends))


def best_of_all(costs, num_stages):
    """Return the smallest possible cost of the most expensive stage, over all
    partitions.
    """
    cuts = combinations(range(1, len(costs)), num_stages - 1)
    return min(
        largest(costs, [b - a for a, b in zip((0, *cut), (*cut, len(costs)))])
        for cut in cuts
    )


def test_one_large_layer_stands_alone(task):
    """[99, 100, 1] in 2 stages costs at most 101, not 199.

    Hint: it can be best to close a stage before it reaches the average.
    """
    check(task, [99, 100, 1], 2, 101)


def test_there_are_as_many_stages_as_asked_for(task):
    """[1, 2] in 2 stages becomes two stages, and [1, 1, 1, 1] in 3 becomes three.

    Hint: leave at least one layer for each remaining stage.
    """
    check(task, [1, 2], 2, 2)
    check(task, [1, 1, 1, 1], 3, 2)


def test_random_costs_against_all_partitions(task):
    """For ten layers no partition into 3 or 4 stages is better."""
    generator = random.Random(0)
    for num_stages in (3, 4):
        costs = [generator.randint(1, 30) for _ in range(10)]
        check(task, costs, num_stages, best_of_all(costs, num_stages))


# HIDDEN
def test_other_random_costs(task):
    """The same for other costs and numbers of stages, including fractions and zeros."""
    generator = random.Random(1)
    for _ in range(30):
        costs = [
            generator.choice((0.0, 0.25, 1.5, 3.0, 10.0))
            for _ in range(generator.randint(4, 9))
        ]
        num_stages = generator.randint(1, len(costs))
        check(task, costs, num_stages, best_of_all(costs, num_stages))


def test_one_stage_and_one_layer_each(task):
    """The extremes: all layers in one stage, and one stage for every layer."""
    check(task, [4, 2, 7], 1, 13)
    check(task, [4, 2, 7, 0], 4, 7)


def test_eighty_layers_in_twelve_stages(task):
    """Large models are divided in a moment, and just as well as small ones."""
    generator = random.Random(2)
    costs = [generator.randint(1, 100) for _ in range(80)]
    best = max(
        sum(costs[layer] for layer in part) for part in partition_by_cost(costs, 12)
    )
    check(task, costs, 12, best)


GREEDY = """    average = sum(costs) / num_stages
    sizes, running, size = [], 0.0, 0
    for cost in costs:
        running, size = running + cost, size + 1
        if running >= average and len(sizes) < num_stages - 1:
            sizes, running, size = [*sizes, size], 0.0, 0
    return [*sizes, size] if size else sizes
    num_layers = len(costs)
"""

WRONG_ANSWERS = [
    (
        (
            "greedy: close a stage once it has reached the average; everyone's first "
            "idea, and used by many libraries"
        ),
        "    num_layers = len(costs)\n",
        GREEDY,
    ),
    (
        (
            "layers are sorted to balance them: but stages must keep the order, and "
            "the list is the caller's"
        ),
        "    num_layers = len(costs)\n",
        "    costs.sort(reverse=True)\n    num_layers = len(costs)\n",
    ),
    (
        "assigned layers are zeroed in the list itself, which is the caller's",
        "    num_layers = len(costs)\n",
        (
            "    for layer in range(len(costs)):\n        costs[layer] = 0\n    "
            "num_layers = len(costs)\n"
        ),
    ),
    (
        "the same number of layers in each stage: right if all layers cost the same",
        "    num_layers = len(costs)\n",
        "    num_layers = len(costs)\n"
        "    return [num_layers // num_stages + (s < num_layers % num_stages) "
        "for s in range(num_stages)]\n",
    ),
    (
        "the sum instead of the largest: it is the same for every partition",
        "max(best[i][0], before[n] - before[i])",
        "best[i][0] + (before[n] - before[i])",
    ),
    (
        "the last stage alone is made cheap, whatever the ones before it cost",
        "max(best[i][0], before[n] - before[i])",
        "before[n] - before[i]",
    ),
]

VARIANTS = [
    [
        ("random.Random(0)",),
        ("random.Random(3)",),
        ("random.Random(4)",),
        ("random.Random(5)",),
    ],
    [
        ("random.Random(1)",),
        ("random.Random(6)",),
        ("random.Random(7)",),
        ("random.Random(8)",),
    ],
]
