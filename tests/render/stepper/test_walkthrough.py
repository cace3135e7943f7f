"""A walk through a schedule says of every moment what the simulator and the verifier
say of the whole.
"""

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from minipipe import schedules
from minipipe.core.flow import flow_of
from minipipe.core.schedules.action import Action, ActionKind
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.core.schedules.analysis.walk import walk
from minipipe.errors import ScheduleError
from minipipe.render.stepper.description import describe_diagnosis, describe_state
from minipipe.render.stepper.walkthrough import Activity, Walkthrough
from minipipe.schedules import schedule_of_text
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.simulator import peak_memory, simulate
from minipipe.schedules.simulation.span import IdleCause
from tests.strategies import examples, named_schedules, table

times = st.sampled_from([0.0, 0.25, 1.0, 0.37, 3.0])


@st.composite
def legal(draw):
    """Draw a walk through a legal schedule: with costs, and perhaps with SEND and RECV
    written out.
    """
    _, schedule = draw(named_schedules(max_ranks=4, max_microbatches=5, max_chunks=2))
    if draw(st.booleans()):
        schedule = lower(schedule)
    forward = [draw(times) for _ in schedule.placement]
    costs = Costs(
        forward,
        draw(times),
        draw(times),
        latency=draw(times),
        activation=2.5,
        weight_activation=draw(st.sampled_from([None, 1.5, 4.0])),
        overhead=draw(st.sampled_from([0.0, 0.0, 0.25])),
        sends_block=draw(st.booleans()),
    )
    return Walkthrough(schedule, costs)


@st.composite
def broken(draw):
    """Draw a schedule with some mistakes: actions left out, doubled, exchanged, moved
    or altered.
    """
    _, schedule = draw(named_schedules(max_ranks=4, max_microbatches=4, max_chunks=2))
    if draw(st.booleans()):
        schedule = lower(schedule)
    rows = [list(row) for row in schedule.actions]
    for _ in range(draw(st.integers(1, 4))):
        row = draw(st.sampled_from(rows))
        if not row:
            continue
        at, other = (draw(st.integers(0, len(row) - 1)) for _ in range(2))
        match draw(st.sampled_from(["drop", "double", "swap", "move", "alter"])):
            case "drop":
                del row[at]
            case "double":
                row.insert(other, row[at])
            case "swap":
                row[at], row[other] = row[other], row[at]
            case "move":
                draw(st.sampled_from(rows)).append(row.pop(at))
            case "alter":
                row[at] = row[at]._replace(kind=draw(st.sampled_from(list(ActionKind))))
    return table("broken", schedule.placement, schedule.num_microbatches, rows)


# -- legal schedules -------------------------------------------------------------------


@examples(60)
@given(legal())
def test_every_action_is_one_step_at_the_time_at_which_it_is_simulated(walkthrough):
    timeline = simulate(walkthrough.schedule, walkthrough.costs)
    assert len(walkthrough) == sum(map(len, walkthrough.program.actions)) + 2
    begun = defaultdict(list)
    for snapshot, before in zip(list(walkthrough)[1:-1], walkthrough):
        assert snapshot.time == snapshot.event.start >= before.time
        begun[snapshot.event.rank].append(snapshot.event)
    for rank, row in enumerate(walkthrough.program.actions):
        assert [event.action for event in begun[rank]] == list(row)
        assert [event.position for event in begun[rank]] == list(range(len(row)))
        is_timed = walkthrough.costs.sends_block
        spans = [
            event[2:]
            for event in begun[rank]
            if is_timed or not event.action.kind.is_communication
        ]
        assert spans == list(timeline.spans[rank])
    assert walkthrough[-1].time == timeline.makespan and walkthrough[0].time == 0


@examples(60)
@given(legal())
def test_no_action_begins_before_what_it_needs(walkthrough):
    given = set()
    for snapshot in list(walkthrough)[1:-1]:
        uses = flow_of(walkthrough.program).uses(*snapshot.event[:2])
        given.update(uses.gives)
        # it meets its SEND: one of them begins first
        if not snapshot.event.action.kind.startswith("RECV"):
            assert given.issuperset((*uses.takes, *uses.reads))


