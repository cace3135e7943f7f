"""Tests of 10_interleaved_order."""

from minipipe import Costs, Schedule, simulate
from minipipe.coursework import expect_at_most, expect_legal, expect_type

# One unit for a chunk's forward, and one or two for its backward.
EQUAL = Costs(forward=1, backward_input=1, backward_weight=0)
TWICE = Costs(forward=1, backward_input=1, backward_weight=1)


def check(task, num_ranks, num_microbatches, num_chunks, costs=EQUAL):
    sizes = f"{num_ranks} ranks, {num_microbatches} microbatches, {num_chunks} chunks"
    rows = task.rows(num_ranks, num_microbatches, num_chunks)
    expect_type(rows, (list, tuple), f"rows for {sizes}")
    schedule = Schedule(
        "rows", tuple(range(num_ranks)) * num_chunks, num_microbatches, rows
    )
    expect_legal(schedule, f"rows for {sizes}")
    rounds = max(num_microbatches, num_ranks) * (num_chunks - 1) + num_microbatches
    unit = 2 if costs is EQUAL else 3
    expect_at_most(
        simulate(schedule, costs).makespan,
        unit * (rounds + num_ranks - 1),
        f"time of {sizes}",
    )


def test_four_ranks_take_38_units(task):
    """4 ranks, 8 microbatches and 2 chunks take 38 units, not 86.

    Hint: run chunk 0 of several microbatches before chunk 1 of the first of them. How
    many?
    """
    check(task, 4, 8, 2)


def test_two_ranks(task):
    """The example, 2 ranks, 4 microbatches and 2 chunks, takes 18 units."""
    check(task, 2, 4, 2)


def test_three_chunks(task):
    """Three chunks shrink the bubble further: 3 ranks and 6 microbatches take 40
    units.
    """
    check(task, 3, 6, 3)


# HIDDEN
def test_backwards_that_take_twice_as_long(task):
    """The order is right whatever the costs: no more than 57 units with backwards of
    two.
    """
    check(task, 4, 8, 2, TWICE)
    check(task, 3, 9, 2, TWICE)


def test_many_ranks_and_chunks(task):
    """5 ranks with 4 chunks, 6 ranks with 2, 2 ranks with 5."""
    for sizes in ((5, 10, 4), (6, 12, 2), (2, 8, 5)):
        check(task, *sizes)


def test_fewer_microbatches_than_ranks(task):
    """With m < p each chunk waits for the trip around the ranks, and no more time is
    lost than that.
    """
    for sizes in ((4, 2, 2), (5, 3, 3)):
        check(task, *sizes)


WRONG_ANSWERS = [
    (
        "groups of two microbatches, whatever the number of ranks: pictures show two",
        "range(0, num_microbatches, num_ranks)\n        for chunk in "
        "range(num_chunks)\n"
        "        for k in range(first, min(first + num_ranks, num_microbatches))",
        "range(0, num_microbatches, 2)\n        for chunk in range(num_chunks)\n"
        "        for k in range(first, min(first + 2, num_microbatches))",
    ),
    (
        (
            "one microbatch too few in each group: p - 1 others, without the "
            "microbatch itself"
        ),
        "range(0, num_microbatches, num_ranks)\n        for chunk in "
        "range(num_chunks)\n"
        "        for k in range(first, min(first + num_ranks, num_microbatches))",
        "range(0, num_microbatches, max(1, num_ranks - 1))\n        for chunk in "
        "range(num_chunks)\n"
        "        for k in range(first, min(first + max(1, num_ranks - 1), "
        "num_microbatches))",
    ),
    (
        "the last chunk first, as in the backward pass",
        "for chunk in range(num_chunks)\n        for k in range(first",
        "for chunk in reversed(range(num_chunks))\n        for k in range(first",
    ),
    (
        "complete groups only: the microbatches at the end are lost",
        "range(0, num_microbatches, num_ranks)",
        "range(0, num_microbatches - num_ranks + 1, num_ranks)",
    ),
    (
        "one microbatch after the other, with the loops swapped inside a group",
        "        for chunk in range(num_chunks)\n"
        "        for k in range(first, min(first + num_ranks, num_microbatches))\n",
        "        for k in range(first, min(first + num_ranks, num_microbatches))\n"
        "        for chunk in range(num_chunks)\n",
    ),
]
