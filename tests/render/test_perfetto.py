"""A trace follows the rules of the Trace Event Format, and says what its timeline says.

The rules are checked as Perfetto's and Chrome's readers apply them: both drop a slice
that overlaps another one, and an arrow that holds on to no slice. They were confirmed
by opening such traces in both viewers.
"""

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from minipipe import Pipeline, nn, schedules, spawn
from minipipe.core.schedules.action import Action, ActionKind
from minipipe.core.schedules.action_table import Schedule
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.render import perfetto_trace
from minipipe.render.descriptions import describe_idle, describe_message
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.simulator import simulate
from minipipe.schedules.simulation.span import Span
from minipipe.schedules.simulation.timeline import Timeline
from tests.render.perfetto_rules import (
    enclosing,
    problems,
    read,
    slices_by_thread,
)
from tests.strategies import examples, named_schedules

# -- what is drawn ---------------------------------------------------------------------

TIMES = st.one_of(
    st.integers(0, 5), st.floats(0, 3), st.sampled_from([1e-4, 0.1, 1 / 3, 1e5 / 7])
)


@st.composite
def timelines(draw, **sizes):
    """Draw a simulated timeline of a random schedule with random costs, also awkward
    ones.
    """
    _, schedule = draw(
        named_schedules(
            **{"max_ranks": 4, "max_microbatches": 8, "max_chunks": 3, **sizes}
        )
    )
    stages = {"min_size": schedule.num_stages, "max_size": schedule.num_stages}
    times = draw(
        st.one_of(
            TIMES.map(lambda t: [t] * 3), st.tuples(*[st.lists(TIMES, **stages)] * 3)
        )
    )
    costs = Costs(
        *times,
        latency=draw(TIMES),
        bandwidth=draw(st.sampled_from([float("inf"), 0.3, 1000])),
        message_size=draw(TIMES),
        activation=draw(TIMES),
        sends_block=draw(st.booleans()),
        unit=draw(st.sampled_from(["units", "s"])),
    )
    return simulate(lower(schedule) if draw(st.booleans()) else schedule, costs)


@pytest.fixture(scope="module")
def measured():
    def train(group):
        model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(6)))
        pipeline = Pipeline(
            model,
            group,
            loss=nn.MSELoss(),
            schedule="interleaved-1f1b",
            num_microbatches=6,
        )
        inputs = np.ones((12, 6), np.float32)
        pipeline.step(inputs, inputs)
        return pipeline.timeline()

    return spawn(train, num_ranks=3)[0]


# -- laws ------------------------------------------------------------------------------


@examples(100)
@given(timelines())
def test_every_trace_follows_the_rules_of_the_format(timeline):
    assert problems(read(timeline)) == set()


def test_a_measured_trace_follows_the_rules_too(measured):
    trace = read(measured)
    assert problems(trace) == set()
    assert (
        Counter(e["ph"] for e in trace["traceEvents"])["s"]
        == len(measured.messages)
        > 0
    )


@examples(30)
@given(st.lists(timelines(max_ranks=3, max_microbatches=4), min_size=2, max_size=3))
def test_several_timelines_share_a_trace_and_no_number(drawn):
    assume(len({timeline.unit for timeline in drawn}) == 1)
    trace = read(*drawn)
    assert problems(trace) == set()
    names = [
        e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"
    ]
    assert names == [f"{timeline.name}, predicted" for timeline in drawn]
    order = [
        e["args"]["sort_index"]
        for e in trace["traceEvents"]
        if e["name"] == "process_sort_index"
    ]
    assert order == sorted(order)


@examples(60)
@given(timelines())
def test_slices_say_what_the_timeline_says(timeline):
    says_what_it_should(timeline)


def test_slices_say_what_was_measured(measured):
    says_what_it_should(measured)


def number_in(timeline, microbatch):
    """Return the number of a microbatch; a slice's, as if each slice were a
    microbatch.
    """
    return (
        microbatch
        if timeline.num_slices == 1
        else microbatch[0] * timeline.num_slices + microbatch[1]
    )


def says_what_it_should(timeline):
    trace = read(timeline)
    threads = iter(slices_in_order(trace))
    microseconds = 1e6 if timeline.unit == "s" else 1e3
    for rank in range(timeline.num_ranks):
        spans = [
            (span, held)
            for span, held in zip(timeline.spans[rank], timeline.held_activations[rank])
            if not span.action.kind.is_communication or span.end > span.start
        ]
        actions, idle = next(threads), next(threads)
        assert len(actions) == len(spans)
        for event, (span, held) in zip(actions, spans):
            stage, kind, microbatch = span.action
            assert (
                event["name"] in (f"{kind}{microbatch}", f"{stage}{kind}{microbatch}")
                and event["cat"] == kind
            )
            assert (event["args"]["stage"], event["args"]["microbatch"]) == (
                stage,
                number_in(timeline, microbatch),
            )
            assert event["args"]["held activations after it"] == held / (
                timeline.pairs_per_microbatch or 1
            )
            near(event, span, timeline.start, microseconds)
        shown = [
            slot
            for slot in timeline.idle[rank]
            if (slot.end - slot.start) * microseconds > 0.13
        ]
        for slot in shown:
            (event,) = [
                e
                for e in idle
                if e["args"]["why"] == describe_idle(slot)
                and is_near(e, slot, timeline)
            ]
            assert event["name"] == slot.cause
        assert len(shown) <= len(idle) <= len(timeline.idle[rank])


