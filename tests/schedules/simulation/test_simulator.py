"""The simulator gives the published numbers, and every time in a timeline has its
reason.
"""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import schedules
from minipipe.core.schedules.action import Action, ActionKind, U
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.errors import ScheduleError
from minipipe.schedules import schedule_of_text
from minipipe.schedules.analysis.activations import peak_activations
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.simulator import simulate
from minipipe.schedules.simulation.span import Span
from minipipe.schedules.simulation.timeline import Timeline
from tests.strategies import examples

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
INPUT, WEIGHT = ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT

RANKS = st.integers(1, 6)
MICROBATCHES = st.integers(1, 12)
TIMES = st.integers(1, 9)  # whole numbers, so that sums are exact


def whole(t_forward, t_backward, latency=0):
    """Costs of schedules whose backward is whole."""
    return Costs(
        forward=t_forward, backward_input=t_backward, backward_weight=0, latency=latency
    )


# -- the unit numbers ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "makespan", "peak"),
    [
        (schedules.sequential(4, 8), 96, (1, 1, 1, 1)),
        (schedules.gpipe(4, 8), 33, (8, 8, 8, 8)),
        (schedules.one_f_one_b(4, 8), 33, (4, 3, 2, 1)),
        # in chunks, and units of one chunk
        (schedules.interleaved_1f1b(4, 8, 2), 57, (11, 9, 7, 5)),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_with_four_ranks_eight_microbatches_and_unit_costs_the_numbers_are_the_published_ones(
    schedule, makespan, peak
):
    timeline = simulate(schedule)
    assert timeline.makespan == makespan
    assert timeline.peak_activations == peak_activations(schedule) == peak


def test_1f1b_with_equal_forward_and_backward_takes_22():
    costs = Costs(forward=1, backward_input=1, backward_weight=0)
    assert simulate(schedules.one_f_one_b(4, 8), costs).makespan == 22


def test_interleaving_is_paid_back_only_in_the_right_order():
    # All chunks of microbatch 0, then of 1, …, then all backwards, is a common mistake:
    # 86 chunk units, not 38.
    def microbatch_major(p, m, v):
        placement = tuple(range(p)) * v
        lines = [
            [f"{j * p + r}F{k}" for k in range(m) for j in range(v)]
            + [f"{j * p + r}B{k}" for k in range(m) for j in reversed(range(v))]
            for r in range(p)
        ]
        schedule = schedule_of_text("\n".join(map(" ".join, lines)))
        assert schedule.placement == placement
        return schedule

    costs = Costs(forward=1, backward_input=1, backward_weight=0)
    assert simulate(microbatch_major(4, 8, 2), costs).makespan == 86
    assert simulate(schedules.interleaved_1f1b(4, 8, 2), costs).makespan == 38


@pytest.mark.parametrize(
    ("peak", "text"),
    [
        (2, "0F0 0B0 0F1 0F2 0B1 0B2"),  # B gives one back, so that the peak comes late
        (2, "0F0 0I0 0W0 0F1 0F2 0I1 0W1 0I2 0W2"),
        (3, "0F0 0I0 0F1 0I1 0F2 0I2 0W0 0W1 0W2"),  # I gives back nothing
        (3, "0F0 1F0 1B0 0F1 1F1 1B1 0B0 0B1"),  # each stage counts
        (1, "0F0 0F1 1F0 1F1"),  # without a backward, F gives its own back
    ],
)
def test_a_pair_of_stage_and_microbatch_is_held_from_f_until_b_or_w(peak, text):
    schedule = schedule_of_text(text)
    assert peak_activations(schedule) == peak_activations(lower(schedule)) == (peak,)


def test_a_split_backward_holds_its_activations_until_w():
    # ZB-H1 by hand, p = 2, m = 3: 3m + p - 1 = 10 units, and two microbatches on either
    # rank.
    schedule = schedule_of_text(
        """
        rank 0: 0F0 0F1     0I0 0W0 0F2 0I1 0W1 0I2 0W2
        rank 1:     1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2
        """
    )
    timeline = simulate(schedule)
    assert timeline.makespan == 10
    assert timeline.peak_activations == (2, 2)
    assert [(str(a), start) for a, start, _ in timeline.spans[0]] == [
        ("0F0", 0), ("0F1", 1), ("0I0", 3), ("0W0", 4), ("0F2", 5), ("0I1", 6), ("0W1", 7), ("0I2", 8), ("0W2", 9),
    ]  # fmt: skip


# -- formulas --------------------------------------------------------------------------


@examples(60)
@given(p=RANKS, m=MICROBATCHES, forward=TIMES, backward=TIMES)
def test_sequential_takes_every_stage_of_every_microbatch_one_after_another(
    p, m, forward, backward
):
    timeline = simulate(schedules.sequential(p, m), whole(forward, backward))
    assert timeline.makespan == m * p * (forward + backward)
    assert timeline.bubble_fraction == pytest.approx((p - 1) / p)
    assert timeline.peak_activations == (1,) * p


@examples(60)
@given(p=RANKS, m=MICROBATCHES, forward=TIMES, backward=TIMES)
def test_gpipe_and_1f1b_take_the_same_time(p, m, forward, backward):
    for build in (schedules.gpipe, schedules.one_f_one_b):
        timeline = simulate(build(p, m), whole(forward, backward))
        assert timeline.makespan == (m + p - 1) * (forward + backward)
        assert timeline.bubble_fraction == pytest.approx((p - 1) / (m + p - 1))


@examples(60)
@given(data=st.data(), p=RANKS, m=MICROBATCHES)
def test_gpipe_over_uneven_stages_waits_for_the_slowest(data, p, m):
    forward, inputs, weights = (
        data.draw(st.lists(TIMES, min_size=p, max_size=p)) for _ in range(3)
    )
    backward = [i + w for i, w in zip(inputs, weights)]
    timeline = simulate(schedules.gpipe(p, m), Costs(forward, inputs, weights))
    assert timeline.makespan == sum(forward) + (m - 1) * max(forward) + sum(
        backward
    ) + (m - 1) * max(backward)


@examples(100)
@given(
    p=RANKS,
    rounds=st.integers(1, 3),
    group=st.integers(1, 12),
    v=st.integers(1, 3),
    forward=TIMES,
    backward=TIMES,
)
def test_interleaved_1f1b_fills_and_drains_in_chunks(
    p, rounds, group, v, forward, backward
):
    m = rounds * group
    # another number of rounds: make it one that is accepted
    if max(1, m // p) != rounds:
        m = rounds * p
    group = m // rounds
    timeline = simulate(schedules.interleaved_1f1b(p, m, v), whole(forward, backward))
    chunk_units = (v - 1) * max(m, p) + m + p - 1  # v T(m)
    assert timeline.makespan == chunk_units * (forward + backward)
    assert timeline.peak_activations == tuple(
        min(2 * (p - r - 1) + (v - 1) * group + 1, m * v) for r in range(p)
    )


@examples(60)
@given(p=RANKS, m=MICROBATCHES, v=st.integers(1, 3), forward=TIMES)
def test_forward_only_takes_the_forward_half_and_keeps_nothing(p, m, v, forward):
    timeline = simulate(
        schedules.forward_only_over(tuple(range(p)) * v, m), Costs(forward=forward)
    )
    assert timeline.makespan == ((v - 1) * max(m, p) + m + p - 1) * forward
    assert timeline.peak_activations == (1,) * p


@examples(60)
@given(p=RANKS, m=MICROBATCHES)
def test_1f1b_holds_at_most_stages_left_activations(p, m):
    assert peak_activations(schedules.one_f_one_b(p, m)) == tuple(
        min(p - r, m) for r in range(p)
    )


@examples(60)
@given(p=RANKS, m=MICROBATCHES)
def test_gpipe_holds_every_microbatch_on_every_rank(p, m):
    assert peak_activations(schedules.gpipe(p, m)) == (m,) * p


def test_a_warm_up_of_one_more_forward_costs_an_activation_on_all_ranks_but_the_last_and_gains_no_time():
    # p - r forwards, then (F, B) pairs: another common mistake. Legal, as slow, and
    # larger.
    def eager_by_one(p, m):
        lines = []
        for r in range(p):
            w = min(p - r, m)
            pairs = [
                cell for k in range(m - w) for cell in (f"{r}F{w + k}", f"{r}B{k}")
            ]
            lines.append(
                [f"{r}F{k}" for k in range(w)]
                + pairs
                + [f"{r}B{k}" for k in range(m - w, m)]
            )
        return schedule_of_text("\n".join(map(" ".join, lines)))

    timeline = simulate(eager_by_one(4, 8))
    assert timeline.makespan == 33
    assert timeline.peak_activations == (5, 4, 3, 2)


# -- latency ---------------------------------------------------------------------------


def test_once_messages_take_time_1f1b_is_slower_than_gpipe():
    costs = whole(2, 4, latency=1)
    assert simulate(schedules.gpipe(4, 8), costs).makespan == 72
    assert simulate(schedules.one_f_one_b(4, 8), costs).makespan == 82


def starts_on_rank_0(timeline, kind):
    return [start for action, start, _ in timeline.spans[0] if action.kind is kind]


def test_with_latency_1f1b_settles_into_a_period_of_seven_and_a_half():
    starts = starts_on_rank_0(
        simulate(schedules.one_f_one_b(4, 32), whole(2, 4, latency=1)), B
    )
    middle = starts[8:24]
    assert all(later - earlier == 4 * 7.5 for earlier, later in zip(middle, middle[4:]))


@examples(60)
@given(p=st.integers(2, 5), forward=TIMES, backward=TIMES, c=st.integers(0, 6))
def test_the_steady_period_of_1f1b_is_its_work_or_one_round_trip_shared_by_those_in_flight(
    p, forward, backward, c
):
    costs = whole(forward, backward, latency=c)
    period = max(forward + backward, (p * (forward + backward) + 2 * (p - 1) * c) / p)
    short, long = (
        simulate(schedules.one_f_one_b(p, m), costs).makespan for m in (10 * p, 14 * p)
    )
    assert long - short == pytest.approx(4 * p * period)


@examples(60)
@given(p=RANKS, m=MICROBATCHES, forward=TIMES, backward=TIMES, c=st.integers(0, 6))
def test_gpipe_pays_the_latency_once_each_way_and_sequential_for_every_microbatch(
    p, m, forward, backward, c
):
    costs = whole(forward, backward, latency=c)
    assert (
        simulate(schedules.gpipe(p, m), costs).makespan
        == (m + p - 1) * (forward + backward) + 2 * (p - 1) * c
    )
    assert simulate(schedules.sequential(p, m), costs).makespan == m * (
        p * (forward + backward) + 2 * (p - 1) * c
    )


def test_neighbouring_stages_on_one_rank_pay_no_latency():
    # 0 -> 1 crosses, 1 -> 2 does not, 2 -> 3 crosses: two messages forward, two back,
    # on the only path there is.
    schedule = schedule_of_text("0F0 3F0 3B0 0B0\n1F0 2F0 2B0 1B0")
    assert simulate(schedule, Costs(1, 1, 0, latency=10)).makespan == 8 + 4 * 10


# -- bandwidth and memory --------------------------------------------------------------


@examples(60)
@given(p=RANKS, m=MICROBATCHES, size=st.integers(0, 8), latency=st.integers(0, 4))
def test_a_message_takes_the_latency_and_its_size_over_the_bandwidth(
    p, m, size, latency
):
    costs = Costs(latency=latency, bandwidth=2, message_size=size)
    for name in ("gpipe", "1f1b", "zb-h1"):
        schedule = schedules.build(name, p, m)
        assert (
            simulate(schedule, costs).spans
            == simulate(schedule, Costs(latency=latency + size / 2)).spans
        )


def test_the_gradient_that_comes_back_is_as_large_as_the_result_that_went():
    # rank 0 F0 --4--> rank 1 F0 --6--> rank 2 F0 B0 and the same way back; the last
    # stage sends nothing.
    costs = Costs(1, 1, 0, bandwidth=1, message_size=[4, 6, 100])
    assert simulate(schedules.gpipe(3, 1), costs).makespan == 6 + 2 * (4 + 6)


def test_a_value_leaves_when_its_send_stands_in_the_program():
    # Rank 0 sends microbatch 0 only after the forward of microbatch 1.
    late = schedule_of_text("0F0 0F1 0SEND_F0 0SEND_F1\n1RECV_F0 1F0 1RECV_F1 1F1")
    assert [span.start for span in simulate(late).spans[1]] == [2, 3]
    assert [span.start for span in simulate(late.schedule).spans[1]] == [1, 2]


def test_memory_by_stage_is_held_from_f_until_b_or_i_and_until_w():
    # after    F0  F1  I0          W0         I1   W1     with 5 until I and 3 from I to W
    # held     5   10  8           5          3    0
    schedule = schedule_of_text("0F0 0F1 0I0 0W0 0I1 0W1")
    assert simulate(schedule, Costs(activation=5, weight_activation=3)).peak_memory == (
        10,
    )
    # 8 linears: 8 units until I and 15 from I to W; then I, not F, is the peak.
    assert simulate(
        schedule, Costs(activation=8, weight_activation=15)
    ).peak_memory == (8 + 15,)
    assert simulate(schedule).peak_memory == (2,) == simulate(schedule).peak_activations
    two = schedule_of_text("0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1")
    assert simulate(two, Costs(activation=[2, 7])).peak_memory == (9,)
    forward = schedule_of_text("0F0 1F0 0F1 1F1")
    assert simulate(forward, Costs(activation=[2, 7])).peak_memory == (7,)


def test_costs_are_read_from_a_line():
    assert Costs.parse("") == Costs()
    assert Costs.parse("F=2, I=1,W=0.5:1,latency=0.25") == Costs(
        2.0, 1.0, (0.5, 1.0), 0.25
    )
    assert Costs.parse(
        "bandwidth=4,message_size=8,activation=3,weight_activation=1:2"
    ) == Costs(
        bandwidth=4.0, message_size=8.0, activation=3.0, weight_activation=(1.0, 2.0)
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("B=2", "A whole backward B takes I + W"),
        ("X=1", "'X=1' is not a cost; expected one of F, I, W, latency, bandwidth"),
        ("F", "'F' has no number; expected a form such as F=1 or F=1:2:3"),
        ("F=fast", "has no number"),
        ("latency=1:2", "has 2 numbers; latency is a single number"),
    ],
)
def test_a_line_that_gives_no_costs_is_refused(text, words):
    with pytest.raises(ScheduleError) as caught:
        Costs.parse(text)
    assert caught.value.code == "value" and words in str(caught.value)


# -- every time has its reason ---------------------------------------------------------


@examples(100)
@given(data=st.data())
def test_every_action_starts_the_moment_its_rank_is_free_and_its_input_is_there(
    every_schedule, data
):
    schedule = data.draw(st.sampled_from(every_schedule))
    stages = schedule.num_stages
    forward, inputs, weights = (
        data.draw(st.lists(st.integers(0, 5), min_size=stages, max_size=stages))
        for _ in range(3)
    )
    latency = data.draw(st.integers(0, 5))
    whole = (
        [schedule.num_slices * time for time in times]
        for times in (forward, inputs, weights)
    )
    timeline = simulate(schedule, Costs(*whole, latency, update=[7] * stages))
    ends = {span.action: span.end for row in timeline.spans for span in row}

    def arrivals(stage, kind, k):
        """Yield when each value that the action needs is there."""
        if kind is F:
            sources = [(stage - 1, (F,))]
        elif kind is U:
            sources = []
        elif kind is WEIGHT:
            sources = [(stage, (INPUT,))]
        else:
            sources = [(stage, (F,)), (stage + 1, (B, INPUT))]
        for source, kinds in sources:
            if 0 <= source < stages:
                crosses = schedule.rank_of(source, k) != schedule.rank_of(stage, k)
                yield (
                    min(
                        ends[source, one, k]
                        for one in kinds
                        if (source, one, k) in ends
                    )
                    + latency * crosses
                )

    durations = {
        F: forward,
        INPUT: inputs,
        WEIGHT: weights,
        B: [i + w for i, w in zip(inputs, weights)],
    }
    durations[U] = [7] * stages
    for row, spans in zip(schedule.actions, timeline.spans):
        free = 0
        assert tuple(span.action for span in spans) == row
        for (stage, kind, k), start, end in spans:
            assert start == max([free, *arrivals(stage, kind, k)])
            assert end - start == durations[kind][stage]
            free = end
    assert timeline.makespan == max(ends.values())


def test_bubble_fraction_is_idle_time_over_all_time():
    # rank 0 F0 B0······      two units of work each, of 2 x 4
    # rank 1 ··F0 B0··
    timeline = simulate(schedules.gpipe(2, 1), Costs(1, 1, 0))
    assert timeline.makespan == 4
    assert [timeline.busy(rank) for rank in (0, 1)] == [2, 2]
    assert timeline.bubble_fraction == 0.5


def test_the_makespan_counts_from_the_first_start():
    # As measured: the clock of a run need not begin at 0, and rank 1 is the first here.
    forward, backward = Action(0, F, 0), Action(0, B, 0)
    timeline = Timeline(
        "clock", ((Span(forward, 7.0, 9.0),), (Span(backward, 5.0, 8.0),)), (1, 1)
    )
    assert timeline.makespan == 9.0 - 5.0


@examples(60)
@given(data=st.data())
def test_measured_costs_give_back_the_timeline_they_were_measured_in(
    every_schedule, data
):
    schedule = data.draw(st.sampled_from(every_schedule))
    stages = schedule.num_stages
    times = [
        data.draw(st.lists(st.integers(0, 5), min_size=stages, max_size=stages))
        for _ in range(3)
    ]
    split = schedule_of_text(
        re.sub(r"(\d+)B([\d.]+)", r"\1I\2 \1W\2", schedule.to_text()),
        name=schedule.name,
    )
    for measured in (schedule, split):
        timeline = simulate(measured, Costs(*times))
        assert simulate(measured, Costs.measured(timeline)) == timeline


def test_what_takes_no_time_has_no_bubble():
    timeline = simulate(schedules.one_f_one_b(3, 4), Costs(0, 0, 0))
    assert (timeline.makespan, timeline.bubble_fraction) == (0, 0)


@pytest.mark.slow
def test_sends_and_receives_take_no_time_of_their_own(every_schedule):
    costs = Costs(2, 1, 3, latency=1)
    for schedule in every_schedule:
        assert simulate(lower(schedule), costs) == simulate(schedule, costs)


def test_a_timeline_reads_as_one_sentence():
    assert str(simulate(schedules.one_f_one_b(4, 8))) == (
        "1f1b: makespan 33 units, bubble 27.3 %, peak activations by rank 4, 3, 2, 1"
    )