@examples(60)
@given(legal())
def test_who_waits_for_whom_and_why_is_what_the_timeline_says(walkthrough):
    timeline = walkthrough.timeline
    for snapshot in walkthrough:
        for rank, state in enumerate(snapshot.ranks):
            slots = [
                slot
                for slot in timeline.idle[rank]
                if slot.start <= snapshot.time < slot.end
            ]
            if state.activity is Activity.WAITS:
                (slot,) = slots
                assert state.until == slot.end
                # what it waited for may have come during the overhead
                if state.cause is IdleCause.OVERHEAD:
                    assert walkthrough.costs.overhead and state.awaited is None
                    continue
                assert (state.source, state.awaited) == (slot.source, slot.awaited)
                assert state.cause is slot.cause and state.cause in (
                    IdleCause.WARM_UP,
                    IdleCause.WAITING,
                )
            elif state.activity is Activity.DONE:
                assert state.cause is IdleCause.DRAIN and all(
                    slot.cause is IdleCause.DRAIN for slot in slots
                )
            elif state.activity is Activity.RUNS and state.until > snapshot.time:
                assert [slot.cause for slot in slots] == (
                    [state.cause] if state.cause else []
                )
            if state.activity is Activity.RUNS and state.awaited:
                (slot,) = slots
                assert (state.source, state.awaited, state.cause) == (
                    slot.source,
                    slot.awaited,
                    IdleCause.SENDING,
                )


@examples(60)
@given(legal())
def test_what_a_rank_holds_adds_up_to_what_the_timeline_counts(walkthrough):
    timeline, most = walkthrough.timeline, [0] * walkthrough.program.num_ranks
    spans = {
        (rank, span.action): i
        for rank, row in enumerate(timeline.spans)
        for i, span in enumerate(row)
    }
    for snapshot in walkthrough:
        for rank, state in enumerate(snapshot.ranks):
            most[rank] = max(most[rank], len(state.held))
            if state.activity is Activity.RUNS:
                continue
            done = [
                spans[rank, a]
                for a in walkthrough.program.actions[rank][: state.position]
                if (rank, a) in spans
            ]
            held, memory = 0, 0.0
            if done:
                held, memory = (
                    timeline.held_activations[rank][done[-1]],
                    timeline.memory[rank][done[-1]],
                )
            assert len(state.held) == held and state.memory == pytest.approx(memory)
    assert tuple(most) == timeline.peak_activations


@examples(60)
@given(legal())
def test_the_messages_under_way_are_those_of_the_timeline(walkthrough):
    expected = {(m.value, m.used_by): m for m in walkthrough.timeline.messages}
    starts = {event.action: event.start for event in walkthrough.events}
    for snapshot in walkthrough:
        shown = {(m.value, m.used_by): m for m in snapshot.messages}
        for key, message in shown.items():
            other = expected[key]
            assert (message.source, message.destination) == (
                other.source,
                other.destination,
            )
            assert (message.sent, message.arrived) == pytest.approx(
                (other.sent, other.arrived)
            )
            assert message.sent <= snapshot.time <= starts[message.used_by]
        under_way = {
            key
            for key, m in expected.items()
            if m.sent + 1e-9 < snapshot.time < m.arrived - 1e-9
        }
        assert under_way <= set(shown)


def test_a_moment_of_1f1b_drawn_on_paper():
    # rank 0  F0 F1 .  .  B0=      time 2: rank 1 has just begun B0, and rank 0 waits for it.
    # rank 1  .  F0 B0== F1 ...
    walkthrough = Walkthrough(schedules.one_f_one_b(2, 2))
    snapshot = walkthrough[walkthrough.at_time(2)]
    assert (
        snapshot.time == 2
        and str(snapshot.event.action) == "1B0"
        and snapshot.event.rank == 1
    )
    first, second = snapshot.ranks
    assert (
        first.activity,
        str(first.action),
        first.source,
        str(first.awaited),
        first.until,
    ) == (
        "waits",
        "0B0",
        1,
        "1B0",
        4,
    )
    assert first.held == ((0, 0), (0, 1)) and first.cause is IdleCause.WAITING
    assert (second.activity, str(second.action), second.until, second.held) == (
        "runs",
        "1B0",
        4,
        ((1, 0),),
    )
    (message,) = snapshot.messages  # it has arrived, and rank 1 has not come to it
    assert (str(message.value), str(message.used_by), message.arrived) == (
        "0F1",
        "1F1",
        2,
    )


