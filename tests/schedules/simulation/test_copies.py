"""Recomputation and offload as actions: what they cost, who waits for them, and what is
held meanwhile.
"""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, Schedule, schedules, simulate
from minipipe.core.flow import flow_of
from minipipe.core.memory import Changes, pairs_of
from minipipe.core.schedules.action import Action, B, F, I, L, O, R, W
from minipipe.errors import ScheduleError
from minipipe.render.descriptions import describe_wait
from minipipe.schedules.analysis.activations import Footprint, memory_levels, sizes_of
from minipipe.schedules.analysis.held import held_pairs, lifetimes
from minipipe.schedules.simulation.simulator import timeline_of
from minipipe.schedules.simulation.span import with_copies
from minipipe.simulation.hosts import Hosts
from tests.strategies import (
    examples,
    legally_overlapped,
    runnable_schedules,
    with_offloads,
)

# F keeps its inputs, an eighth of what a backward needs
EIGHTH = Costs(activation=1 / 8, transient_activation=7 / 8)


@st.composite
def offloaded(draw):
    """Draw a legal schedule with R, O and L, perhaps with joined actions, and costs
    without zero times.
    """
    costs = Costs(
        forward=draw(st.sampled_from([0.25, 1, 2.5])),
        backward_input=draw(st.sampled_from([1, 2])),
        activation=draw(st.integers(1, 4)),
        weight_activation=draw(st.integers(0, 2)),
        transient_activation=draw(st.integers(0, 4)),
        latency=draw(st.sampled_from([0, 0.25])),
        overhead=draw(st.sampled_from([0, 0.125])),
        copy_bandwidth=draw(st.sampled_from([0.25, 1, 4, inf])),
    )
    return with_offloads(
        draw, draw(legally_overlapped(runnable_schedules(draw(st.integers(1, 3)), 4)))
    ), costs


# -- recomputation ---------------------------------------------------------------------


def with_recomputation(schedule):
    """Put an R right before each B."""
    rows = [
        [x for a in row for x in ([a._replace(kind=R), a] if a.kind is B else [a])]
        for row in schedule.actions
    ]
    return replace(schedule, actions=tuple(map(tuple, rows)))


def test_an_r_runs_in_the_waits_for_gradients():
    """4 ranks, 8 microbatches: 41 units instead of 44 where a B takes the time of its
    F, too, with as much memory.
    """
    one = schedules.one_f_one_b(4, 8)
    inside = simulate(one, replace(EIGHTH, backward_input=2))
    apart = simulate(with_recomputation(one), EIGHTH)
    assert (inside.makespan, apart.makespan) == (44, 41)
    assert inside.peak_memory == apart.peak_memory == (1.375, 1.25, 1.125, 1)
    assert simulate(one).peak_memory[0] == 4


@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 4), (4, 8), (8, 16), (8, 8)])
def test_recomputation_takes_the_time_of_the_forwards_but_for_the_waits_that_hide_them(
    p, m
):
    """On the critical path R of the last rank takes m units; those of the others on the
    way back are hidden.
    """
    assert simulate(
        with_recomputation(schedules.one_f_one_b(p, m)), EIGHTH
    ).makespan == 4 * m + 3 * (p - 1)


# -- copies ----------------------------------------------------------------------------


def test_copies_run_beside_computations_one_after_another_each_way():
    timeline = simulate(
        Schedule.from_text("F0 O0 F1 O1 F2 L0 L1 B2 B1 B0"), Costs(copy_bandwidth=0.5)
    )
    assert [(str(action), start, end) for action, start, end in timeline.copies[0]] == [
        ("0O0", 1, 3),
        ("0O1", 3, 5),
        ("0L0", 3, 5),
        ("0L1", 5, 7),
    ]
    assert [span.start for span in timeline.spans[0]] == [0, 1, 2, 3, 7, 9]
    wait = timeline.idle[0][0]
    assert (wait.start, wait.end, str(wait.awaited)) == (5, 7, "0L1")
    assert describe_wait(wait) == "waits for 0L1: the activations are on their way"
    assert timeline.makespan == 11 and timeline.busy(0) == 9


