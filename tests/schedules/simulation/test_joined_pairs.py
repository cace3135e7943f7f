"""Joined actions in simulation: how long a pair takes, who waits for it, and what is
counted once.
"""

from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, Schedule, schedules, simulate
from minipipe.errors import ScheduleError
from minipipe.schedules import lower
from minipipe.schedules.simulation.comparison import gaps
from minipipe.schedules.simulation.span import IdleCause
from tests.strategies import (
    could_be_joined,
    examples,
    legally_overlapped,
    runnable_schedules,
)

# overlap 0   0     1           2           4                       7           8           10
# rank 0      |-0F0-|           .           |------0F1, 0B0---------|           .           |-0B1-|
# rank 1      .     |----1F0----|----1B0----|                       |----1F1----|----1B1----|
JOINED = Schedule.from_text("0F0 (0F1;0B0)OVERLAP_F_B 0B1 \n 1F0 1B0 1F1 1B1")


def drawn(timeline):
    return [
        [(str(action), start, end) for action, start, end in row]
        for row in timeline.spans
    ]


def times(overlap):
    """Return costs with F = 1 and B = 2."""
    return Costs(overlap=overlap)


# -- how long it takes -----------------------------------------------------------------


@pytest.mark.parametrize(("overlap", "end"), [(0, 7), (0.25, 6.75), (0.5, 6.5), (1, 6)])
def test_a_pair_waits_for_both_inputs_and_hides_a_part_of_the_shorter_action(
    overlap, end
):
    timeline = simulate(JOINED, times(overlap))
    assert drawn(timeline) == [
        [("0F0", 0, 1), ("0F1", 4, end), ("0B0", 4, end), ("0B1", end + 3, end + 5)],
        [
            ("1F0", 1, 2),
            ("1B0", 2, 4),
            ("1F1", end, end + 1),
            ("1B1", end + 1, end + 3),
        ],
    ]


@pytest.mark.parametrize(
    ("forward", "backward"), [(3, 2), (2, 3), (0, 2), (0.1, 0.2), (1 / 3, 1 / 7)]
)
def test_the_ends_of_the_range_are_the_sum_and_the_longer_one_to_the_last_bit(
    forward, backward
):
    for overlap, expected in ((0, forward + backward), (1, max(forward, backward))):
        costs = Costs(forward, backward, 0, overlap=overlap)
        assert list(costs.pair_times(JOINED).values()) == [expected]


def test_a_forward_joined_with_half_of_a_backward_hides_a_part_of_that():
    split = Schedule.from_text("0F0 (0F1;0I0)OVERLAP_F_B 0W0 0I1 0W1")
    assert (
        simulate(split, Costs(4, 2, 1, overlap=0.5)).makespan == 4 + (4 + 1) + 1 + 2 + 1
    )


def test_the_message_of_a_pair_leaves_at_its_end_and_an_overhead_stands_before_it():
    timeline = simulate(JOINED, Costs(latency=0.5, overhead=0.25))
    #  0F0 0-1, 1F0 1.5-2.5, 1B0 2.75-4.75, pair 5.25-8.25, 1F1 8.75
    assert drawn(timeline)[0][1:3] == [("0F1", 5.25, 8.25), ("0B0", 5.25, 8.25)]
    assert drawn(timeline)[1][2] == ("1F1", 8.75, 9.75)


def test_where_sends_block_the_message_of_the_forward_leaves_behind_the_pair():
    timeline = simulate(JOINED, Costs(latency=0.5, sends_block=True))
    row = [
        (name, start, end)
        for name, start, end in drawn(timeline)[0]
        if "F1" in name or "B0" in name
    ]
    assert [name for name, *_ in row] == ["0RECV_B0", "0F1", "0B0", "0SEND_F1"]
    assert row[1][1:] == row[2][1:] and row[3][1] == row[2][2]


@pytest.mark.parametrize(
    "wrong", [-0.1, 1.5, inf, nan, 10**400, [0.5, 0.5], (0.5,), None]
)
def test_an_overlap_is_a_part(wrong):
    with pytest.raises(
        ScheduleError, match="overlap is .*; expected a number from 0 to 1"
    ) as caught:
        simulate(JOINED, Costs(overlap=wrong))
    assert caught.value.code == "value"