def test_a_send_that_blocks_says_whom_it_waits_for_until_the_other_rank_has_come():
    costs = Costs(latency=2, sends_block=True, forward=[1, 5])
    walkthrough = Walkthrough(
        schedule_of_text("0F0 0SEND_F0 0F1 0SEND_F1\n1RECV_F0 1F0 1RECV_F1 1F1"), costs
    )
    at = walkthrough.at_time(5)
    state = walkthrough[at].ranks[0]
    assert (str(state.action), state.activity, state.source, str(state.awaited)) == (
        "0SEND_F1",
        "runs",
        1,
        "1RECV_F1",
    )
    assert state.cause is IdleCause.SENDING
    state = walkthrough[walkthrough.at_time(8.5)].ranks[0]
    assert (str(state.action), state.awaited) == ("0SEND_F1", None)


@given(st.floats(-1, 40))
def test_the_moment_of_a_time_is_the_last_that_is_not_later(time):
    walkthrough = Walkthrough(schedules.one_f_one_b(3, 4), Costs(0.3, 1.1))
    at = walkthrough.at_time(time)
    assert at == max((m.number for m in walkthrough if m.time <= time), default=0)


def test_moments_are_counted_like_any_sequence():
    walkthrough = Walkthrough(schedules.gpipe(2, 2))
    assert (
        walkthrough[-1] == walkthrough[len(walkthrough) - 1]
        and walkthrough[-1].number == 9
    )
    with pytest.raises(IndexError):
        walkthrough[10]


def test_one_that_holds_too_much_is_timed_all_the_same():
    walkthrough = Walkthrough(schedules.gpipe(2, 4), memory_limit=3)
    assert [problem.code for problem in walkthrough.problems] == ["memory", "memory"]
    assert walkthrough.is_timed and not walkthrough.stuck and walkthrough[-1].time == 15


# -- illegal ones ----------------------------------------------------------------------


_cells = st.builds(
    Action, st.integers(0, 2), st.sampled_from(list(ActionKind)), st.integers(0, 1)
).map(str)
_rows = st.lists(st.lists(_cells, max_size=8), min_size=1, max_size=3)


@st.composite
def scribbled(draw):
    """Draw what a text of any cells is read as."""
    text = "\n".join(
        f"rank {rank}: {' '.join(row)}" for rank, row in enumerate(draw(_rows))
    )
    try:
        return schedule_of_text(text)
    except ScheduleError:
        assume(False)


@examples(200)
@given(broken() | scribbled())
def test_whatever_is_wrong_the_walk_goes_as_far_as_it_can_and_says_who_waits_for_what(
    schedule,
):
    try:
        events = walk(schedule)
    except ScheduleError as error:
        assert error.code in ("out-of-range", "missing")
        return
    walkthrough = Walkthrough(schedule, Costs(sends_block=True, weight_activation=2))
    assume(not walkthrough.is_timed)
    assert [(event.rank, event.action) for event in walkthrough.events] == list(
        events.order()
    )
    for snapshot in walkthrough:
        for state in snapshot.ranks:
            waits = state.activity in (Activity.WAITS, Activity.STUCK)
            assert waits == (state.awaited is not None)
    assert {state.activity for state in walkthrough[-1].ranks} <= {
        Activity.DONE,
        Activity.STUCK,
    }
    assert list(walkthrough.stuck) == [blocked.rank for blocked in events.blocked]
    for rank, position, action, awaited in events.blocked:
        state = walkthrough.stuck[rank]
        assert (state.position, state.action) == (position, action)
        same = (
            {awaited, awaited._replace(kind=ActionKind.BACKWARD_INPUT)}
            if awaited.kind == "B"
            else {awaited}
        )
        if awaited == action:  # nobody is there
            assert state.awaited == action or action.kind.is_communication
        else:
            assert state.awaited in same


