"""Tests of 11_weight_placement."""

from minipipe import Action, ActionKind, Schedule, schedules, simulate
from minipipe.coursework import (
    expect_at_most,
    expect_equal,
    expect_legal,
    expect_sequence,
    expect_that,
    remote,
)

B, I, W = ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT


@remote
def placed_by(task, rows, memory_limit):
    """Return the rows with every W, as text."""
    return task.place_weights(
        [[Action.parse(cell) for cell in row] for row in rows], memory_limit
    )


def halves(name, num_ranks, num_microbatches):
    """Return the rows of a schedule with I in place of B and without W."""
    rows = schedules.build(name, num_ranks, num_microbatches).actions
    return [
        [a._replace(kind=I) if a.kind is B else a for a in row if a.kind is not W]
        for row in rows
    ]


def check(task, name, num_ranks, num_microbatches, memory_limit):
    rows = halves(name, num_ranks, num_microbatches)
    what = (
        f"{name}, {num_ranks} ranks, {num_microbatches} microbatches, memory for "
        f"{memory_limit}"
    )
    placed = expect_sequence(placed_by(task, rows, memory_limit), what)
    schedule = Schedule("placed", range(num_ranks), num_microbatches, placed)
    expect_legal(schedule, what, memory_limit)
    for rank, row in enumerate(rows):
        kept = [a for a in schedule.actions[rank] if a.kind is not W]
        expect_equal(kept, row, f"{what}: F and I of rank {rank}")
    expect_that(
        schedule.is_reproducible, what, "W ascending on every stage", schedule.to_text()
    )
    expect_at_most(
        simulate(schedule).makespan,
        3 * num_microbatches + num_ranks - 1,
        f"time of {what}",
    )


def test_two_ranks(task):
    """2 ranks and 4 microbatches take 13 units, with no more memory than 1F1B.

    Hint: a rank that waits for an I from the next one has time for a W.
    """
    check(task, "1f1b", 2, 4, memory_limit=2)


def test_four_ranks_take_27_units(task):
    """4 ranks and 8 microbatches take 27 units, not 30 as with the lazy way.

    Hint: run a W only if the rank would otherwise be idle, or if memory is full.
    """
    check(task, "1f1b", 4, 8, memory_limit=4)


def test_three_ranks_with_much_memory(task):
    """The same time with memory for everything: only W is postponed, never F or I."""
    check(task, "1f1b", 3, 6, memory_limit=6)


# HIDDEN
def test_other_numbers(task):
    """More ranks, more microbatches, and as many microbatches as ranks."""
    for num_ranks, num_microbatches in ((3, 12), (5, 9), (6, 12), (4, 4)):
        check(task, "1f1b", num_ranks, num_microbatches, memory_limit=num_ranks)


def test_rows_that_run_ahead(task):
    """Rows with a longer warm-up, as in ZB-H2, and memory for it."""
    for num_ranks, num_microbatches in ((2, 4), (3, 6), (4, 8)):
        check(
            task, "zb-h2", num_ranks, num_microbatches, memory_limit=2 * num_ranks - 1
        )


def test_a_little_more_memory_than_needed(task):
    """Limits between the peak of 1F1B and no limit at all."""
    for memory_limit in (5, 6, 7):
        check(task, "1f1b", 4, 8, memory_limit)


WRONG_ANSWERS = [
    (
        "W right after its I, the lazy way: it delays the I of every rank",
        "if is_ready and not (action.kind is F and is_full):",
        "if is_ready and not due[rank]:",
    ),
    (
        (
            "W only when the rank is idle, however late that is: as fast, but it "
            "exceeds the memory limit"
        ),
        "            is_full = held[rank] == memory_limit\n",
        "            is_full = False\n",
    ),
    (
        (
            "the newest W first, like a stack: gradients add in a different order "
            "from one process"
        ),
        "action = due[rank].pop(0)",
        "action = due[rank].pop()",
    ),
    (
        "memory is counted until I instead of until W",
        "                    due[rank].append(action._replace(kind=W))\n",
        (
            "                    due[rank].append(action._replace(kind=W))\n         "
            "           held[rank] -= 1\n"
        ),
    ),
    (
        "no W after the last I: a W that never finds an idle slot is lost",
        "while any(left) or any(due):",
        "while any(left):",
    ),
]