def test_what_waited_for_a_load_has_the_computation_before_it_on_its_critical_path():
    timeline = simulate(
        Schedule.from_text("F0 O0 F1 B1 L0 R0 B0"), Costs(copy_bandwidth=0.25)
    )
    assert [str(span.action) for _, span in timeline.critical_path] == [
        "0F0",
        "0F1",
        "0B1",
        "0R0",
        "0B0",
    ]
    assert [span.start for span in timeline.spans[0]] == [0, 1, 2, 9, 10]


def test_a_slice_that_waits_for_loaded_keys_and_values_says_so():
    """The second slice reads keys and values of the first one, which are on their way
    back.
    """
    table = Schedule.from_text("0F0.0 0O0.0 0L0.0 0F0.1 0B0.1 0B0.0")
    (wait,) = simulate(table, Costs(activation=4, copy_bandwidth=2)).idle[0]
    assert (wait.start, wait.end, wait.cause, str(wait.awaited)) == (
        0.5,
        2.5,
        "waiting",
        "0L0.0",
    )


def test_an_offload_frees_memory_when_it_has_ended_and_a_load_takes_it_when_it_begins():
    schedule = Schedule.from_text("F0 O0 F1 F2 B2 L0 B1 B0")
    slow = simulate(schedule, Costs(copy_bandwidth=0.5))
    assert (slow.peak_memory, slow.peak_activations, slow.held_activations[0]) == (
        (3.0,),
        (3,),
        (1, 2, 2, 1, 1, 0),
    )
    fast = simulate(schedule, Costs(copy_bandwidth=2))
    assert (fast.peak_memory, fast.peak_activations, fast.held_activations[0]) == (
        (2.0,),
        (2,),
        (1, 1, 2, 1, 1, 0),
    )
    assert schedules.peak_memory(schedule, Costs()) == (2,)


def test_a_pair_that_is_away_for_a_part_of_one_computation_counts_as_there_and_once():
    """The story: it was given back behind that computation, and taken again before
    it.
    """
    timeline = simulate(
        Schedule.from_text("F0 O0 L0 F1 B1 B0"), Costs(copy_bandwidth=2 / 3)
    )
    assert [(span.start, span.end) for span in timeline.copies[0]] == [
        (1, 2.5),
        (2.5, 4),
    ]
    assert (timeline.spans[0][2].start, timeline.spans[0][2].end) == (2, 4)
    assert (timeline.peak_activations, timeline.peak_memory) == ((2,), (2,))


@examples(150)
@given(offloaded())
def test_where_nothing_is_shared_the_fluid_is_the_exact_simulation(drawn):
    schedule, costs = drawn
    exact = simulate(schedule, costs, num_steps=2)
    other = timeline_of(
        schedule, costs, 2, False, Hosts((0,) * schedule.num_ranks, (inf,))
    )
    assert (other.spans, other.copies) == (exact.spans, exact.copies)


@examples(150)
@given(offloaded())
def test_no_copy_begins_too_early_and_whatever_needs_one_waits_for_it(drawn):
    schedule, costs = drawn
    timeline = simulate(schedule, costs)
    time, ends = costs.copy_times(schedule.num_stages), {}
    for row in timeline.spans + timeline.copies:
        ends.update((action, (start, end)) for action, start, end in row)
    for action in (action for row in schedule.actions for action in row):
        stage, kind, k = action
        start, end = ends[action]
        needed = {
            O: [F],
            L: [F, O],
            R: [F, O, L],
            B: [F, O, L, R],
            I: [F, O, L, R],
            W: [I],
            F: [],
        }[kind]
        assert all(
            ends[other][1] <= start
            for x in needed
            if (other := Action(stage, x, k)) in ends
        )
        assert kind not in (O, L) or end == start + time[stage]
    for row in timeline.copies:
        for kind in (O, L):
            one_way = [span for span in row if span.action.kind is kind]
            assert all(a.end <= b.start for a, b in zip(one_way, one_way[1:]))


# -- memory ----------------------------------------------------------------------------


def held_at(schedule, timeline, costs, rank, time):
    """Return what a rank holds at a time, pair by pair."""
    at = {span.action: span for row in timeline.spans + timeline.copies for span in row}
    held = 0
    for stage, k in {action[::2] for action in schedule.actions[rank]}:
        f, b, i, w, r, o, load = (
            at.get(Action(stage, kind, k)) for kind in (F, B, I, W, R, O, L)
        )
        back = b or i
        if f.start <= time < back.end and not (o and o.end <= time < load.start):
            held += costs.activation
        if (r or back).start <= time < back.end:
            held += costs.transient_activation
        if w and i.end <= time < w.end:
            held += costs.weight_activation
    return held


