"""Tests of 09_verifier_rule."""

import random

from minipipe import Schedule, schedules
from minipipe.core.schedules.analysis.walk import walk
from minipipe.coursework import expect_equal, expect_sequence, remote


@remote
def stuck_in(task, placement, num_microbatches, rows):
    """Return what stuck returns for a schedule."""
    return task.stuck(Schedule("given", placement, num_microbatches, rows))


def found_in(task, schedule, what):
    return expect_sequence(
        stuck_in(task, schedule.placement, schedule.num_microbatches, schedule.actions),
        what,
    )


def check_text(task, text, expected):
    schedule = Schedule.from_text(text)
    found = found_in(task, schedule, f"stuck of\n{schedule}\n")
    expect_equal(sorted(found), expected, f"stuck of\n{schedule}\n")


def check_shuffled(task, name, num_ranks, num_microbatches, seed):
    """Swap a few actions of each rank, so that many schedules get stuck somewhere, and
    some do not.
    """
    generator = random.Random(seed)
    original = schedules.build(name, num_ranks, num_microbatches)
    for swaps in (0, 1, 1, 2, 6):
        rows = [list(row) for row in original.actions]
        for row in rows:
            for _ in range(swaps):
                i = generator.randrange(len(row) - 1)
                row[i], row[i + 1] = row[i + 1], row[i]
        schedule = Schedule(name, original.placement, num_microbatches, rows)
        expected = [
            (blocked.rank, blocked.position) for blocked in walk(schedule).blocked
        ]
        found = found_in(task, schedule, f"stuck of {name} with swapped actions")
        expect_equal(sorted(found), expected, f"stuck of\n{schedule}\n")


def test_two_ranks_wait_for_each_other(task):
    """The cycle of the example: rank 0 waits for 1B0, and rank 1 for 0F1.

    Hint: let each rank run as far as it can, repeatedly, until no rank makes progress.
    """
    check_text(task, "0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0", [(0, 1), (1, 0)])


def test_a_wrong_order_on_one_rank(task):
    """A backward before its own forward gets stuck, and so does any rank that waits for
    it.
    """
    check_text(task, "0B0 0F0", [(0, 0)])
    check_text(task, "0F0 0B0\n1B0 1F0", [(0, 1), (1, 0)])


def test_a_legal_schedule_that_needs_many_rounds_and_then_one_that_sticks(task):
    """In 1F1B ranks advance alternately, and none gets stuck. With two backwards
    swapped, some do.
    """
    schedule = schedules.one_f_one_b(4, 8)
    found = found_in(task, schedule, "stuck of 1F1B")
    expect_equal(found, [], "stuck of 1F1B, 4 ranks, 8 microbatches")
    check_text(
        task,
        "0F0 0F1 0B0 0B1\n1F0 1F1 1B1 1B0\n2F1 2B0 2F0 2B1",
        [(0, 2), (1, 2), (2, 1)],
    )


# HIDDEN
def test_the_weights_need_the_input_gradient(task):
    """W depends on its own I, and I on its own F."""
    check_text(task, "0F0 0W0 0I0", [(0, 1)])
    check_text(task, "0F0 0I0 0W0\n1F0 1W0 1I0", [(0, 1), (1, 1)])
    check_text(task, "0F0 0I0 0W0\n1F0 1I0 1W0", [])


def test_three_ranks_in_a_cycle(task):
    """Rank 0 waits for rank 1, rank 1 for rank 2, and rank 2 for rank 0."""
    check_text(
        task,
        "0F0 0B0 0F1 0B1\n1F0 1B0 1F1 1B1\n2F1 2F0 2B0 2B1",
        [(0, 1), (1, 1), (2, 0)],
    )


def test_exchanged_actions_of_every_kind_of_schedule(task):
    """The same ranks and positions as minipipe's verifier, whatever was swapped."""
    for seed, name in enumerate(("1f1b", "gpipe", "zb-h1", "zb-v", "interleaved-1f1b")):
        check_shuffled(task, name, num_ranks=3, num_microbatches=6, seed=seed)


def test_a_long_one(task):
    """Thousands of actions take only a moment, and the end is checked as well as the
    beginning.
    """
    rows = [list(row) for row in schedules.one_f_one_b(4, 1000).actions]
    rows[3][-1], rows[3][-2] = rows[3][-2], rows[3][-1]
    schedule = Schedule("long", range(4), 1000, rows)
    found = found_in(task, schedule, "stuck of a long schedule")
    expect_equal(
        sorted(found),
        [(0, 1999), (1, 1999), (2, 1999), (3, 1998)],
        "stuck of a long schedule",
    )


WRONG_ANSWERS = [
    (
        (
            "a single pass over the ranks: each may wait for one that comes later in "
            "the list"
        ),
        "                is_moving = True\n",
        "",
    ),
    (
        (
            "only dependencies on other stages: the stage's own forward seems to go "
            "without saying"
        ),
        "    if Action(stage, F, k) not in done:\n        return False\n",
        "",
    ),
    (
        "W depends on nothing: it sends nothing, so its order seems not to matter",
        "return Action(stage, I, k) in done",
        "return True",
    ),
    (
        "the gradient is produced only by a whole backward: I was added later",
        " or Action(stage + 1, I, k) in done",
        "",
    ),
    (
        "positions are counted from 1, as people do",
        "(rank, step)\n",
        "(rank, step + 1)\n",
    ),
    (
        "only the first stuck rank is reported, although the cause may be on another",
        "if step < len(schedule.actions[rank])\n    ]",
        "if step < len(schedule.actions[rank])\n    ][:1]",
    ),
]
