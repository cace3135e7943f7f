"""Sums of gradients over replicas, and updates within a schedule: when they end, and
who waits for them.
"""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, Schedule, schedules, simulate, verify
from minipipe.core.schedules.action import REDUCE_GRAD, Action, U
from minipipe.errors import ScheduleError
from minipipe.render.descriptions import describe_wait
from minipipe.schedules.simulation.simulator import timeline_of
from minipipe.schedules.simulation.span import IdleCause
from minipipe.schedules.transforms import repeat
from minipipe.simulation.hosts import Hosts
from tests.strategies import (
    examples,
    replicated_schedules,
    runnable_schedules,
    updated_schedules,
)

SIX = Costs(gradient_size=6, bandwidth=1)  # two replicas: 6 units for the sum of a rank
HOSTS = (*range(8),)
UNEVEN = """
    0F0 0B0 0REDUCE_GRAD0 0U0 0F3 0B3 0REDUCE_GRAD3 0U3
    0F1 0F2 0B1 0B2 0REDUCE_GRAD2 0U2 0F4 0B4 0REDUCE_GRAD4 0U4
"""


def ends(timeline):
    """Return, by rank, the end of its last sum."""
    return [
        max(found.end for found in timeline.sums if rank in found.ranks)
        for rank in range(timeline.num_ranks)
    ]


@pytest.mark.parametrize("hosts", [None, HOSTS], ids=["exact", "fluid"])
@pytest.mark.parametrize(
    ("one", "chunks", "alone", "together"),
    [
        (schedules.one_f_one_b(4, 8), 1, 33, [39, 37, 35, 33]),
        (schedules.interleaved_1f1b(4, 8, 2), 2, 28.5, [31.5, 30.5, 29.5, 28.5]),
        (schedules.zb_h1(4, 8), 1, 27, [33] * 4),
    ],
    ids=lambda given: given.name if isinstance(given, Schedule) else "",
)
def test_a_sum_hides_in_the_cool_down_of_all_ranks_but_the_first(
    one, chunks, alone, together, hosts
):
    """Of 1F1B the last rank has ended 6 units before the first one, which hides its
    sum; ZB-H1's end together.
    """
    costs = Costs(gradient_size=6, bandwidth=1, hosts=hosts).cut(chunks)
    assert simulate(one, SIX.cut(chunks)).makespan == alone
    both = schedules.data_parallel(one, 2)
    verify(both)
    timeline = simulate(both, costs)
    assert timeline.makespan == max(together)
    assert ends(timeline) == together * 2
    assert timeline.bubble_fraction == pytest.approx(1 - 24 / max(together))


@pytest.mark.parametrize(
    ("size", "together"),
    [
        ((4, 4), [19, 17, 17, 19]),
        ((4, 8), [33, 31, 31, 33]),
        ((8, 8), [39, 37, 35, 33]),
    ],
)
def test_chimera_sums_over_its_own_replicas(size, together):
    """Two stages on each rank, with sums of 3 units each; the middle ranks hide
    them.
    """
    both = schedules.data_parallel(schedules.chimera(*size), 1)
    verify(both)
    timeline = simulate(both, Costs(gradient_size=3, bandwidth=1))
    assert ends(timeline)[: len(together)] == together
    assert timeline.makespan == simulate(schedules.chimera(*size)).makespan + 3
    four = schedules.data_parallel(schedules.chimera(*size), 2)
    verify(four)
    assert four.ranks_of(0) == (0, size[0] - 1, size[0], 2 * size[0] - 1)


@examples(40)
@given(
    runnable_schedules(),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.5]),
    st.integers(1, 3),
)
def test_copies_take_the_time_of_one_and_its_last_sums(one, n, latency, num_steps):
    costs = Costs(forward=1, backward_input=2, latency=latency, update=0.5)
    alone = simulate(one, costs, num_steps)
    both = schedules.data_parallel(one, n)
    verify(both)
    timeline = simulate(both, costs, num_steps)
    if num_steps == 1 or not latency:  # otherwise the next step waits for the sums
        assert timeline.spans == tuple(
            tuple(span._replace(action=moved(span.action, d, n, one)) for span in row)
            for d in range(n)
            for row in alone.spans
        )
    for found in timeline.sums:
        # the bandwidth is infinite
        assert found.end == found.begin + 2 * latency and len(found.ranks) == n
    assert len(timeline.sums) == (n > 1) * num_steps * one.num_stages


def moved(action, replica, n, one):
    """Return an action of a step of one copy, with the microbatch of a replica."""
    step, k = divmod(action.microbatch, one.num_microbatches)
    return action._replace(microbatch=(step * n + replica) * one.num_microbatches + k)