@examples(100)
@given(broken() | scribbled())
def test_the_cycle_is_one_in_which_each_waits_for_the_next_and_the_verifier_says_so(
    schedule,
):
    try:
        walkthrough = Walkthrough(schedule)
    except ScheduleError:
        return
    cycle = walkthrough.cycle
    for rank, following in zip(cycle, (*cycle[1:], *cycle[:1])):
        assert walkthrough.stuck[rank].source == following
    code = walkthrough.problems[0].code if walkthrough.problems else None
    if code in ("order", "deadlock", "rendezvous-deadlock"):
        assert cycle and (len(cycle) == 1) == (code == "order")


@pytest.mark.parametrize(
    ("text", "code", "events", "stuck"),
    [
        ("0F0 0B0\n1F0", "missing", ["0F0", "1F0"], {0: "1B0"}),
        ("0F0 0F0 0B0", "duplicate", ["0F0", "0F0", "0B0"], {}),
        (
            "0F0 0F1 1F0 0B0\n1B0 1F1 1B1 0B1",
            "placement",
            ["0F0", "0F1", "1F0", "1B0", "0B0", "1F1", "1B1", "0B1"],
            {},
        ),
        ("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0", "deadlock", ["0F0"], {0: "1B0", 1: "0F1"}),
        ("0B0 0F0", "order", [], {0: "0F0"}),
    ],
)
def test_each_kind_of_mistake_is_told_and_walked_up_to_where_it_sticks(
    text, code, events, stuck
):
    walkthrough = Walkthrough(schedule_of_text(text))
    assert walkthrough.problems[0].code == code and not walkthrough.is_legal
    assert [str(event.action) for event in walkthrough.events] == events
    assert {
        rank: str(state.awaited) for rank, state in walkthrough.stuck.items()
    } == stuck


def test_the_naive_order_of_messages_sticks_with_both_neighbours_sending():
    naive = schedule_of_text(
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1\n1RECV_F0 1F0 1B0 "
        "1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1"
    )
    walkthrough = Walkthrough(naive)
    assert walkthrough.problems[
        0
    ].code == "rendezvous-deadlock" and walkthrough.cycle == (0, 1)
    states = walkthrough.stuck
    assert {rank: (str(s.action), str(s.awaited)) for rank, s in states.items()} == {
        0: ("0SEND_F1", "1RECV_F1"),
        1: ("1SEND_B0", "0RECV_B0"),
    }
    assert [str(m.value) for m in walkthrough[-1].messages] == []
    assert walkthrough[-1].time == 4 and walkthrough.timeline.unit == "rounds"


def test_a_send_that_is_written_twice_waits_for_nobody_while_it_runs():
    twice = schedule_of_text(
        "0F0 0SEND_F0 0RECV_B0 0B0\n1RECV_F0 1F0 1SEND_F0 1RECV_B0 1B0 1SEND_B0 "
        "1SEND_B0\n2RECV_F0 2F0 2B0 2SEND_B0"
    )
    states = [
        state
        for snapshot in Walkthrough(twice)
        for state in snapshot.ranks
        if state.activity is Activity.RUNS
    ]
    assert states and not any(state.awaited for state in states)


def test_a_value_that_nobody_comes_to_fetch_lies_there_at_the_end():
    walkthrough = Walkthrough(schedule_of_text("0F0 0F1 0B0 0B1\n1B1 1F1 1F0 1B0"))
    assert [str(m.value) for m in walkthrough[-1].messages] == ["0F0", "0F1"]


def test_where_the_walk_cannot_even_begin_the_verifiers_error_is_raised():
    outside = table("mine", (0,), 1, [["0F0", "3B0"]])
    sparse = table("mine", (0,), 10**6, [["0F0", "0B0"]])
    for schedule, code in ((outside, "out-of-range"), (sparse, "missing")):
        with pytest.raises(ScheduleError) as caught:
            Walkthrough(schedule)
        assert caught.value.code == code


@pytest.mark.parametrize("text", ["0F0 0B0", "0B0 0F0"])
def test_costs_that_do_not_fit_are_refused_whether_it_is_legal_or_not(text):
    for costs in (Costs([1, 2]), Costs(latency=-1), Costs(activation=[1, 2])):
        with pytest.raises(ScheduleError) as caught:
            Walkthrough(schedule_of_text(text), costs)
        assert caught.value.code == "value"


