"""Tests of 12_memory_peak."""

from minipipe import Schedule, schedules
from minipipe.coursework import expect_close, expect_equal, expect_sequence, remote


@remote
def peaks_of(task, placement, num_microbatches, rows):
    """Return what peaks returns for a schedule."""
    return task.peaks(Schedule("given", placement, num_microbatches, rows))


def check(task, name, num_ranks, num_microbatches, expected):
    schedule = schedules.build(name, num_ranks, num_microbatches)
    what = f"peaks of {name}, {num_ranks} ranks, {num_microbatches} microbatches"
    found = peaks_of(task, schedule.placement, num_microbatches, schedule.actions)
    expect_equal(expect_sequence(found, what), expected, what)


def check_ratio(task, num_ranks, num_microbatches, rank):
    peaks = [
        schedules.peak_activations(build(num_ranks, num_microbatches))[rank]
        for build in BOTH
    ]
    call = f"memory_ratio({num_ranks}, {num_microbatches}, {rank})"
    expect_close(
        task.memory_ratio(num_ranks, num_microbatches, rank), peaks[0] / peaks[1], call
    )


BOTH = (schedules.one_f_one_b, schedules.gpipe)


def test_gpipe_holds_every_microbatch(task):
    """GPipe holds all 8 microbatches on each of 4 ranks."""
    check(task, "gpipe", 4, 8, (8, 8, 8, 8))


def test_1f1b_holds_as_many_as_there_are_ranks_to_the_end(task):
    """1F1B holds 4, 3, 2 and 1 on ranks 0 to 3.

    Hint: F adds a pair, B releases it; keep the maximum.
    """
    check(task, "1f1b", 4, 8, (4, 3, 2, 1))


def test_the_ratio_on_the_first_rank_is_a_half(task):
    """With 4 ranks and 8 microbatches 1F1B holds half as much as GPipe on rank 0, and
    an eighth on rank 3.

    Hint: (4 + 8)/(4 8) is 0.375. What are the peaks of the two schedules?
    """
    check_ratio(task, 4, 8, 0)
    check_ratio(task, 4, 8, 3)


# HIDDEN
def test_a_split_backward_holds_until_w(task):
    """I releases nothing: ZB-H1 holds p pairs on every rank, ZB-H2 nearly twice as
    many.

    Hint: the gradient of the weights needs the activations of the forward.
    """
    check(task, "zb-h1", 4, 8, (4, 4, 4, 4))
    check(task, "zb-h2", 3, 6, (5, 5, 5))
    rows = [["0F0", "0I0", "0F1", "0I1", "0F2", "0I2", "0W0", "0W1", "0W2"]]
    found = expect_sequence(peaks_of(task, [0], 3, rows), "peaks of one rank")
    expect_equal(found, (3,), f"peaks of {' '.join(rows[0])}")


def test_several_stages_on_a_rank(task):
    """Each stage of a rank counts separately."""
    check(task, "interleaved-1f1b", 4, 8, (11, 9, 7, 5))
    check(task, "zb-v", 3, 6, (6, 6, 6))


def test_the_ratio_on_every_rank(task):
    """It differs from rank to rank, and is 1 if there are few microbatches."""
    for num_ranks, num_microbatches in ((2, 3), (6, 10), (5, 3), (1, 4)):
        for rank in range(num_ranks):
            check_ratio(task, num_ranks, num_microbatches, rank)


WRONG_ANSWERS = [
    (
        "the formula from the lecture notes, which holds for no schedule",
        "min(num_ranks - rank, num_microbatches) / num_microbatches",
        "(num_ranks + num_microbatches) / (num_ranks * num_microbatches)",
    ),
    (
        "the ratio of rank 0 for all ranks",
        "min(num_ranks - rank, num_microbatches) / num_microbatches",
        "min(num_ranks, num_microbatches) / num_microbatches",
    ),
    (
        "I releases the activations: it is a backward, after all",
        "action.kind in (B, W)",
        "action.kind in (B, ActionKind.BACKWARD_INPUT)",
    ),
    (
        "only whole backwards count, so split ones never release anything",
        "action.kind in (B, W)",
        "action.kind is B",
    ),
    (
        "the last value instead of the largest: always zero at the end of the step",
        "peak = max(peak, held)",
        "peak = held",
    ),
    (
        "microbatches are counted instead of (stage, microbatch) pairs",
        "        held = peak = 0\n",
        (
            "        held = peak = 0\n        row = [a for a in row if a.stage == "
            "row[0].stage]\n"
        ),
    ),
]
