"""Tests of 06_warmup."""

from minipipe import Schedule, schedules, simulate
from minipipe.coursework import expect_equal, expect_legal, expect_sequence


def rows_of(task, num_ranks, num_microbatches):
    call = f"rows({num_ranks}, {num_microbatches})"
    rows = expect_sequence(task.rows(num_ranks, num_microbatches), call)
    return [
        expect_sequence(row, f"rank {rank} of {call}") for rank, row in enumerate(rows)
    ]


def built(task, num_ranks, num_microbatches):
    return Schedule(
        "rows",
        range(num_ranks),
        num_microbatches,
        rows_of(task, num_ranks, num_microbatches),
    )


def check_memory(task, num_ranks, num_microbatches):
    schedule, call = (
        built(task, num_ranks, num_microbatches),
        f"rows({num_ranks}, {num_microbatches})",
    )
    expect_legal(schedule, call)
    expected = tuple(
        min(num_ranks - rank, num_microbatches) for rank in range(num_ranks)
    )
    expect_equal(
        schedules.peak_activations(schedule),
        expected,
        f"microbatches that the ranks of {call} hold at most",
    )


def check_time(task, num_ranks, num_microbatches):
    call = f"rows({num_ranks}, {num_microbatches})"
    schedule = built(task, num_ranks, num_microbatches)
    expect_legal(schedule, call)
    expect_equal(
        simulate(schedule).makespan,
        3.0 * (num_microbatches + num_ranks - 1),
        f"time of {call}, F one unit and B two",
    )


def test_two_ranks_and_three_microbatches(task):
    """The rows of the example."""
    expected = [
        ["0F0", "0F1", "0B0", "0F2", "0B1", "0B2"],
        ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"],
    ]
    expect_equal(rows_of(task, 2, 3), expected, "rows(2, 3)")


def test_memory_of_four_ranks(task):
    """Rank r of 4 holds at most 4 - r microbatches, and the last rank only one.

    Hint: how many forwards has rank r run when the first backward can reach it? Count
    the one in the first pair.
    """
    check_memory(task, 4, 8)


def test_time_of_four_ranks(task):
    """With 4 ranks and 8 microbatches it takes 33 units, the same as GPipe."""
    check_time(task, 4, 8)


# HIDDEN
def test_other_sizes(task):
    """The same holds for 3 and 6 ranks."""
    for num_ranks, num_microbatches in ((3, 5), (6, 6), (6, 13)):
        check_memory(task, num_ranks, num_microbatches)
        check_time(task, num_ranks, num_microbatches)


def test_fewer_microbatches_than_ranks(task):
    """The warm-up cannot have more forwards than there are microbatches.

    Hint: min(…, num_microbatches).
    """
    for num_ranks, num_microbatches in ((5, 2), (4, 1), (8, 7)):
        check_memory(task, num_ranks, num_microbatches)
        check_time(task, num_ranks, num_microbatches)


def test_one_rank(task):
    """A single rank alternates between forward and backward."""
    expect_equal(rows_of(task, 1, 2), [["0F0", "0B0", "0F1", "0B1"]], "rows(1, 2)")


WRONG_ANSWERS = [
    (
        "p - r forwards: legal and as fast, one microbatch more in memory",
        "num_ranks - 1 - rank, num_microbatches",
        "num_ranks - rank, num_microbatches",
    ),
    (
        (
            "the rank's number itself: the last rank, which could start backwards at "
            "once, waits longest"
        ),
        "min(num_ranks - 1 - rank, num_microbatches)",
        "min(rank, num_microbatches)",
    ),
    (
        "not limited by the number of microbatches, because there are usually plenty",
        "min(num_ranks - 1 - rank, num_microbatches)",
        "num_ranks - 1 - rank",
    ),
    (
        "twice the warm-up, as in interleaved schedules and eager 1F1B",
        "min(num_ranks - 1 - rank, num_microbatches)",
        "min(2 * (num_ranks - 1 - rank), num_microbatches)",
    ),
    (
        "the same warm-up on every rank, copied from a picture of the first one",
        "min(num_ranks - 1 - rank, num_microbatches)",
        "min(num_ranks - 1, num_microbatches)",
    ),
]