@examples(150)
@given(offloaded())
def test_no_rank_ever_holds_more_than_its_timeline_says(drawn):
    schedule, costs = drawn
    timeline = simulate(schedule, costs)
    moments = {
        t for row in timeline.spans + timeline.copies for span in row for t in span[1:]
    }
    for rank, row in enumerate(timeline.spans):
        most = max(held_at(schedule, timeline, costs, rank, time) for time in moments)
        assert most <= timeline.peak_memory[rank]
        if costs.copy_bandwidth == inf:
            assert (
                timeline.peak_memory[rank]
                <= schedules.peak_memory(schedule, costs)[rank]
            )
        assert timeline.memory[rank][-1] == 0 == timeline.held_activations[rank][-1]
        order = with_copies(row, timeline.copies[rank] if timeline.copies else ())
        assert sorted(order) == sorted(schedule.actions[rank])


amounts = st.integers(0, 9)


@examples(100)
@given(offloaded(), amounts, amounts, amounts)
def test_named_pairs_counts_and_memory_say_the_same(
    drawn, activation, weight_activation, transient
):
    schedule, n = drawn[0], drawn[0].num_stages
    footprint = Footprint([activation] * n, [weight_activation] * n, [transient] * n)
    flow = flow_of(schedule)
    counts, changes = pairs_of(flow), Changes(flow, sizes_of(footprint))
    for rank, (row, levels) in enumerate(
        zip(schedule.actions, memory_levels(schedule, footprint))
    ):
        pairs = list(held_pairs(changes, rank))
        assert list(counts.levels(rank)) == [
            (len(during.pairs), len(after.pairs)) for during, after in pairs
        ]
        assert levels == [(during.memory, after.memory) for during, after in pairs]
        lives = lifetimes(counts, rank)
        for stage, k in {action[::2] for action in row}:
            holders = [
                i
                for i, (while_it_runs, _) in enumerate(pairs)
                if (stage, k) in while_it_runs.pairs
            ]
            own = [life for life in lives if life[:2] == (stage, k)]
            assert holders == [
                i for _, _, first, last in own for i in range(first, last + 1)
            ]


def test_a_limit_of_memory_knows_what_is_offloaded_and_what_is_recomputed():
    schedule = Schedule.from_text("F0 O0 F1 F2 B2 B1 L0 B0")
    schedules.verify(schedule, memory_limit=2)
    with pytest.raises(ScheduleError) as caught:
        schedules.verify(schedule, memory_limit=1)
    assert ">0F2<" in str(caught.value) and caught.value.code == "memory"
    again = Schedule.from_text("F0 F1 R0 R1 B0 B1")
    with pytest.raises(ScheduleError, match="with 0R1 it holds 2; the limit is 1.2"):
        schedules.verify(again, memory_limit=1.2, memory=EIGHTH.memory(1))
    schedules.verify(
        with_recomputation(schedules.gpipe(1, 2)),
        memory_limit=1.2,
        memory=EIGHTH.memory(1),
    )


@pytest.mark.parametrize("wrong", [0, -1, float("nan")])
def test_a_copy_bandwidth_that_carries_nothing_is_refused(wrong):
    with pytest.raises(
        ScheduleError, match="copy_bandwidth is .*; expected a number, more than 0"
    ) as caught:
        simulate(schedules.gpipe(1, 1), Costs(copy_bandwidth=wrong))
    assert caught.value.code == "value"


def test_a_forward_does_not_wait_for_the_load_behind_it():
    """The story: 1F0 was said to wait for 1L0, and the critical path went from there
    into the future.
    """
    timeline = simulate(
        Schedule.from_text("0F0 0B0 \n 1F0 1O0 1L0 1B0"), Costs(copy_bandwidth=1)
    )
    first, then = timeline.idle[1][:2]
    assert (first.cause, first.source, str(first.awaited)) == ("warm-up", 0, "0F0")
    assert (then.cause, then.source, str(then.awaited)) == ("waiting", 1, "1L0")
    assert [str(span.action) for _, span in timeline.critical_path] == [
        "0F0",
        "1F0",
        "1B0",
        "0B0",
    ]