@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
@pytest.mark.parametrize("fluid", [False, True])
def test_a_sum_takes_two_rounds_in_which_every_replica_sends_all_parts_but_its_own(
    replicas, fluid
):
    costs = Costs(
        gradient_size=30,
        bandwidth=2,
        latency=0.25,
        hosts=(*range(replicas),) if fluid else None,
    )
    both = schedules.data_parallel(schedules.gpipe(1, 2), replicas)
    timeline = simulate(both, costs)
    volume = 2 * (replicas - 1) / replicas * 30  # as much as on a ring
    assert timeline.makespan == pytest.approx(
        6 + (replicas > 1) * (2 * 0.25 + volume / 2)
    )


@pytest.mark.parametrize("replicas", [2, 3, 4])
@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1", "interleaved-1f1b"])
def test_costs_fitted_to_a_timeline_with_sums_predict_it(name, replicas):
    both = schedules.data_parallel(schedules.build(name, 2, 4), replicas)
    sizes = [6.0, 30.0, 14.0, 2.0][: both.num_stages]
    given = Costs(
        forward=2,
        backward_input=1.5,
        backward_weight=0.5,
        latency=0.25,
        gradient_size=sizes,
        bandwidth=2,
    )
    timeline = simulate(both, given)
    found = Costs.measured(timeline)
    assert list(found.gradient_size) == sizes
    assert (found.latency, found.bandwidth) == (pytest.approx(0.25), pytest.approx(2))
    assert simulate(both, found).makespan == pytest.approx(timeline.makespan)


def test_a_sum_beside_which_its_ranks_computed_tells_nothing_where_another_one_does():
    both = schedules.data_parallel(schedules.gpipe(2, 2, chunks_per_rank=2), 2)
    timeline = simulate(both, Costs(latency=0.25, gradient_size=6, bandwidth=2))
    late = [
        s._replace(end=s.end + 100) if s.actions[0].stage == 3 else s
        for s in timeline.sums
    ]
    predicted = simulate(both, Costs.measured(replace(timeline, sums=tuple(late)))).sums
    assert late != list(timeline.sums) and [s.end for s in predicted] == pytest.approx(
        [s.end for s in timeline.sums]
    )


def test_sums_share_the_links_of_a_host():
    """Two replicas of two stages, a replica on each host: both stages sum over the same
    two links.
    """
    both = schedules.data_parallel(schedules.gpipe(2, 1), 2)
    apart = Costs(backward_input=0.5, backward_weight=0.5, gradient_size=6, bandwidth=1)
    timeline = simulate(both, apart)
    assert ends(timeline)[:2] == [4 + 6, 3 + 6]
    shared = simulate(both, Costs(**vars(apart) | {"hosts": (0, 0, 1, 1)}))
    # From 3 to 4 stage 1 is alone. Then both rounds of both stages share the links: 12
    # units of work from 3 on, and no gap before the end of the last.
    assert max(ends(shared)) == 3 + 12 and ends(shared)[1] > 3 + 6
    # both replicas of a stage on one host
    within = simulate(both, Costs(**vars(apart) | {"hosts": (0, 1, 0, 1)}))
    assert ends(within) == ends(timeline)


@pytest.mark.parametrize("costs", [{}, {"hosts": (0, 1)}, {"cores": 2}], ids=str)
def test_an_update_waits_for_the_sum_of_all_replicas_and_says_for_whom(costs):
    timeline = simulate(
        Schedule.from_text(UNEVEN),
        Costs(gradient_size=6, bandwidth=1, update=0.5, **costs),
    )
    first, second = timeline.sums
    assert (first.reached, first.begin, first.last_rank, first.end) == (
        (3, 6),
        6,
        1,
        12,
    )
    assert (second.reached, second.end) == ((15.5, 15.5), 21.5)
    waits = [
        [(slot.start, slot.end, describe_wait(slot)) for slot in row]
        for row in timeline.idle
    ]
    on_its_way = "waits for the gradient all-reduce of stage 0: it is in progress"
    assert waits[0] == [
        (3, 12, "waits for the gradient all-reduce of stage 0: rank 1 is still in 0B1"),
        (15.5, 21.5, on_its_way),
    ]
    assert waits[1] == [(6, 12, on_its_way), (15.5, 21.5, on_its_way)]
    assert (
        str(timeline.idle[0][0].awaited) == "0REDUCE_GRAD2"
        and timeline.idle[0][0].source == 1
    )
    assert [str(span.action) for _, span in timeline.critical_path][:5] == [
        "0F1",
        "0F2",
        "0B1",
        "0B2",
        "0U0",
    ]


