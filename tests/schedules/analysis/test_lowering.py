"""One walk orders all actions; lowering puts each SEND and its RECV at one place of it,
and so cannot deadlock.
"""

from collections import Counter

import pytest

from minipipe import schedules
from minipipe.core.order import _Runner
from minipipe.core.schedules.action import Action, ActionKind
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.core.schedules.analysis.verifier import verify
from minipipe.core.schedules.analysis.walk import walk
from minipipe.errors import ScheduleError
from minipipe.schedules import schedule_of_text
from tests.strategies import table

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
INPUT, WEIGHT = ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT
SEND_F, RECV_F, SEND_B, RECV_B = (
    ActionKind.SEND_F,
    ActionKind.RECV_F,
    ActionKind.SEND_B,
    ActionKind.RECV_B,
)


def rows(schedule):
    return [" ".join(map(str, row)) for row in schedule.actions]


# -- the walk --------------------------------------------------------------------------


def walk_by_rounds(schedule):
    """Follow the rule of DESIGN.md word for word: look at every rank in every round."""
    rounds, done, position = [], set(), [0] * schedule.num_ranks
    while True:
        heads = [
            (rank, row[position[rank]])
            for rank, row in enumerate(schedule.actions)
            if position[rank] < len(row)
        ]
        ready = [
            (rank, action) for rank, action in heads if can_run(schedule, action, done)
        ]
        if not ready:
            return [step for one_round in rounds for step in one_round]
        for rank, action in ready:
            position[rank] += 1
            done.add(action)
        rounds.append(ready)


def can_run(schedule, action, done):
    stage, kind, k = action
    if kind is F:
        return stage == 0 or (stage - 1, F, k) in done
    if kind is WEIGHT:
        return (stage, INPUT, k) in done
    after_next = stage + 1 == schedule.num_stages or not done.isdisjoint(
        {(stage + 1, B, k), (stage + 1, INPUT, k)}
    )
    return (stage, F, k) in done and after_next


def test_in_each_round_every_rank_that_is_ready_runs_one_action_the_lowest_rank_first(
    every_schedule,
):
    for schedule in every_schedule:
        steps = walk(schedule)
        assert list(steps.order()) == walk_by_rounds(schedule), str(schedule)
        assert steps.blocked == []


def test_the_walk_drawn_for_1f1b_on_two_ranks():
    # rank 0   0F0 0F1 .   0B0 .   0B1
    # rank 1   .   1F0 1B0 1F1 1B1 .
    order = [
        f"{rank}:{action}" for rank, action in walk(schedules.one_f_one_b(2, 2)).order()
    ]
    assert order == [
        "0:0F0",
        "0:0F1",
        "1:1F0",
        "1:1B0",
        "0:0B0",
        "1:1F1",
        "1:1B1",
        "0:0B1",
    ]


def test_the_walk_says_who_is_left_and_what_each_waits_for():
    steps = walk(schedule_of_text("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0"))
    assert [str(action) for _, action in steps.order()] == ["0F0"]
    assert [
        (stuck.rank, stuck.position, str(stuck.action), str(stuck.awaited))
        for stuck in steps.blocked
    ] == [
        (0, 1, "0B0", "1B0"),
        (1, 0, "1F1", "0F1"),
    ]


def test_the_walk_looks_at_an_action_once_and_once_more_for_each_thing_it_waits_for(
    monkeypatch,
):
    # Looking at every rank in every round would be 64 times as much here: only one rank
    # is ever ready.
    looks = Counter()
    run = _Runner.run

    def counted(runner, rank):
        looks[rank, runner.position[rank]] += 1
        return run(runner, rank)

    monkeypatch.setattr(_Runner, "run", counted)
    for schedule in (schedules.sequential(64, 16), lower(schedules.sequential(64, 16))):
        looks.clear()
        assert walk(schedule).blocked == []
        # when the rank comes to an action, and when what it waits for has happened
        assert max(looks.values()) <= 2
        assert len(looks) > 64 * 16


# -- lowering --------------------------------------------------------------------------


def test_a_send_and_its_receive_stand_where_the_value_is_produced():
    # RECV_F1 stands before 1F0: it is noted when rank 0 has produced the value, not
    # when rank 1 needs it.
    assert rows(lower(schedules.one_f_one_b(2, 2))) == [
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0 1F1 1B1 1SEND_B1",
    ]


def test_a_split_backward_sends_its_gradient_after_i():
    assert rows(lower(schedule_of_text("0F0 0I0 0W0\n1F0 1I0 1W0"))) == [
        "0F0 0SEND_F0 0RECV_B0 0I0 0W0",
        "1RECV_F0 1F0 1I0 1SEND_B0 1W0",
    ]


def test_neighbouring_stages_on_one_rank_exchange_no_message():
    assert rows(lower(schedule_of_text("0F0 3F0 3B0 0B0\n1F0 2F0 2B0 1B0"))) == [
        "0F0 0SEND_F0 3RECV_F0 3F0 3B0 3SEND_B0 0RECV_B0 0B0",
        "1RECV_F0 1F0 2F0 2SEND_F0 2RECV_B0 2B0 1B0 1SEND_B0",
    ]


