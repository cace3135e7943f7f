"""Tests of 05_bubble."""

import math

from minipipe import schedules, simulate
from minipipe.coursework import expect_close, expect_equal


def check_fraction(task, num_ranks, num_microbatches, expected):
    call = f"bubble_fraction({num_ranks}, {num_microbatches})"
    expect_close(task.bubble_fraction(num_ranks, num_microbatches), expected, call)


def check_number(task, num_ranks, bubble, expected):
    expect_equal(
        task.microbatches_for(num_ranks, bubble),
        expected,
        f"microbatches_for({num_ranks}, {bubble})",
    )


def test_four_ranks(task):
    """Ranks are idle (p - 1)/(m + p - 1) of the time: on 4 ranks 3/7, 3/11 and 3/19 for
    4, 8 and 16 microbatches.

    Hint: a rank works for m pairs of a forward and a backward; the makespan is m + p -
    1 of them.
    """
    for num_microbatches in (4, 8, 16):
        check_fraction(task, 4, num_microbatches, 3 / (num_microbatches + 3))


def test_the_simulator_agrees(task):
    """The simulated bubbles of 1F1B and GPipe agree with the formula."""
    for builder in (schedules.one_f_one_b, schedules.gpipe):
        for num_ranks, num_microbatches in ((2, 3), (3, 3), (4, 6)):
            expected = simulate(builder(num_ranks, num_microbatches)).bubble_fraction
            check_fraction(task, num_ranks, num_microbatches, expected)


def test_at_most_a_fifth(task):
    """For a bubble of at most 0.2, 4 ranks need 12 microbatches,
    and for 0.1 they need 27.

    Hint: solve (p - 1)/(m + p - 1) <= bubble for m. If you get one too many, a quotient
    came out slightly above 12.
    """
    check_number(task, 4, 0.2, 12)
    check_number(task, 4, 0.1, 27)


# HIDDEN
def test_more_ranks_than_microbatches(task):
    """The formula holds for m < p, and a single rank is never idle."""
    for num_ranks, num_microbatches in ((8, 3), (5, 1), (16, 7)):
        expected = simulate(
            schedules.one_f_one_b(num_ranks, num_microbatches)
        ).bubble_fraction
        check_fraction(task, num_ranks, num_microbatches, expected)
    check_fraction(task, 1, 5, 0.0)
    check_fraction(task, 1000, 1_000_000, 999 / 1_000_999)


def test_it_is_rounded_up_and_never_more_than_needed(task):
    """If the formula does not give a whole number, the next larger one is the smallest
    that works.

    Hint: round up. Then check with bubble_fraction.
    """
    check_number(task, 4, 0.16, 16)
    check_number(task, 7, 0.33, 13)
    check_number(task, 8, 0.3, 17)


def test_one_microbatch_at_least(task):
    """A single rank, or a large enough bubble, needs only one microbatch."""
    check_number(task, 1, 0.25, 1)
    check_number(task, 2, 0.9, 1)


def test_a_bubble_that_is_met_exactly_is_small_enough(task):
    """A bubble may equal the limit: 5 ranks and 16 microbatches have a bubble of
    exactly 0.2.

    Hint: in floating point (p - 1)(1 - b)/b can come out as 16.000000000000004; compare
    bubbles instead.
    """
    check_number(task, 5, 0.2, 16)
    check_number(task, 3, 0.5, 2)
    for num_ranks in range(2, 30):
        for num_microbatches in (1, 2, 3, 6, 9, 33):
            check_number(
                task, num_ranks, met_by(num_ranks, num_microbatches), num_microbatches
            )


def met_by(num_ranks, num_microbatches):
    """Return a bubble that is met with almost no margin, however the fraction is
    written and rounded.
    """
    steps = num_microbatches + num_ranks - 1
    return max(math.nextafter((num_ranks - 1) / steps, 1), 1 - num_microbatches / steps)


WRONG_ANSWERS = [
    (
        "a formula for 1F1B that is often copied: it pretends that 1F1B saves time",
        "(num_ranks - 1) / (num_microbatches + num_ranks - 1)",
        "(num_ranks - 1) / (2 * (num_microbatches - 1) + num_ranks)",
    ),
    (
        "idle time divided by work instead of total time: Megatron's convention",
        "(num_ranks - 1) / (num_microbatches + num_ranks - 1)",
        "(num_ranks - 1) / num_microbatches",
    ),
    (
        "p instead of p - 1: as if every rank started one pair late",
        "(num_ranks - 1) / (num_microbatches + num_ranks - 1)",
        "num_ranks / (num_microbatches + num_ranks)",
    ),
    (
        "less than the given bubble instead of at most",
        "> bubble:",
        ">= bubble:",
    ),
    (
        "rounded down, as int() does: one microbatch too few",
        "    while bubble_fraction(num_ranks, enough) > bubble:",
        (
            "    enough = max(1, int((num_ranks - 1) / bubble) - num_ranks + 1)\n    "
            "while False:"
        ),
    ),
    (
        "rounded to nearest: too few microbatches half of the time",
        "    while bubble_fraction(num_ranks, enough) > bubble:",
        (
            "    enough = max(1, round((num_ranks - 1) * (1 - bubble) / bubble))\n   "
            " while False:"
        ),
    ),
    (
        (
            "the quotient rounded up, although rounding errors can put it just above "
            "a whole number"
        ),
        "    while bubble_fraction(num_ranks, enough) > bubble:",
        (
            "    enough = max(1, math.ceil((num_ranks - 1) * (1 - bubble) / "
            "bubble))\n    while False:"
        ),
    ),
]

VARIANTS = [
    [("(task, 4, 0.16, 16)",), ("(task, 6, 0.16, 27)",), ("(task, 3, 0.16, 11)",)],
    [("(task, 8, 0.3, 17)",), ("(task, 6, 0.3, 12)",), ("(task, 9, 0.3, 19)",)],
    [
        ("((8, 3), (5, 1), (16, 7))",),
        ("((9, 4), (6, 1), (14, 3))",),
        ("((7, 2), (4, 1), (15, 11))",),
    ],
    [
        (
            "For a bubble of at most 20 %, 4 ranks need 12",
            "For a bubble of at most 0.2, 4 ranks need 12 microbatches",
            "and for 0.1 they need 27.",
            "(task, 4, 0.2, 12)",
            "(task, 4, 0.1, 27)",
            "slightly above 12.",
        ),
        (
            "For a bubble of at most 20 %, 13 ranks need 48",
            "For a bubble of at most 0.2, 13 ranks need 48 microbatches",
            "and for 0.1 they need 108.",
            "(task, 13, 0.2, 48)",
            "(task, 13, 0.1, 108)",
            "slightly above 48.",
        ),
        (
            "For a bubble of at most 20 %, 7 ranks need 24",
            "For a bubble of at most 0.2, 7 ranks need 24 microbatches",
            "and for 0.1 they need 54.",
            "(task, 7, 0.2, 24)",
            "(task, 7, 0.1, 54)",
            "slightly above 24.",
        ),
    ],
]