def test_a_rank_that_has_nothing_left_waits_for_its_sum_and_then_drains():
    timeline = simulate(schedules.data_parallel(schedules.one_f_one_b(4, 8), 2), SIX)
    ends_of = [
        [(slot.cause, slot.start, slot.end) for slot in row][-2:]
        for row in timeline.idle
    ]
    assert ends_of[3] == [(IdleCause.WAITING, 27, 33), (IdleCause.DRAIN, 33, 39)]
    assert ends_of[0][-1] == (IdleCause.WAITING, 33, 39)
    assert [str(span.action) for _, span in timeline.critical_path][-2:] == [
        "1B7",
        "0B7",
    ]


def test_the_next_step_begins_when_the_sums_of_the_rank_are_there():
    both = schedules.data_parallel(schedules.gpipe(1, 2), 2)
    for hosts in (None, (0, 1)):
        timeline = simulate(
            both,
            Costs(gradient_size=6, bandwidth=1, update=0.5, hosts=hosts),
            num_steps=3,
        )
        assert [change.left for change in timeline.step_changes[0]] == [12, 24.5]
        assert timeline.makespan == 37 and timeline.time_of_further_step == 12.5


@examples(60)
@given(
    updated_schedules(),
    st.sampled_from([0.0, 0.25]),
    st.sampled_from([0, 3]),
    st.integers(1, 2),
    st.booleans(),
)
def test_both_simulations_agree_about_sums_and_updates(
    schedule, latency, size, num_steps, wait
):
    costs = Costs(
        forward=1,
        backward_input=2,
        update=0.5,
        latency=latency,
        gradient_size=size,
        bandwidth=2,
    )
    exact = simulate(schedule, costs, num_steps, wait)
    fluid = timeline_of(
        schedule, costs, num_steps, wait, Hosts((0,) * schedule.num_ranks, (inf,))
    )
    assert fluid.makespan == pytest.approx(exact.makespan)
    for row, other in zip(fluid.spans, exact.spans):
        assert [span.action for span in row] == [span.action for span in other]
        assert [end for *_, end in row] == pytest.approx([end for *_, end in other])
    ends = {found.actions: found.end for found in fluid.sums}
    assert ends == pytest.approx({found.actions: found.end for found in exact.sums})
    for rank, slots in enumerate(exact.idle):  # all time is explained
        total = exact.busy(rank) + sum(slot.end - slot.start for slot in slots)
        assert total == pytest.approx(exact.makespan)


# -- updates ---------------------------------------------------------------------------


def test_2bw_needs_no_flush():
    """20 microbatches in batches of 4 on 4 ranks: 69 units, where 5 flushes of 1F1B
    take 105.
    """
    assert simulate(schedules.two_buffered(4, 20, 4)).makespan == 69
    assert 5 * simulate(schedules.one_f_one_b(4, 4)).makespan == 105


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize(
    "build", [schedules.pipedream, schedules.vertical_sync, schedules.paci]
)
def test_without_flushes_a_microbatch_takes_the_time_of_its_forward_and_backward(
    build, p
):
    """Narayanan et al. 2019, section 3.2: in the steady state no rank is idle."""
    costs = Costs(forward=1, backward_input=1, backward_weight=1, update=0.25)
    every = {"microbatches_per_update": 1} if build is schedules.paci else {}
    times = [
        simulate(build(p, m, **every), costs).makespan
        for m in (3 * p, 3 * p + 1, 3 * p + 2)
    ]
    assert [b - a for a, b in zip(times, times[1:])] == [3.25, 3.25]


def with_updates(schedule):
    """Return a synchronous schedule whose ranks update all of their stages at the end
    of their rows.
    """
    last = schedule.num_microbatches - 1
    rows = [
        [*row, *(Action(stage, U, last) for stage in schedule.stages_of(rank))]
        for rank, row in enumerate(schedule.actions)
    ]
    return Schedule(schedule.name, schedule.placement, schedule.num_microbatches, rows)


@pytest.mark.parametrize(
    "build", [schedules.one_f_one_b, schedules.zb_h2, schedules.interleaved_1f1b]
)
def test_steps_that_follow_each_other_are_one_table_with_updates(build):
    """Up to the last update, which ``num_steps`` leaves out."""
    costs = Costs(update=0.5, latency=0.25)
    steps = simulate(build(4, 8), costs, num_steps=3)
    table = simulate(repeat(with_updates(build(4, 8)), 3), costs)
    for row, other in zip(steps.spans, table.spans):
        assert list(row) == [span for span in other if span.action.kind is not U]
    # a step has its U itself
    assert simulate(with_updates(build(4, 8)), costs, num_steps=3).spans == table.spans


