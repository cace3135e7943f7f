"""Tests of 08_lowering."""

from minipipe import ActionKind, Program, schedules
from minipipe.coursework import expect_equal, expect_legal, expect_sequence, remote


@remote
def lowered_by(task, name, num_ranks, num_microbatches):
    """Return the programs of a named schedule, as text."""
    return task.add_messages(schedules.build(name, num_ranks, num_microbatches))


def check(task, name, num_ranks, num_microbatches):
    """Expect a program that is legal even if every send blocks, and that has the
    computations of the schedule.
    """
    schedule = schedules.build(name, num_ranks, num_microbatches)
    what = f"add_messages of {name}, {num_ranks} ranks, {num_microbatches} microbatches"
    programs = expect_sequence(
        lowered_by(task, name, num_ranks, num_microbatches), what
    )
    lowered = Program(name, schedule.placement, num_microbatches, programs)
    cuts = sum(map(schedule.crosses_ranks, range(schedule.num_stages - 1)))
    messages = sum(
        action.kind in (ActionKind.SEND_F, ActionKind.SEND_B)
        for row in lowered.actions
        for action in row
    )
    expect_equal(messages, 2 * cuts * num_microbatches, f"number of SENDs in {what}")
    expect_legal(lowered, what)
    for rank in range(num_ranks):
        computed = lowered.schedule.actions[rank]
        expect_equal(
            list(computed),
            list(schedule.actions[rank]),
            f"{what}: what rank {rank} computes",
        )


def test_two_ranks_and_one_microbatch(task):
    """One microbatch on two ranks gives the programs of the example."""
    found = lowered_by(task, "gpipe", 2, 1)
    expected = [
        ["0F0", "0SEND_F0", "0RECV_B0", "0B0"],
        ["1RECV_F0", "1F0", "1B0", "1SEND_B0"],
    ]
    expect_equal(found, expected, "add_messages of gpipe, 2 ranks, 1 microbatch")


def test_gpipe(task):
    """GPipe runs to completion."""
    check(task, "gpipe", 3, 4)


def test_1f1b_although_sends_block(task):
    """In 1F1B neighbours send to each other at the same time; one of them has to
    receive first.

    Hint: visit the actions in global_order(schedule). Right after an action whose value
    goes to another rank, append the SEND to the program of this rank and, at the same
    visit, the RECV to the program of the other one.
    """
    check(task, "1f1b", 4, 8)


# HIDDEN
def test_several_stages_on_a_rank(task):
    """The last rank sends to the first."""
    check(task, "interleaved-1f1b", 3, 6)
    check(task, "looped-bfs", 2, 4)


def test_a_backward_in_two_halves(task):
    """The gradient for the previous stage is produced by I; W sends nothing."""
    check(task, "zb-h1", 3, 5)
    check(task, "zb-h2", 2, 6)


def test_neighbouring_stages_on_one_rank(task):
    """A value that stays on its rank needs no message: in a V the last rank has two
    neighbouring stages.

    Hint: an activation goes from s to s + 1, so ask schedule.crosses_ranks(s); a
    gradient goes from s to s - 1, so ask schedule.crosses_ranks(s - 1), unless s is 0.
    """
    check(task, "zb-v", 3, 6)
    check(task, "dualpipe-v", 2, 4)


def test_other_sizes(task):
    """One rank needs no messages; many ranks with few microbatches need a few."""
    check(task, "1f1b", 1, 3)
    check(task, "1f1b", 6, 3)
    check(task, "eager-1f1b", 5, 9)


WRONG_ANSWERS = [
    (
        (
            "receive just before use, send right after: hangs as soon as sends "
            "block, and passes with small messages"
        ),
        (
            "    for rank, action in global_order(schedule):\n        stage, kind, k "
            "= action\n"
        ),
        "    for rank, action in global_order(schedule):\n"
        "        stage, kind, k = action\n"
        "        row = programs[rank]\n"
        "        if kind is F and stage > 0 and schedule.crosses_ranks(stage - 1):\n"
        "            row.append(Action(stage, ActionKind.RECV_F, k))\n"
        "        if kind in (B, I) and schedule.crosses_ranks(stage):\n"
        "            row.append(Action(stage, ActionKind.RECV_B, k))\n"
        "        row.append(action)\n"
        "        if kind is F and schedule.crosses_ranks(stage):\n"
        "            row.append(Action(stage, ActionKind.SEND_F, k))\n"
        "        if kind in (B, I) and stage > 0 and "
        "schedule.crosses_ranks(stage - 1):\n"
        "            row.append(Action(stage, ActionKind.SEND_B, k))\n"
        "        continue\n",
    ),
    (
        "a message between any two stages, even on the same rank",
        "kind is F and schedule.crosses_ranks(stage)",
        "kind is F and stage + 1 < schedule.num_stages",
    ),
    (
        "only whole backwards send gradients: I was added to the kinds later",
        "kind in (B, I)",
        "kind is B",
    ),
    (
        "the RECV is named after the producer's stage, like the SEND",
        "Action(stage + 1, ActionKind.RECV_F, k)",
        "Action(stage, ActionKind.RECV_F, k)",
    ),
    (
        "stage s is assumed to be on rank s: true until a rank has several",
        "programs[schedule.placement[stage + 1]]",
        "programs[min(stage + 1, schedule.num_ranks - 1)]",
    ),
]
