"""Tests of 05_bubble."""

import math

from minipipe import schedules, simulate
from minipipe.coursework import expect_close, expect_equal


def check_fraction(task, num_ranks, num_microbatches, expected):
    call = f"bubble_fraction({num_ranks}, {num_microbatches})"
    expect_close(task.bubble_fraction(num_ranks, num_microbatches), expected, call)


def check_number(task, num_ranks, bubble, expected):
    expect_equal(task.microbatches_for(num_ranks, bubble), expected, f"microbatches_for({num_ranks}, {bubble})")


def test_four_ranks(task):
    """Ranks are idle (p - 1)/(m + p - 1) of the time: with 4 ranks 3/7, 3/11 and 3/19 for 4, 8 and 16 microbatches.

    Hint: each rank works m steps; all together take m + p - 1.
    """
    for num_microbatches in (4, 8, 16):
        check_fraction(task, 4, num_microbatches, 3 / (num_microbatches + 3))


def test_the_simulator_agrees(task):
    """What 1F1B and GPipe do when they are simulated is what the formula says."""
    for builder in (schedules.one_f_one_b, schedules.gpipe):
        for num_ranks, num_microbatches in ((2, 3), (3, 3), (4, 6)):
            expected = simulate(builder(num_ranks, num_microbatches)).bubble_fraction
            check_fraction(task, num_ranks, num_microbatches, expected)


def test_at_most_a_fifth(task):
    """For a bubble of at most 0.2, 4 ranks need 12 microbatches, and for 0.1 they need 27.

    Hint: solve (p - 1)/(m + p - 1) <= bubble for m. If you get one too many, a quotient came out a hair above 12.
    """
    check_number(task, 4, 0.2, 12)
    check_number(task, 4, 0.1, 27)


# HIDDEN
def test_more_ranks_than_microbatches(task):
    """The formula holds for m < p, and a single rank is never idle."""
    for num_ranks, num_microbatches in ((8, 3), (5, 1), (16, 7)):
        expected = simulate(schedules.one_f_one_b(num_ranks, num_microbatches)).bubble_fraction
        check_fraction(task, num_ranks, num_microbatches, expected)
    check_fraction(task, 1, 5, 0.0)
    check_fraction(task, 1000, 1_000_000, 999 / 1_000_999)


def test_it_is_rounded_up_and_never_more_than_needed(task):
    """Where the formula gives no whole number, the next larger one is the least that does.

    Hint: round up. Then ask bubble_fraction.
    """
    check_number(task, 4, 0.16, 16)
    check_number(task, 7, 0.33, 13)
    check_number(task, 8, 0.3, 17)


def test_one_microbatch_at_least(task):
    """A single rank, or a bubble that is wide enough, needs one microbatch."""
    check_number(task, 1, 0.25, 1)
    check_number(task, 2, 0.9, 1)


def test_a_bubble_that_is_met_exactly_is_small_enough(task):
    """At most means at most: 5 ranks and 16 microbatches have a bubble of exactly 0.2.

    Hint: (p - 1)(1 - b)/b is 16.000000000000004 in floating point for some numbers; compare bubbles instead.
    """
    check_number(task, 5, 0.2, 16)
    check_number(task, 3, 0.5, 2)
    for num_ranks in range(2, 30):
        for num_microbatches in (1, 2, 3, 6, 9, 33):
            check_number(task, num_ranks, met_by(num_ranks, num_microbatches), num_microbatches)


def met_by(num_ranks, num_microbatches):
    """Return a bubble that is met with hardly any room, however the fraction is written and rounded."""
    steps = num_microbatches + num_ranks - 1
    return max(math.nextafter((num_ranks - 1) / steps, 1), 1 - num_microbatches / steps)


WRONG_ANSWERS = [
    (
        "the formula that is often copied for 1F1B: it pretends that 1F1B saves time",
        "(num_ranks - 1) / (num_microbatches + num_ranks - 1)",
        "(num_ranks - 1) / (2 * (num_microbatches - 1) + num_ranks)",
    ),
    (
        "idle time over work instead of over all time: Megatron's way to count",
        "(num_ranks - 1) / (num_microbatches + num_ranks - 1)",
        "(num_ranks - 1) / num_microbatches",
    ),
    (
        "p instead of p - 1: as if every rank began one step late",
        "(num_ranks - 1) / (num_microbatches + num_ranks - 1)",
        "num_ranks / (num_microbatches + num_ranks)",
    ),
    (
        "less than the wanted bubble instead of at most",
        "> bubble:",
        ">= bubble:",
    ),
    (
        "rounded down, as int() does: one microbatch too few",
        "    while bubble_fraction(num_ranks, enough) > bubble:",
        "    enough = max(1, int((num_ranks - 1) / bubble) - num_ranks + 1)\n    while False:",
    ),
    (
        "rounded to the nearest number, half of the time too few",
        "    while bubble_fraction(num_ranks, enough) > bubble:",
        "    enough = max(1, round((num_ranks - 1) * (1 - bubble) / bubble))\n    while False:",
    ),
    (
        "the quotient rounded up, though it is rounded itself and may lie just above a whole number",
        "    while bubble_fraction(num_ranks, enough) > bubble:",
        "    enough = max(1, math.ceil((num_ranks - 1) * (1 - bubble) / bubble))\n    while False:",
    ),
]