def slices_in_order(trace):
    """Return the slices of each thread, in the order in which the threads are
    sorted.
    """
    indices = (e for e in trace["traceEvents"] if e["name"] == "thread_sort_index")
    order = {(e["pid"], e["tid"]): e["args"]["sort_index"] for e in indices}
    threads = slices_by_thread(trace)
    return [threads[thread] for thread in sorted(order, key=order.get)]


def near(event, span, origin, microseconds):
    for time, expected in (
        (event["ts"], span.start),
        (event["ts"] + event["dur"], span.end),
    ):
        assert time == pytest.approx((expected - origin) * microseconds, abs=0.07)


def is_near(event, slot, timeline):
    return (
        abs(
            event["ts"]
            - (slot.start - timeline.start) * (1e6 if timeline.unit == "s" else 1e3)
        )
        < 0.07
    )


@examples(60)
@given(timelines())
def test_every_message_is_an_arrow_from_its_maker_to_its_user(timeline):
    # Unless one of the two takes so little time that no slice is left to hold it.
    trace = read(timeline)
    step = 0.125 / (1e6 if timeline.unit == "s" else 1e3)
    lengths = {
        span.action: span.end - span.start for row in timeline.spans for span in row
    }
    surely = {
        describe_message(m)
        for m in timeline.messages
        if min(lengths[m.value], lengths[m.used_by]) > 1.01 * step
    }
    possibly = {describe_message(m) for m in timeline.messages}
    starts = {e["name"]: e for e in trace["traceEvents"] if e["ph"] == "s"}
    ends = {e["name"]: e for e in trace["traceEvents"] if e["ph"] == "f"}
    assert surely <= set(starts) <= possibly
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in trace["traceEvents"]
        if e["name"] == "thread_name"
    }
    for message in timeline.messages:
        name = describe_message(message)
        if name in starts:
            for event, action, rank in (
                (starts[name], message.value, message.source),
                (ends[name], message.used_by, message.destination),
            ):
                (piece,) = enclosing(trace, event)
                found = (
                    piece["args"]["stage"],
                    piece["cat"],
                    piece["args"]["microbatch"],
                )
                assert found == (
                    action.stage,
                    action.kind,
                    number_in(timeline, action.microbatch),
                )
                assert threads[piece["pid"], piece["tid"]] == f"rank {rank}"


@examples(60)
@given(timelines())
def test_the_highest_point_of_each_counter_is_the_peak_of_its_rank(timeline):
    pairs = timeline.pairs_per_microbatch or 1
    activations = tuple(peak / pairs for peak in timeline.peak_activations)
    for held, peaks in (
        (timeline, timeline.peak_memory),
        (replace(timeline, memory=None), activations),
    ):
        values = defaultdict(list)
        for event in read(held)["traceEvents"]:
            if event["ph"] == "C":
                values[event["name"]].append(next(iter(event["args"].values())))
        # What is given back within the same eighth of a microsecond leaves no trace.
        if all(
            s.end - s.start > 1e-3
            for row in timeline.spans
            for s in row
            if not s.action.kind.is_communication
        ):
            assert tuple(map(max, values.values())) == peaks
            # A rank that computes at the very beginning holds its first activation
            # then; others begin with nothing.
            curves = (
                held.memory_over_time if held.memory else held.activations_over_time
            )
            at_first = [
                dict(curves(rank)).get(timeline.start, 0)
                for rank in range(timeline.num_ranks)
            ]
            at_first = (
                at_first if held.memory else [first / pairs for first in at_first]
            )
            assert [first for first, *_ in values.values()] == at_first


# -- as on paper -----------------------------------------------------------------------


def test_the_trace_of_the_smallest_pipeline():
    # rank 0 F0 .. .. B0 B0      a unit is a millisecond
    # rank 1 .. F0 B0 B0 ..
    trace = read(schedules.gpipe(2, 1))
    threads = {
        e["tid"]: e["args"]["name"]
        for e in trace["traceEvents"]
        if e["name"] == "thread_name"
    }
    assert list(threads.values()) == [
        "rank 0",
        "rank 0, idle",
        "rank 1",
        "rank 1, idle",
    ]
    assert [
        f"{threads[e['tid']]}: {e['name']} {e['ts']:g}-{e['ts'] + e['dur']:g}"
        for e in trace["traceEvents"]
        if e["ph"] == "X"
    ] == [
        "rank 0: F0 0-1000",
        "rank 0: B0 4000-6000",
        "rank 0, idle: waiting 1000-4000",
        "rank 1: F0 1000-2000",
        "rank 1: B0 2000-4000",
        "rank 1, idle: warm-up 0-1000",
        "rank 1, idle: drain 4000-6000",
    ]
    about = trace["otherData"]["timelines"][0]
    assert (
        about["makespan"],
        about["bubble_fraction"],
        about["one_unit_in_microseconds"],
    ) == (6, 0.5, 1000)
    labels = [
        e["args"]["labels"]
        for e in trace["traceEvents"]
        if e["name"] == "process_labels"
    ]
    assert labels == ["makespan 6 units,bubble 50.0 %"]
    assert trace["displayTimeUnit"] == "ms"