def test_every_send_has_one_receive_on_the_neighbours_rank_and_nobody_else_talks(
    every_schedule,
):
    for schedule in every_schedule:
        lowered = lower(schedule)
        where = Counter(
            (rank, action)
            for rank, row in enumerate(lowered.actions)
            for action in row
            if action.kind.is_communication
        )
        wanted = Counter()
        for below, above in zip(
            range(schedule.num_stages), range(1, schedule.num_stages)
        ):
            for k in schedule.microbatches:
                low, high = schedule.rank_of(below, k), schedule.rank_of(above, k)
                if low == high:
                    continue
                wanted[low, Action(below, SEND_F, k)] += 1
                wanted[high, Action(above, RECV_F, k)] += 1
                if schedule.is_forward_only:
                    continue
                wanted[high, Action(above, SEND_B, k)] += 1
                wanted[low, Action(below, RECV_B, k)] += 1
        assert where == wanted, str(schedule)


def test_on_one_rank_there_is_nothing_to_send():
    for schedule in (schedules.gpipe(1, 4), schedules.interleaved_1f1b(1, 4, 3)):
        assert lower(schedule).actions == schedule.actions


def test_messages_pass_between_a_pair_of_ranks_in_one_order_at_both_ends(
    every_schedule,
):
    # What is sent first is received first: the message system need not look for a tag.
    def message(action):
        stage, kind, k = action
        sender = stage + {SEND_F: 0, RECV_F: -1, SEND_B: 0, RECV_B: 1}[kind]
        return sender, kind.value[-1], k

    for schedule in every_schedule:
        lowered, sent, received = lower(schedule), {}, {}
        for rank, row in enumerate(lowered.actions):
            for action in row:
                if not action.kind.is_communication:
                    continue
                sender, letter, k = message(action)
                receiver = sender + (1 if letter == "F" else -1)
                ends = (schedule.rank_of(sender, k), schedule.rank_of(receiver, k))
                side = sent if action.kind in (SEND_F, SEND_B) else received
                assert rank == ends[side is received]
                side.setdefault(ends, []).append((sender, letter, k))
        assert sent == received, str(schedule)


def test_lowering_leaves_the_computation_as_it_was(every_schedule):
    for schedule in every_schedule:
        assert lower(schedule).schedule == schedule


def test_lowering_what_is_lowered_is_the_identity(every_schedule):
    for schedule in every_schedule:
        lowered = lower(schedule)
        assert lower(lowered) == lowered


def test_under_the_lowering_rule_gpipe_needs_two_receive_buffers_at_most():
    held_at_most = []
    for row in lower(schedules.gpipe(4, 8)).actions:
        held = [0]
        for stage, kind, _ in row:
            uses_message = (kind is F and stage > 0) or (kind is B and stage < 3)
            held.append(held[-1] + (kind in (RECV_F, RECV_B)) - uses_message)
        assert held[-1] == 0
        held_at_most.append(max(held))
    assert held_at_most == [1, 2, 2, 2]


# -- deadlock --------------------------------------------------------------------------


def lower_naively(schedule):
    """Receive just before use, send just after: what nearly everybody writes first."""
    last = schedule.num_stages - 1
    programs = []
    for row in schedule.actions:
        program = []
        for stage, kind, k in row:
            if kind is F and stage > 0:
                program.append(Action(stage, RECV_F, k))
            if kind is B and stage < last:
                program.append(Action(stage, RECV_B, k))
            program.append(Action(stage, kind, k))
            if kind is F and stage < last:
                program.append(Action(stage, SEND_F, k))
            if kind is B and stage > 0:
                program.append(Action(stage, SEND_B, k))
        programs.append(program)
    return table(
        f"naive {schedule.name}",
        schedule.placement,
        schedule.num_microbatches,
        programs,
    )


def deadlocks(schedule):
    try:
        verify(schedule)
    except ScheduleError as error:
        assert error.code == "rendezvous-deadlock", error  # with buffered sends it ends
        return True
    return False


def test_every_lowered_schedule_ends_even_when_each_send_blocks_until_it_is_received(
    every_schedule,
):
    for schedule in every_schedule:
        lowered = lower(schedule)
        steps = walk(lowered)
        assert steps.blocked == [], str(schedule)
        assert len(list(steps.order())) == sum(map(len, lowered.actions))
        verify(lowered)


def test_lowered_naively_1f1b_deadlocks_exactly_from_two_ranks_and_two_microbatches_on():
    for p in range(1, 7):
        for m in range(1, 9):
            naive = lower_naively(schedules.one_f_one_b(p, m))
            assert deadlocks(naive) == (p >= 2 and m >= 2), (p, m)


def test_lowered_naively_gpipe_and_sequential_never_deadlock():
    for p in range(1, 7):
        for m in range(1, 9):
            assert not deadlocks(lower_naively(schedules.gpipe(p, m))), (p, m)
            assert not deadlocks(lower_naively(schedules.sequential(p, m))), (p, m)


def test_in_the_classic_deadlock_both_neighbours_send_and_neither_receives():
    # rank 0 0F0 0SEND_F0               0F1 >0SEND_F1< 0RECV_B0 …
    # rank 1     1RECV_F0 1F0 1B0           >1SEND_B0< 1RECV_F1 …
    with pytest.raises(ScheduleError) as caught:
        verify(lower_naively(schedules.one_f_one_b(2, 2)))
    assert (
        "rank 0 cannot run 0SEND_F1 (position 3) before 1RECV_F1, which rank 1 "
        "runs later"
    ) in str(caught.value)
    assert (
        "rank 1 cannot run 1SEND_B0 (position 3) before 0RECV_B0, which rank 0 "
        "runs later"
    ) in str(caught.value)


def test_what_cannot_end_cannot_be_lowered():
    with pytest.raises(ScheduleError) as caught:
        lower(schedule_of_text("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0"))
    (problem,) = caught.value.problems
    assert (problem.code, problem.rank, problem.step) == ("deadlock", 0, 1)