@pytest.mark.parametrize("wrong", [True, "half"])
def test_an_overlap_is_a_number(wrong):
    with pytest.raises(ScheduleError, match="overlap is .*; expected numbers"):
        Costs(overlap=wrong)


def test_the_overlap_is_read_from_a_line_and_a_file(tmp_path):
    costs = Costs.parse("F=2,overlap=0.5")
    assert (
        costs.overlap == 0.5 and Costs.load(costs.save(tmp_path / "mine.json")) == costs
    )
    with pytest.raises(
        ScheduleError, match="overlap is 2, expected a number from 0 to 1"
    ):
        Costs(overlap=2).save(tmp_path / "wrong.json")
    with pytest.raises(ScheduleError, match="overlap is a single number"):
        Costs.parse("overlap=0:1")


# -- laws ------------------------------------------------------------------------------

WHOLE = st.integers(0, 4)
joined_schedules = legally_overlapped(runnable_schedules())
some_costs = st.builds(
    Costs,
    WHOLE,
    WHOLE,
    WHOLE,
    latency=WHOLE,
    overhead=WHOLE,
    overlap=st.sampled_from([0, 0.25, 0.5, 1]),
)


def second_opinion(schedule, costs):
    """Return the ends of all actions, by repeating until nothing changes what holds
    between them.
    """
    length = {"F": costs.forward, "I": costs.backward_input, "W": costs.backward_weight}
    length["B"] = length["I"] + length["W"]
    at = {
        a: (rank, i)
        for rank, row in enumerate(schedule.actions)
        for i, a in enumerate(row)
    }
    pairs = {
        a: b
        for row in schedule.actions
        for a, b in zip(row, row[1:])
        if a in schedule.overlaps
    }
    units = [
        [[a, pairs[a]] if a in pairs else [a] for a in row if a not in pairs.values()]
        for row in schedule.actions
    ]
    end, has_changed = dict.fromkeys(at, 0), True
    while has_changed:
        has_changed = False
        for rank, row in enumerate(units):
            for before, unit in zip([None, *row], row):
                start = end[before[0]] + costs.overhead if before else 0
                for stage, kind, k in unit:
                    letters, other = (
                        ("F", stage - 1) if kind.value == "F" else ("BI", stage + 1)
                    )
                    for a in at if kind.value != "W" else ():
                        if (a.stage, a.microbatch) == (
                            other,
                            k,
                        ) and a.kind.value in letters:
                            start = max(
                                start,
                                end[a] + (0 if at[a][0] == rank else costs.latency),
                            )
                parts = [length[a.kind.value] for a in unit]
                new = (
                    start
                    + sum(parts)
                    - (costs.overlap * min(parts) if len(parts) > 1 else 0)
                )
                has_changed |= new != end[unit[0]]
                end.update(dict.fromkeys(unit, new))
    return end


@examples(80)
@given(legally_overlapped(runnable_schedules(max_microbatches=3)), some_costs)
def test_the_times_are_those_of_a_second_opinion(schedule, costs):
    found = {
        span.action: span.end for row in simulate(schedule, costs).spans for span in row
    }
    assert found == second_opinion(schedule, costs)


@examples(80)
@given(joined_schedules, some_costs)
def test_busy_and_idle_times_are_all_of_the_time_and_every_wait_has_its_cause(
    schedule, costs
):
    timeline = simulate(schedule, costs)
    for rank, slots in enumerate(timeline.idle):
        assert (
            timeline.busy(rank) + sum(slot.end - slot.start for slot in slots)
            == timeline.makespan
        )
        ends = {span.action: span.end for row in timeline.spans for span in row}
        for slot in (slot for slot in slots if slot.cause is IdleCause.WAITING):
            # The awaited value is the one that ends the wait, unless the overhead of
            # the action does.
            assert (
                max(ends[slot.awaited] + costs.latency, slot.start + costs.overhead)
                == slot.end
            )
    assert timeline.bubble_fraction >= 0