def test_a_rank_without_any_action_is_done_from_the_start():
    walkthrough = Walkthrough(table("mine", (0,), 1, [["0F0", "0B0"], []]))
    assert (
        walkthrough[0].ranks[1].activity is Activity.DONE
        and walkthrough[0].ranks[1].action is None
    )


def test_an_action_that_no_values_are_given_for_never_runs():
    needless = replace(schedule_of_text("0F0 0I0 0W0\n1F0 1I0 1W0"), frozen=[1])
    walkthrough = Walkthrough(needless)
    assert walkthrough.problems[0].code == "frozen" and list(walkthrough.stuck) == [1]
    assert (
        describe_state(walkthrough, walkthrough[-1], 1)[0]
        == "stuck at 1W0: needs values that no action gives"
    )
    stuck = (
        "rank 1 is stuck at 1W0 (position 2 of its list): it needs values that no "
        "action gives"
    )
    assert stuck in describe_diagnosis(walkthrough)


def test_a_reduction_of_nothing_waits_for_no_other_replica():
    twice = schedule_of_text("0F0 0B0 0REDUCE_GRAD0 0REDUCE_GRAD0")
    walkthrough = Walkthrough(twice)
    state, *_ = describe_state(walkthrough, walkthrough[-1], 0)
    assert state == "stuck at 0REDUCE_GRAD0: needs values that no action gives"
    stuck = (
        "rank 0 is stuck at 0REDUCE_GRAD0 (position 3 of its list): it needs values "
        "that no action gives"
    )
    assert stuck in describe_diagnosis(walkthrough)
    with pytest.raises(
        ScheduleError, match="waits for ever for values that no action gives; verify"
    ):
        lower(twice)


@pytest.mark.parametrize("early", ["0U0", "0REDUCE_GRAD0"])
def test_what_comes_before_a_w_is_said_to_wait_for_it_and_not_for_its_i_which_has_run(
    early,
):
    walkthrough = Walkthrough(schedule_of_text(f"0F0 0I0 {early} 0W0"))
    assert (
        describe_state(walkthrough, walkthrough[-1], 0)[0]
        == f"stuck at {early}: needs 0W0, later in its own list"
    )
    stuck = (
        f"rank 0 is stuck at {early} (position 2 of its list): it needs 0W0, "
        "position 3 of rank 0"
    )
    assert stuck in describe_diagnosis(walkthrough)


# -- past bugs -------------------------------------------------------------------------


def test_the_backward_of_the_last_stage_runs_after_its_forward_even_if_that_stands_on_a_wrong_rank():
    """The story: the walk put 1B0 into round 1, before the forwards it needs, and a
    student saw it run first.
    """
    events = Walkthrough(schedule_of_text("0F0 0F1 1F0 0B0\n1B0 1F1 1B1 0B1")).events
    start = {str(event.action): event.start for event in events}
    assert start["1F0"] == 2 and start["1B0"] == 3


def test_messages_that_share_a_link_arrive_when_the_timeline_says():
    """The story: the walk added the time in flight of a message alone, so a shared link
    seemed to be free.
    """
    costs = Costs(hosts=(0, 0, 1, 1), latency=0.1, bandwidth=1, message_size=2)
    walkthrough = Walkthrough(schedules.zb_v(4, 8), costs)
    shown = {message[:6] for snapshot in walkthrough for message in snapshot.messages}
    assert len(shown) > 40 and shown <= {
        message[:6] for message in walkthrough.timeline.messages
    }
    alone = 0.1 + 2
    assert max(arrived - sent for *_, sent, arrived in shown) > alone + 0.5


@pytest.mark.parametrize("analysis", [Walkthrough, peak_memory])
@pytest.mark.parametrize("costs", [{"F": 2}, "F=2", 2])
def test_costs_of_another_type_are_refused(analysis, costs):
    with pytest.raises(ScheduleError, match="expected Costs, such as"):
        analysis(schedules.gpipe(2, 2), costs)
