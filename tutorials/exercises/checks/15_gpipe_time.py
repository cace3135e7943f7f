"""Tests of 15_gpipe_time."""

import random

from minipipe import Costs, schedules, simulate
from minipipe.coursework import expect_close


def check(task, forward, backward, num_microbatches):
    """Expect the makespan of the simulator."""
    costs = Costs(forward, backward, 0)
    expected = simulate(schedules.gpipe(len(forward), num_microbatches), costs).makespan
    call = f"gpipe_time({forward}, {backward}, {num_microbatches})"
    expect_close(
        task.gpipe_time(list(forward), list(backward), num_microbatches), expected, call
    )


def test_the_example(task):
    """Two ranks and two microbatches take 9 units.

    Hint: the last rank has to run its second forward before its first backward.
    """
    check(task, [1, 1], [2, 2], 2)


def test_four_ranks_take_33_units(task):
    """4 ranks and 8 microbatches take (8 + 4 - 1)(1 + 2) units, not 26.

    Hint: when a rank starts its backwards, does the code know when its forwards ended?
    """
    check(task, [1, 1, 1, 1], [2, 2, 2, 2], 8)


def test_one_rank_works_all_the_time(task):
    """A single rank does one thing after the other: 5 microbatches take 5 forwards and
    5 backwards.
    """
    check(task, [1], [2], 5)


def test_a_slow_rank_in_the_middle(task):
    """All ranks wait for the slowest one."""
    check(task, [1, 2, 1], [2, 4, 2], 6)


# HIDDEN
def test_slow_forwards_here_and_slow_backwards_there(task):
    """The rank with the slowest forward need not have the slowest backward.

    Hint: GPipe takes sum F + (m - 1) max F for the forwards, and likewise for the
    backwards.
    """
    check(task, [5, 1, 1], [1, 1, 6], 4)
    check(task, [1, 3, 1, 1], [4, 1, 1, 2], 7)


def test_other_numbers(task):
    """The simulator agrees, whatever the times are."""
    generator = random.Random(15)
    for num_ranks in (2, 3, 5, 6):
        forward, backward = (
            [generator.randint(1, 9) for _ in range(num_ranks)] for _ in range(2)
        )
        for num_microbatches in (1, 2, num_ranks + 3):
            check(task, forward, backward, num_microbatches)


def test_many_microbatches(task):
    """A hundred microbatches on seven ranks, with fractional times."""
    generator = random.Random(16)
    check(
        task,
        [generator.random() for _ in range(7)],
        [2 * generator.random() for _ in range(7)],
        100,
    )


WRONG_ANSWERS = [
    (
        (
            "the clocks of the ranks are reset before the backwards: each rank does "
            "two things at once"
        ),
        "    pass_through(reversed(range(len(backward))), backward, ready, free)",
        (
            "    free = [0.0] * len(forward)\n    "
            "pass_through(reversed(range(len(backward))), backward, ready, free)"
        ),
    ),
    (
        "one clock for all ranks: then only one of them works at a time",
        "free[rank] = ready[k] = max(ready[k], free[rank]) + times[rank]",
        "free[0] = ready[k] = max(ready[k], free[0]) + times[rank]",
    ),
    (
        "the backwards pass through the ranks from first to last, like the forwards",
        "reversed(range(len(backward)))",
        "range(len(backward))",
    ),
    (
        "the formula for equal stages, using the slowest stage for all of them",
        "    return ready[-1]\n",
        (
            "    return (num_microbatches + len(forward) - 1) * (max(forward) + "
            "max(backward))\n"
        ),
    ),
    (
        (
            "forward and backward of a rank as a single piece of work, as if the "
            "same rank were slowest in both"
        ),
        "    return ready[-1]\n",
        "    both = [f + b for f, b in zip(forward, backward)]\n"
        "    return sum(both) + (num_microbatches - 1) * max(both)\n",
    ),
    (
        "only the last rank waits for its forwards, and only for the first microbatch",
        "    pass_through(reversed(range(len(backward))), backward, ready, free)",
        "    free = [0.0] * (len(forward) - 1) + [ready[0]]\n"
        "    pass_through(reversed(range(len(backward))), backward, ready, free)",
    ),
]

VARIANTS = [
    [
        ("random.Random(15)",),
        ("random.Random(17)",),
        ("random.Random(18)",),
        ("random.Random(19)",),
    ],
    [
        ("[1, 2, 1], [2, 4, 2], 6)", "[5, 1, 1], [1, 1, 6], 4)"),
        ("[1, 3, 1], [2, 6, 2], 5)", "[4, 1, 2], [2, 1, 7], 5)"),
        ("[1, 2, 1], [3, 5, 3], 7)", "[6, 2, 1], [1, 2, 5], 3)"),
    ],
]