def test_what_lies_on_the_critical_path_says_so():
    trace = read(simulate(schedules.gpipe(2, 2), Costs([1, 2])))
    critical = [
        e["name"]
        for e in trace["traceEvents"]
        if e["ph"] == "X" and e["args"].get("on the critical path")
    ]
    path = simulate(schedules.gpipe(2, 2), Costs([1, 2])).critical_path
    assert len(critical) == len(path) < 8


def test_clocks_that_differ_draw_no_arrow_back_in_time():
    """Two processes measured with clocks of their own: the user seems to start before
    the maker ends, or starts.
    """
    f = ActionKind.FORWARD
    for user, arrows in (((0.5, 1.5), 1), ((0.0, 0.7), 0), ((0.2, 0.9), 1)):
        spans = ((Span(Action(0, f, 0), 0.1, 1.0),), (Span(Action(1, f, 0), *user),))
        trace = read(Timeline("skewed", spans, (1, 1), unit="s", is_measured=True))
        assert problems(trace) == set()
        assert sum(e["ph"] == "s" for e in trace["traceEvents"]) == arrows


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="Nothing to draw"):
        perfetto_trace()
    with pytest.raises(TypeError, match="expected a Schedule or a Timeline"):
        perfetto_trace("1f1b")
    with pytest.raises(ValueError, match="choose another unit"):
        perfetto_trace(simulate(schedules.gpipe(2, 1), Costs(1e15)))
    with pytest.raises(ValueError, match="choose another unit"):
        perfetto_trace(simulate(schedules.gpipe(2, 1), Costs(1e306)))


def test_what_takes_no_time_is_still_named():
    trace = read(simulate(Schedule.from_text("0F0 0B0"), Costs(0, 0, 0)))
    assert problems(trace) == set()
    assert [e["name"] for e in trace["traceEvents"] if e["ph"] == "X"] == ["F0", "B0"]


# -- mutants: the rules find what is broken --------------------------------------------


def drop_the_end_of_a_flow(events):
    events.remove(next(e for e in events if e["ph"] == "f"))


def let_two_flows_share_an_id(events):
    first, second = [e for e in events if e["ph"] == "s"][:2]
    second["id"] = first["id"]


def move_an_arrow_into_idle_time(events):
    next(e for e in events if e["ph"] == "f")["ts"] = 10.0


def start_an_arrow_at_the_edge(events):
    arrow = next(e for e in events if e["ph"] == "s")
    arrow["ts"] = float(round(arrow["ts"]))


def lengthen_a_slice_by_a_nanosecond(events):
    next(e for e in events if e["ph"] == "X")["dur"] += 0.001


def put_two_ranks_on_one_thread(events):
    for event in events:
        event["tid"] = 2 if event["tid"] == 4 else event["tid"]


def turn_a_counter_back(events):
    a, b = [e for e in events if e["ph"] == "C"][:2]
    a["ts"], b["ts"] = b["ts"], a["ts"]


def make_a_time_negative(events):
    next(e for e in events if e["ph"] == "X")["ts"] = -1.0


def forget_the_name_of_a_thread(events):
    events.remove(next(e for e in events if e["name"] == "thread_name"))


def number_a_thread_as_a_process(events):
    for event in events:
        event["tid"] = 1 if event["tid"] == 2 else event["tid"]


def turn_an_arrow_round(events):
    start = next(e for e in events if e["ph"] == "s")
    end = next(e for e in events if e["ph"] == "f" and e["id"] == start["id"])
    for key in ("ts", "tid"):
        start[key], end[key] = end[key], start[key]


@pytest.mark.parametrize(
    ("break_it", "rule"),
    [
        (drop_the_end_of_a_flow, "a flow without one of its ends"),
        (let_two_flows_share_an_id, "a flow without one of its ends"),
        (move_an_arrow_into_idle_time, "a flow that binds to no slice"),
        (start_an_arrow_at_the_edge, "a flow that binds to no slice"),
        (lengthen_a_slice_by_a_nanosecond, "slices that overlap"),
        (put_two_ranks_on_one_thread, "slices that overlap"),
        (turn_a_counter_back, "a counter that goes back in time"),
        (make_a_time_negative, "a time that no viewer can hold"),
        (forget_the_name_of_a_thread, "a thread without a name"),
        (number_a_thread_as_a_process, "a thread with the number of a process"),
        (turn_an_arrow_round, "a flow back in time"),
    ],
)
def test_a_broken_trace_is_noticed(break_it, rule):
    trace = read(schedules.one_f_one_b(2, 3))
    assert problems(trace) == set()
    break_it(trace["traceEvents"])
    assert rule in problems(trace)