@examples(80)
@given(joined_schedules, some_costs)
def test_every_action_of_the_critical_path_begins_when_the_one_before_it_is_through(
    schedule, costs
):
    timeline = simulate(
        schedule, replace(costs, forward=1, backward_input=1, overhead=0)
    )
    path = timeline.critical_path
    for (before, (_, _, end)), (rank, (_, start, _)) in zip(path, path[1:]):
        assert start == end + (0 if before == rank else costs.latency)
    assert path[0][1].start == timeline.start and path[-1][1].end == timeline.end


@examples(60)
@given(joined_schedules, some_costs, st.integers(2, 3))
def test_several_steps_are_those_of_the_repeated_schedule(schedule, costs, num_steps):
    costs = replace(costs, overhead=0)
    several = simulate(schedule, costs, num_steps)
    assert several.spans == simulate(schedules.repeat(schedule, num_steps), costs).spans


@examples(60)
@given(joined_schedules, some_costs)
def test_a_program_takes_the_time_of_its_schedule(schedule, costs):
    assert simulate(lower(schedule), costs).spans == simulate(schedule, costs).spans


@examples(60)
@given(joined_schedules, some_costs)
def test_joining_alters_neither_memory_nor_counts(schedule, costs):
    joined, apart = (
        simulate(schedule, costs),
        simulate(replace(schedule, overlaps=()), costs),
    )
    assert (
        joined.peak_activations == apart.peak_activations
        and joined.memory == apart.memory
    )
    for rank in range(joined.num_ranks):
        curve = joined.activations_over_time(rank)
        assert [time for time, _ in curve] == sorted(time for time, _ in curve)
        assert (
            max((held for _, held in curve), default=0) == joined.peak_activations[rank]
        )


def test_a_message_for_a_pair_is_awaited_since_the_rank_was_free():
    messages = {
        str(message.used_by): message
        for message in simulate(JOINED, Costs(latency=0.5)).messages
    }
    assert messages["0B0"].was_awaited and messages["0B1"].was_awaited


def test_between_the_two_actions_of_a_pair_there_is_no_overhead():
    timeline = simulate(
        Schedule.from_text("0F0 (0F1;0B0)OVERLAP_F_B 0B1"), Costs(overhead=0.5)
    )
    assert (timeline.makespan, Costs.measured(timeline).overhead) == (7.0, 0.5)


# -- figures ---------------------------------------------------------------------------


def test_what_a_pair_hides_is_neither_busy_nor_idle():
    schedule = replace(
        schedules.one_f_one_b(2, 4),
        overlaps=could_be_joined(schedules.one_f_one_b(2, 4)),
    )
    for overlap, busy in ((0, 12), (0.5, 10.5), (1, 9)):
        timeline = simulate(schedule, times(overlap))
        assert (timeline.busy(0), timeline.busy(1)) == (busy, 12)
        assert timeline.idle_within_span(0) == timeline.makespan - busy


def test_a_bound_for_actions_that_run_alone_is_no_bound_where_overlaps_hide_time():
    for overlap, number in ((0, 2), (0.5, 0)):
        assert (
            len(gaps(JOINED, times(overlap), simulate(JOINED, times(overlap))))
            == number
        )
    assert (
        len(
            gaps(replace(JOINED, overlaps=()), times(0.5), simulate(JOINED, times(0.5)))
        )
        == 2
    )


@examples(60)
@given(
    st.sampled_from([0.25, 0.5, 1]),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 2),
)
def test_measured_costs_tell_joined_actions_from_others(
    overlap, forward, backward, latency
):
    schedule = schedules.one_f_one_b(3, 6)
    schedule = replace(schedule, overlaps=could_be_joined(schedule))
    costs = Costs(forward, backward, 0, latency=latency, overlap=overlap)
    timeline = simulate(schedule, costs)
    found = Costs.measured(timeline)
    assert (
        found.overlap == overlap
        and found.forward == [forward] * 3
        and found.backward_input == [backward] * 3
    )
    assert simulate(schedule, found) == timeline
    assert Costs.measured(simulate(schedules.one_f_one_b(3, 6), costs)).overlap == 0