# -- memory ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "copies"),
    [
        (schedules.one_f_one_b(4, 12), [0, 0, 0, 0]),
        (schedules.pipedream(4, 12), [3, 2, 1, 0]),
        (schedules.vertical_sync(4, 12), [3, 3, 3, 3]),
        (schedules.two_buffered(4, 12, 4), [2, 2, 2, 1]),
    ],
    ids=lambda given: given.name if isinstance(given, Schedule) else "",
)
def test_further_versions_and_sums_take_the_memory_of_the_weights(schedule, copies):
    """Versions beyond one, and sums of gradients beyond one: 2BW has one of each, but
    on the last stage.
    """
    timeline = simulate(schedule, Costs(activation=0, weights=10))
    assert timeline.peak_memory == tuple(10.0 * number for number in copies)
    assert (
        schedules.peak_memory(schedule, Costs(activation=0, weights=10))
        == timeline.peak_memory
    )
    first = simulate(schedule, Costs(activation=0, weights=[10, 0, 0, 0])).peak_memory
    assert first == (10.0 * copies[0], 0, 0, 0)
    alike = simulate(schedule, Costs(weights=10)).peak_memory
    assert all(0 <= both - 10 * number <= 4 for both, number in zip(alike, copies))


def test_memory_is_known_after_every_span_though_sums_have_none():
    timeline = simulate(Schedule.from_text(UNEVEN), Costs(gradient_size=6, bandwidth=1))
    assert REDUCE_GRAD not in {
        span.action.kind for row in timeline.spans for span in row
    }
    assert (
        [len(row) for row in timeline.memory]
        == [len(row) for row in timeline.spans]
        == [6, 8]
    )


# -- data_parallel ---------------------------------------------------------------------


def test_each_copy_sums_behind_the_last_gradient_of_each_stage_and_of_each_update():
    both = schedules.data_parallel(schedules.interleaved_1f1b(2, 2), 2)
    assert [" ".join(map(str, row)) for row in both.actions][::2] == [
        "0F0 0F1 2F0 2F1 2B0 2B1 2REDUCE_GRAD1 0B0 0B1 0REDUCE_GRAD1",
        "0F2 0F3 2F2 2F3 2B2 2B3 2REDUCE_GRAD3 0B2 0B3 0REDUCE_GRAD3",
    ]
    dream = schedules.data_parallel(schedules.two_buffered(2, 4, 2), 3)
    verify(dream, max_versions=2)
    assert " ".join(map(str, dream.actions[2])) == (
        "0F4 0F5 0B4 0F6 0B5 0REDUCE_GRAD5 0F7 0B6 0U5 0B7 0REDUCE_GRAD7 0U7"
    )
    again = schedules.data_parallel(both, 2)
    verify(again)
    assert again.ranks_of(0) == (0, 2, 4, 6)
    assert (
        sum(action.kind is REDUCE_GRAD for row in again.actions for action in row) == 16
    )


@examples(100)
@given(replicated_schedules(), st.integers(1, 2))
def test_replicas_come_to_their_sums_in_one_order(drawn, num_replicas):
    """The story: with an odd number of microbatches, ranks of DualPipe waited at
    different sums for each other.
    """
    verify(schedules.data_parallel(drawn[0], num_replicas))


def test_a_sum_waits_for_the_replica_with_one_more_microbatch():
    assert [
        " ".join(map(str, row))
        for row in schedules.data_parallel(schedules.dualpipe(2, 3), 1).actions
    ] == [
        "0F0 1F2 0F1 1B2 0B0 1REDUCE_GRAD2 0I1 0W1 0REDUCE_GRAD1",
        "0F2 1F0 1B0 1F1 0B2 1B1 1REDUCE_GRAD1 0REDUCE_GRAD2",
    ]


def test_data_parallel_refuses_what_has_no_gradients_and_numbers_that_are_none():
    for wrong, code in ((0, "value"), (1.5, "value"), (10**9, "too-large")):
        with pytest.raises(ScheduleError) as caught:
            schedules.data_parallel(schedules.gpipe(2, 2), wrong)
        assert caught.value.code == code
    with pytest.raises(
        ScheduleError, match="forward-only has no backward, and so no gradients to sum"
    ):
        schedules.data_parallel(schedules.forward_only(2, 2), 2)
    one = schedules.gpipe(2, 2)
    assert schedules.data_parallel(one, 1) is one
