"""Every idle moment has a cause, and the critical path is why it takes as long as it
does.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import schedules
from minipipe.core.schedules.action import Action, ActionKind
from minipipe.core.schedules.analysis.dependencies import Transfer
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.render import draw_text
from minipipe.schedules import schedule_of_text
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.simulator import simulate
from minipipe.schedules.simulation.span import IdleCause, Span
from minipipe.schedules.simulation.timeline import Timeline
from tests.strategies import examples, named_schedules, spans

WHOLE = Costs(1, 1, 0)


def described(idle):
    return [
        f"{slot.start:g}-{slot.end:g} {slot.cause}"
        + (f" {slot.source}:{slot.awaited}" if slot.awaited else "")
        for slot in idle
    ]


# -- as on paper -----------------------------------------------------------------------


def test_the_idle_slots_of_1f1b_on_two_ranks():
    # rank 0 F0 F1 .  B0 .  B1      the second pause is for 1B1
    # rank 1 .  F0 B0 F1 B1 .
    timeline = simulate(schedules.one_f_one_b(2, 2), WHOLE)
    assert [described(slots) for slots in timeline.idle] == [
        ["2-3 waiting 1:1B0", "4-5 waiting 1:1B1"],
        ["0-1 warm-up 0:0F0", "5-6 drain"],
    ]


def test_with_latency_a_rank_waits_for_what_is_on_its_way():
    # rank 0 F0 ............ B0     1B0 ended at 4, and its message takes two units
    # rank 1 ...... F0 B0 ..
    timeline = simulate(schedules.gpipe(2, 1), Costs(1, 1, 0, latency=2))
    assert [described(slots) for slots in timeline.idle] == [
        ["1-7 waiting 1:1B0"],
        ["0-3 warm-up 0:0F0", "5-8 drain"],
    ]


def test_a_send_that_blocks_is_idle_time_of_its_own():
    # rank 0 F0 [1F free at 0: the message takes 2] ... B0
    timeline = simulate(
        schedules.gpipe(2, 1), Costs(1, 1, 0, latency=2, sends_block=True)
    )
    assert [described(slots) for slots in timeline.idle] == [
        ["1-3 sending 1:1RECV_F0", "3-7 waiting 1:1SEND_B0"],
        ["0-3 warm-up 0:0SEND_F0", "5-7 sending 0:0RECV_B0", "7-8 drain"],
    ]
    assert timeline.makespan == 8
    assert [timeline.busy(rank) for rank in (0, 1)] == [2, 2]


def test_the_critical_path_of_gpipe_fills_works_on_the_last_rank_and_drains():
    # a slow last stage, so that there is only one
    costs = Costs([1, 1, 2], [1, 1, 2], 0)
    path = [
        str(span.action)
        for _, span in simulate(schedules.gpipe(3, 2), costs).critical_path
    ]
    assert path == ["0F0", "1F0", "2F0", "2F1", "2B0", "2B1", "1B1", "0B1"]


def test_with_blocking_sends_the_critical_path_goes_through_them():
    timeline = simulate(
        schedules.gpipe(2, 1), Costs(1, 1, 0, latency=2, sends_block=True)
    )
    assert [str(span.action) for _, span in timeline.critical_path] == [
        "0F0",
        "0SEND_F0",
        "1F0",
        "1B0",
        "1SEND_B0",
        "0B0",
    ]


def test_a_send_waits_for_a_receiver_that_is_busy():
    # Rank 1 comes to the RECV of microbatch 1 only after 1F0, which takes 5: the
    # critical path goes over 1F0.
    text = "0F0 0SEND_F0 0F1 0SEND_F1\n1RECV_F0 1F0 1RECV_F1 1F1"
    timeline = simulate(
        schedule_of_text(text), Costs(forward=[1, 5], latency=1, sends_block=True)
    )
    assert [(str(s.action), s.start, s.end) for s in timeline.spans[0]] == [
        ("0F0", 0, 1),
        ("0SEND_F0", 1, 2),
        ("0F1", 2, 3),
        ("0SEND_F1", 3, 8),
    ]
    assert [str(span.action) for _, span in timeline.critical_path] == [
        "0F0",
        "0SEND_F0",
        "1F0",
        "0SEND_F1",
        "1F1",
    ]


def test_a_value_that_its_send_holds_back_is_waited_for_and_lies_on_the_critical_path():
    """The story: rank 1 was idle for no reason, and the critical path had a hole, where
    a SEND came late.
    """
    schedule = schedule_of_text(
        "0F0 0SEND_F0 0F1 0F2 0SEND_F1 0SEND_F2\n1RECV_F0 1F0 1RECV_F1 1F1 1RECV_F2 1F2"
    )
    timeline = simulate(schedule)
    assert [described(slots) for slots in timeline.idle] == [
        ["3-5 drain"],
        ["0-1 warm-up 0:0SEND_F0", "2-3 waiting 0:0SEND_F1"],
    ]
    assert [str(span.action) for _, span in timeline.critical_path] == [
        "0F0",
        "0F1",
        "0F2",
        "1F1",
        "1F2",
    ]


def test_what_was_measured_and_explained_by_nothing_is_called_overhead():
    # 0B0 has its value at 2, but starts at 5: somebody else had the core.
    first = (
        Span(Action(0, ActionKind.FORWARD, 0), 0, 1),
        Span(Action(0, ActionKind.BACKWARD, 0), 5, 6),
    )
    timeline = Timeline("measured", (first,), (1,), unit="s")
    assert described(timeline.idle[0]) == ["1-5 overhead"]
    assert [str(span.action) for _, span in timeline.critical_path] == ["0F0", "0B0"]


def test_the_ways_to_count_a_bubble_differ_and_each_has_its_name():
    timeline = simulate(schedules.zb_h1(4, 8))
    assert timeline.makespan == 27 and timeline.cost == 27
    assert timeline.bubble_fraction == pytest.approx(3 / 27)
    assert timeline.bubble_over_ideal == pytest.approx(3 / 24)
    assert timeline.span_bubble_rate == pytest.approx(3 / 27)
    over_a_v = simulate(schedules.zb_v(4, 8))
    assert (over_a_v.makespan, over_a_v.cost) == (6 * 8 + 3, 48)
    assert over_a_v.span_bubble_rate == 0 and over_a_v.bubble_fraction == pytest.approx(
        3 / 51
    )


def test_a_timeline_of_nothing_has_no_idle_time_and_no_path():
    timeline = Timeline("nothing", ((), ()), (0, 0))
    assert (timeline.makespan, timeline.idle, timeline.critical_path) == (
        0,
        ((), ()),
        (),
    )
    assert (
        timeline.bubble_fraction,
        timeline.span_bubble_rate,
        timeline.bubble_over_ideal,
    ) == (0, 0, 0)


# -- laws ------------------------------------------------------------------------------


@st.composite
def timelines(draw):
    _, schedule = draw(named_schedules(max_ranks=5, max_microbatches=8, max_chunks=3))
    n = schedule.num_stages
    times = [
        draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)) for _ in range(3)
    ]
    costs = Costs(
        *times, latency=draw(st.integers(0, 4)), sends_block=draw(st.booleans())
    )
    if draw(st.booleans()):
        schedule = lower(schedule)
    return schedule, costs, simulate(schedule, costs)


@examples(200)
@given(timelines())
def test_idle_slots_and_work_fill_the_makespan_of_every_rank(drawn):
    schedule, costs, timeline = drawn
    for rank, row in enumerate(timeline.spans):
        slots = timeline.idle[rank]
        covered = sorted(
            [
                (s.start, s.end)
                for s in row
                if not s.action.kind.is_communication and s.end > s.start
            ]
            + [(slot.start, slot.end) for slot in slots]
        )
        assert all(start < end for start, end in covered)
        assert [a[1] for a in covered[:-1]] == [b[0] for b in covered[1:]]
        if timeline.makespan:
            assert (covered[0][0], covered[-1][1]) == (timeline.start, timeline.end)
        for slot in slots:
            # in a simulation everything has a reason
            assert slot.cause is not IdleCause.OVERHEAD
            assert (slot.cause is IdleCause.DRAIN) == (slot.awaited is None)
            if slot.awaited is not None:
                assert (
                    slot.source
                    == schedule.rank_of(slot.awaited.stage, slot.awaited.microbatch)
                    != rank
                )
            if slot.cause is IdleCause.SENDING:
                assert costs.sends_block
        assert [slot.cause for slot in slots].count(IdleCause.DRAIN) <= 1


@examples(100)
@given(timelines())
def test_a_message_leaves_when_its_value_is_there_and_comes_before_it_is_used(drawn):
    """The story: the moment was found by taking the latency off the arrival, which
    rounding makes another one.
    """
    schedule, costs, _ = drawn
    timeline = simulate(
        schedule, Costs(0.1, 0.7, 0.3, latency=costs.latency / 10, overhead=0.05)
    )
    span_of = {span.action: span for row in timeline.spans for span in row}
    for message in timeline.messages:
        ends = {span.end for span in timeline.spans[message.source]}
        assert (
            span_of[message.value].end
            <= message.sent
            <= message.arrived
            <= span_of[message.used_by].start
        )
        assert message.sent in ends


@examples(200)
@given(timelines())
def test_the_critical_path_has_no_gap_but_messages(drawn):
    _, costs, timeline = drawn
    path = timeline.critical_path
    assert path[0][1].start == timeline.start and path[-1][1].end == timeline.end
    for (rank, before), (next_rank, after) in zip(path, path[1:]):
        crosses = rank != next_rank and not costs.sends_block
        # a send that waits for its receiver begins before that is free
        if after.action.kind.is_communication:
            assert after.end - costs.latency == max(before.end, after.start)
        else:
            assert after.start == before.end + costs.latency * crosses


@examples(60)
@given(timelines(), st.data())
def test_only_what_lies_on_a_critical_path_can_delay_the_end_by_all_it_grows(
    drawn, data
):
    # Make every action of a stage longer: the makespan grows at least by what this adds
    # to the critical path.
    schedule, costs, timeline = drawn
    stage = data.draw(st.integers(0, schedule.num_stages - 1))
    longer = [t + (s == stage) for s, t in enumerate(costs.forward)]
    slower = simulate(
        schedule,
        Costs(
            longer,
            costs.backward_input,
            costs.backward_weight,
            costs.latency,
            sends_block=costs.sends_block,
        ),
    )
    on_path = sum(
        s.action.stage == stage and s.action.kind is ActionKind.FORWARD
        for _, s in timeline.critical_path
    )
    # of a sequence a slice takes its part
    added = on_path / schedule.num_slices
    assert slower.makespan >= timeline.makespan + added


# -- measured messages -----------------------------------------------------------------


def as_measured(timeline, clocks):
    """Return a timeline as it would be measured, by ranks whose clocks go ahead by so
    much.

    A receiver looks only once it is free, so it has a message no sooner; that it was
    awaited is told by the clocks.
    """
    spans = tuple(
        tuple(Span(action, start + ahead, end + ahead) for action, start, end in row)
        for row, ahead in zip(timeline.spans, clocks)
    )
    messages = []
    for message in timeline.messages:
        row = timeline.spans[message.destination]
        at = next(i for i, span in enumerate(row) if span.action == message.used_by)
        awaited_from = (row[at - 1].end if at else timeline.start) + clocks[
            message.destination
        ]
        arrived = max(awaited_from, message.arrived + clocks[message.destination])
        sent = message.sent + clocks[message.source]
        messages.append(
            message._replace(
                sent=sent, arrived=arrived, was_awaited=awaited_from <= sent
            )
        )
    return replace(
        timeline,
        spans=spans,
        measured_messages=tuple(messages),
        is_measured=True,
        message_times=(),
        sent={},
    )


@examples(150)
@given(st.data())
def test_a_measured_timeline_tells_the_same_causes_as_the_prediction_that_came_true(
    data,
):
    """The story: of a message sent just before its receiver looked, the way was taken
    for bookkeeping.
    """
    _, schedule = data.draw(
        named_schedules(max_ranks=4, max_microbatches=6, max_chunks=2)
    )
    times = [
        data.draw(
            st.lists(
                st.integers(1, 9),
                min_size=schedule.num_stages,
                max_size=schedule.num_stages,
            )
        )
    ] * 3
    timeline = simulate(
        schedule, Costs(*times, latency=data.draw(st.integers(0, 12)), overhead=0.25)
    )
    measured = as_measured(timeline, clocks=[0.0] * timeline.num_ranks)
    ways = {(message.source, message.destination) for message in measured.messages}
    if ways == {(m.source, m.destination) for m in measured.messages if m.was_awaited}:
        assert measured.idle == timeline.idle
        assert measured.critical_path == timeline.critical_path
        predicted = simulate(schedule, Costs.measured(measured))
        assert predicted.makespan == pytest.approx(timeline.makespan, rel=1e-12)


def test_clocks_that_differ_do_not_make_a_message_of_long_ago_one_that_is_awaited():
    # rank 0 F0 F1 F2 ...      each F takes 1 there and 5 on rank 1, which waits only for the first activation
    timeline = simulate(schedules.gpipe(2, 3), Costs(forward=[1, 5], latency=0.5))
    for ahead in (-0.25, 0.0, 0.25):
        measured = as_measured(timeline, clocks=[0.0, ahead])
        assert [slot.cause for slot in measured.idle[1]] == ["warm-up", "drain"]
        assert [str(span.action) for _, span in measured.critical_path][:3] == [
            "0F0",
            "1F0",
            "1F1",
        ]


# -- a second opinion about sends that block -------------------------------------------


def times_by_relaxation(program, costs):
    """Repeat 'how far does each rank get with what is known' until nothing is new;
    return the span of each action.
    """
    known = {}  # (action, "start" or "end")
    duration = dict(
        zip(
            "FIWU",
            (costs.forward, costs.backward_input, costs.backward_weight, costs.update),
        )
    )
    while True:
        before = len(known)
        for row in program.actions:
            now = 0
            for action in row:
                stage, kind, k = action
                known.setdefault((action, "start"), now)
                if kind.value.startswith("SEND"):
                    reached = known.get((Transfer.carried_by(action).receive, "start"))
                    if reached is None:
                        break
                    now = max(now, reached) + costs.latency
                elif not kind.value.startswith("RECV"):
                    needs = []
                    neighbour = stage - 1 if kind.value == "F" else stage + 1
                    if kind.value not in "WU" and 0 <= neighbour < program.num_stages:
                        if program.placement[neighbour] != program.placement[stage]:
                            letter = "F" if kind.value == "F" else "B"
                            needs = [
                                (
                                    Action(neighbour, ActionKind(f"SEND_{letter}"), k),
                                    "end",
                                )
                            ]
                        else:
                            kinds = "F" if kind.value == "F" else "BI"
                            made = [
                                (Action(neighbour, ActionKind(letter), k), "end")
                                for letter in kinds
                            ]
                            needs = [key for key in made if key in known] or made[:1]
                    if any(key not in known for key in needs):
                        break
                    start = max([now, *(known[key] for key in needs)])
                    known[action, "start"] = start
                    letters = "IW" if kind.value == "B" else kind.value
                    now = start + sum(duration[letter][stage] for letter in letters)
                known[action, "end"] = now
        if len(known) == before:
            return {
                action: (known[action, "start"], end)
                for (action, which), end in known.items()
                if which == "end"
            }


@examples(150)
@given(timelines())
def test_times_with_blocking_sends_are_those_of_a_second_opinion(drawn):
    schedule, costs, _ = drawn
    times, update = (
        (costs.forward, costs.backward_input, costs.backward_weight),
        [3] * schedule.num_stages,
    )
    costs = Costs(*times, costs.latency, update=update, sends_block=True)
    expected = times_by_relaxation(lower(schedule), costs.sliced(schedule.num_slices))
    found = {
        span.action: (span.start, span.end)
        for row in simulate(schedule, costs).spans
        for span in row
    }
    assert found == expected


@examples(100)
@given(timelines())
def test_blocking_sends_never_make_it_faster(drawn):
    schedule, costs, _ = drawn
    free, blocking = (
        simulate(
            schedule,
            Costs(
                costs.forward,
                costs.backward_input,
                costs.backward_weight,
                costs.latency,
                sends_block=b,
            ),
        )
        for b in (False, True)
    )
    assert blocking.makespan >= free.makespan


def test_a_ranks_own_span_begins_with_its_first_computation():
    """A RECV of no length at time 0 counted as the first start, so blocking sends gave
    ZB-H2 a bubble of its own.
    """
    for sends_block in (False, True):
        timeline = simulate(schedules.zb_h2(4, 8), Costs(sends_block=sends_block))
        assert (
            timeline.cost == timeline.own_span(3) == 24
            and timeline.span_bubble_rate == 0
        )


def test_the_critical_path_of_a_timeline_that_goes_round_ends():
    """Two actions that were each said to come after the other were followed for
    ever.
    """
    forward = Span(Action.parse("0F0"), 0, 5), Span(Action.parse("1F0"), 0, 5)
    backward = Span(Action.parse("1B0"), 0, 5), Span(Action.parse("0B0"), 0, 5)
    path = Timeline(
        "cycle", (forward[1:] + backward[1:], backward[:1] + forward[:1]), (1, 1)
    ).critical_path
    assert len(path) <= 4


def test_units_go_from_the_costs_to_the_timeline_and_back():
    timeline = simulate(schedules.gpipe(2, 2), Costs(unit="s", memory_unit="bytes"))
    assert (timeline.unit, timeline.memory_unit, Costs.measured(timeline).unit) == (
        "s",
        "bytes",
        "s",
    )


@pytest.mark.parametrize("end", [2, 4])
def test_who_has_what_it_needs_when_it_is_free_does_not_wait_for_it(end):
    timeline = Timeline(
        "m",
        (spans(("0F0", 0, 1), ("0F1", 1, end)), spans(("1F0", 1, 4), ("1F1", 6, 7))),
        (1, 1),
    )
    assert [(slot.start, slot.end, slot.cause) for slot in timeline.idle[1]] == [
        (0, 1, "warm-up"),
        (4, 6, "overhead"),
    ]


def test_cost_and_rate_are_those_of_the_rank_with_the_longest_own_span():
    timeline = Timeline(
        "m",
        (
            spans(("0F0", 0, 1)),
            spans(("1F0", 1, 2), ("1F1", 5, 8)),
            spans(("2F0", 2, 3), ("2F1", 7, 8)),
        ),
        (1, 1, 1),
    )
    assert timeline.cost == 7 and timeline.span_bubble_rate == 3 / 7


def test_a_message_takes_the_time_of_its_own_stage_when_idle_time_is_explained():
    timeline = simulate(
        schedules.gpipe(3, 2),
        Costs([1, 4, 3], 1, 0, bandwidth=1, message_size=[0, 6, 0]),
    )
    slots = [
        (slot.start, slot.end, slot.cause, str(slot.awaited))
        for slot in timeline.idle[2][:2]
    ]
    assert slots == [(0, 11, "warm-up", "1F0"), (14, 15, "waiting", "1F1")]


def test_idle_time_counts_from_the_first_start():
    timeline = Timeline(
        "clock", (spans(("0F0", 5, 7)), spans(("1F0", 7, 9))), (1, 1), unit="s"
    )
    assert [(slot.start, slot.end, slot.cause) for slot in timeline.idle[1]] == [
        (5, 7, "warm-up")
    ]
    assert draw_text(timeline).splitlines()[0].endswith("·")
