"""Who produces what for whom: values, and the one walk."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import schedules, verify
from minipipe.core.flow import flow_of
from minipipe.core.schedules.action import Action, ActionKind, number_of
from minipipe.core.schedules.analysis.dependencies import Direction, Transfer
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.core.schedules.analysis.verifier import _order_problems
from minipipe.core.schedules.analysis.walk import complete_walk, walk
from minipipe.errors import ScheduleError
from minipipe.schedules import schedule_of_text
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.simulator import simulate
from tests.refusals import code_of
from tests.strategies import examples, named_schedules

values = st.builds(
    Transfer, st.integers(0, 9), st.sampled_from(Direction), st.integers(0, 9)
)


def cells(actions):
    return [str(action) for action in actions]


def needed_by(table, action):
    """Return the actions that give an action its values: of the table or, if it has
    none, the first that would.
    """
    flow, rank = flow_of(table), table.first_rank_with[action]
    uses = flow.uses(rank, table.actions[rank].index(action))
    numbers = {
        number_of(a.microbatch, table.num_slices): a for r in table.actions for a in r
    }
    microbatches = {number: a.microbatch for number, a in numbers.items()}
    for value in (*uses.takes, *uses.reads):
        givers = [
            Action(s, ActionKind(name), microbatches.get(number, number))
            for s, name, number in flow.givers(value)
        ]
        yield next(
            (giver for giver in givers if giver in table.first_rank_with), givers[0]
        )


def test_an_activation_goes_to_the_next_stage_and_a_gradient_to_the_one_before():
    activation, gradient = (
        Transfer(1, Direction.FORWARD, 3),
        Transfer(1, Direction.BACKWARD, 3),
    )
    for value, expected in (
        (activation, ["1F3", "2F3", "1SEND_F3", "2RECV_F3"]),
        (gradient, ["1B3", "0B3", "1SEND_B3", "0RECV_B3"]),
    ):
        assert (
            cells([value.producer, value.consumer, value.send, value.receive])
            == expected
        )
    assert (activation.cut, gradient.cut) == (1, 0)


@given(values)
def test_a_value_is_found_from_its_producer_its_consumer_and_both_halves_of_its_message(
    value,
):
    assert (
        Transfer.produced_by(value.producer)
        == Transfer.consumed_by(value.consumer)
        == value
    )
    assert (
        Transfer.carried_by(value.send) == Transfer.carried_by(value.receive) == value
    )
    if value.direction is Direction.BACKWARD:  # I has the place of B
        produces, consumes = (
            action._replace(kind=ActionKind("I"))
            for action in (value.producer, value.consumer)
        )
        assert Transfer.produced_by(produces) == Transfer.consumed_by(consumes) == value


@pytest.mark.parametrize("cell", ["0W1", "0SEND_F1", "1RECV_B0"])
def test_weights_sends_and_receives_neither_produce_nor_consume_a_value(cell):
    assert (
        Transfer.produced_by(Action.parse(cell))
        is Transfer.consumed_by(Action.parse(cell))
        is None
    )


@pytest.mark.parametrize(
    ("cell", "in_schedule", "in_program"),
    [
        ("0F0", [], []),
        ("1F0", ["0F0"], ["1RECV_F0"]),
        ("2F0", ["1F0"], ["1F0"]),  # stages 1 and 2 are both on rank 1
        ("3I1", ["3F1"], ["3F1"]),
        ("2I1", ["2F1", "3I1"], ["2F1", "2RECV_B1"]),
        ("1I1", ["1F1", "2I1"], ["1F1", "2I1"]),
        ("3W1", ["3I1"], ["3I1"]),
        ("0SEND_F0", None, ["0F0"]),
        ("1RECV_F0", None, ["0SEND_F0"]),
        ("3SEND_B0", None, ["3I0"]),
    ],
)
def test_what_an_action_depends_on(cell, in_schedule, in_program):
    schedule = schedules.zb_v(2, 2)  # rank 0 holds stages 0 and 3
    if in_schedule is not None:
        assert cells(needed_by(schedule, Action.parse(cell))) == in_schedule
    assert cells(needed_by(lower(schedule), Action.parse(cell))) == in_program


@examples(60)
@given(
    named_schedules(max_ranks=5, max_microbatches=8, max_chunks=3),
    st.booleans(),
    st.booleans(),
)
def test_the_walk_runs_every_action_after_all_that_it_depends_on(
    named, is_program, sends_are_buffered
):
    table = lower(named[1]) if is_program else named[1]
    rounds, position = {}, [0] * table.num_ranks
    for number, ranks in enumerate(complete_walk(table, sends_are_buffered).rounds):
        assert ranks == sorted(ranks)
        for rank in ranks:
            rounds[table.actions[rank][position[rank]]] = number
            position[rank] += 1
    assert len(rounds) == sum(map(len, table.actions))
    for action, number in rounds.items():
        for needed in needed_by(table, action):
            is_message = action.kind.is_communication and needed.kind.is_communication
            # both halves of a message run in one round
            if is_message and not sends_are_buffered:
                assert rounds[needed] == number
            else:
                assert rounds[needed] < number


def test_of_an_action_on_two_ranks_the_first_one_counts():
    schedule = schedules.Schedule(
        "x", (0, 1), 1, [["0F0", "0F0", "0F0"], ["1F0", "0F0"]]
    )
    assert schedule.first_rank_with[Action.parse("0F0")] == 0
    # 1F0 is ready once 0F0 has run, not once it has run thrice
    assert walk(schedule).rounds == [[0], [0, 1], [0, 1]]


def test_a_weight_gradient_depends_on_its_own_half_even_where_that_is_missing():
    for text in ("0F0 0W0", "0W0 0B0"):
        assert cells(needed_by(schedule_of_text(text), Action.parse("0W0"))) == ["0I0"]


@pytest.mark.parametrize("cell", ["0SEND_B0", "1RECV_F0", "0RECV_F0"])
def test_a_message_to_a_stage_that_is_not_there_never_runs(cell):
    stage = 1 if cell == "1RECV_F0" else 0
    text = f"{cell} 0F0 0B0" if stage == 0 else f"0F0 0B0\n{cell} 1F0 1B0"
    assert walk(schedule_of_text(text)).blocked


@pytest.mark.parametrize(
    ("rows", "stuck"),
    [
        (
            ["0SEND_B0 0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"],
            "0SEND_B0",
        ),
        (
            ["0RECV_F0 0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"],
            "0RECV_F0",
        ),
        (
            ["0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1SEND_F0 1B0 1SEND_B0"],
            "1SEND_F0",
        ),
    ],
)
def test_a_message_without_a_partner_is_blocked_on_itself_and_closes_the_cycle(
    rows, stuck
):
    """It was blocked on an action of stage -1 or of one behind the last, with which the
    placement was indexed.
    """
    program = schedule_of_text("\n".join(rows))
    found = {
        str(blocked.action): str(blocked.awaited) for blocked in walk(program).blocked
    }
    assert found[stuck] == stuck and len(found) == 2
    # the verifier refuses it before it comes to the order
    (problem,) = _order_problems(program)
    assert (problem.code, problem.message.split(": ")[1][:8]) == ("missing", stuck)
    with pytest.raises(ScheduleError, match="missing"):
        verify(program)
    with pytest.raises(
        ScheduleError,
        match=r"0RECV_F0 on rank 0 waits for ever for a partner that does not exist",
    ):
        complete_walk(schedule_of_text("0RECV_F0 0F0 0B0"))


def test_a_table_is_walked_once_and_pickled_without_its_walk():
    schedule = schedules.gpipe(2, 2)
    assert walk(schedule).rounds is walk(schedule).rounds
    # nothing to buffer
    assert walk(schedule, sends_are_buffered=True).rounds is walk(schedule).rounds
    program = lower(schedule)
    assert walk(program).rounds is not walk(program, sends_are_buffered=True).rounds
    assert (
        walk(program.schedule).table is program.schedule
        and program.schedule._kept is not schedule._kept
    )


@pytest.mark.parametrize(
    "text",
    ["0F0 0SEND_F0 0B0", "0F0 0B0 0SEND_B0", "0F0 0RECV_F0 0B0", "0F0 0RECV_B0 0B0"],
)
@pytest.mark.parametrize("sends_block", [False, True])
def test_a_message_to_nobody_never_ends(text, sends_block):
    """It was a bare IndexError, or was written where another microbatch's time
    stood.
    """
    with pytest.raises(ScheduleError, match="waits for ever"):
        complete_walk(schedule_of_text(text), sends_are_buffered=not sends_block)
    assert (
        code_of(simulate, schedule_of_text(text), Costs(sends_block=sends_block))
        == "missing"
    )
    assert code_of(verify, schedule_of_text(text)) == "missing"


def test_blocked_ranks_are_told_in_their_order():
    steps = walk(schedule_of_text("0F0 0B0 0B1 0F1\n1F0 1B0 1F1 1B1"))
    assert [stuck.rank for stuck in steps.blocked] == [0, 1]


def test_a_second_stage_in_descending_order_is_seen():
    assert not schedule_of_text("0F0 0F1 1F0 1F1 1B1 1B0 0B0 0B1").is_reproducible
