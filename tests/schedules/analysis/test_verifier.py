"""The verifier accepts what is legal, catches every mutant, and points at the cause."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, schedules
from minipipe.core.schedules.action import Action
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.errors import ScheduleError
from minipipe.schedules import schedule_of_text
from minipipe.schedules.analysis.limits import verify
from minipipe.schedules.simulation.simulator import peak_memory
from tests.schedules.analysis.verdicts import (
    INPUT,
    WEIGHT,
    B,
    F,
    assert_legal,
    changed,
    refusal,
    split,
    trains,
)
from tests.strategies import examples, table


def drawn_place(
    data,
    schedule,
    is_wanted=lambda action: action.kind.value not in ("REDUCE_GRAD", "U"),
):
    """Draw the rank and the step of an action, by default of one microbatch."""
    places = [
        (rank, step)
        for rank, row in enumerate(schedule.actions)
        for step, a in enumerate(row)
        if is_wanted(a)
    ]
    return data.draw(st.sampled_from(places))


# -- what is legal ---------------------------------------------------------------------


def test_every_named_schedule_is_legal_as_it_is_and_lowered(every_schedule):
    for schedule in every_schedule:
        verify(schedule)
        verify(lower(schedule))


@pytest.mark.parametrize(
    "text",
    [
        "0F0 0I0 0W0",
        # W may come late, and out of order.
        "0F0 0F1 0I0 0I1 0W1 0W0",
        # ZB-H1 by hand, p = 2, m = 3.
        """
        rank 0: 0F0 0F1     0I0 0W0 0F2 0I1 0W1 0I2 0W2
        rank 1:     1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2
        """,
        # Each (stage, microbatch) may choose: a B meets an I, and an I meets a B.
        """
        rank 0: 0F0 0F1 0I0 0B1 0W0
        rank 1: 1F0 1F1 1B0 1I1 1W1
        """,
        # A V: stage 1 and stage 2 are neighbours on one rank.
        """
        rank 0: 0F0         3F0 3I0         0I0 0W0 3W0
        rank 1:     1F0 2F0         2I0 1I0 1W0 2W0
        """,
        # Messages written by hand.
        """
        rank 0: 0F0 0SEND_F0                          0RECV_B0 0I0 0W0
        rank 1:     1RECV_F0 1F0 1I0         1SEND_B0 1W0
        """,
    ],
)
def test_a_split_schedule_written_by_hand_is_legal(text):
    assert_legal(schedule_of_text(text))


def test_a_forward_only_schedule_is_legal_on_any_placement():
    for placement in [
        (0,),
        (0, 1, 2),
        (0, 1, 0, 1),
        (0, 1, 1, 0),
        (2, 1, 0),
        (0, 0, 1),
    ]:
        assert_legal(schedules.forward_only_over(placement, 3))


def test_a_rank_may_have_nothing_to_do():
    assert_legal(table("idle", (0, 2), 1, [[Action(0, F, 0)], [], [Action(1, F, 0)]]))


@pytest.mark.slow
def test_every_backward_may_be_split_and_the_schedule_is_never_slower_for_it(
    every_schedule,
):
    # The gradient leaves when I ends, not when B ends.
    for schedule in every_schedule:
        verify(split(schedule))
        assert (
            schedules.simulate(split(schedule)).makespan
            <= schedules.simulate(schedule).makespan
        )
    assert schedules.simulate(split(schedules.gpipe(4, 8))).makespan == 33 - 3


# -- mutants ---------------------------------------------------------------------------


@examples(100)
@given(data=st.data())
def test_a_dropped_action_is_missed(every_schedule, data):
    schedule = data.draw(
        st.sampled_from(every_schedule).filter(
            lambda s: s.num_ranks * s.num_microbatches > 1
        )
    )
    rank, step = drawn_place(data, schedule)
    dropped = schedule.actions[rank][step]
    error = refusal(changed(schedule, lambda programs: programs[rank].pop(step)))
    assert error.code == "missing"
    assert f"{dropped} is missing on rank {rank}." in str(error)


@examples(100)
@given(data=st.data())
def test_a_dropped_send_or_receive_is_missed(every_schedule, data):
    schedule = lower(
        data.draw(st.sampled_from(every_schedule).filter(lambda s: s.num_ranks > 1))
    )
    rank, step = drawn_place(
        data, schedule, lambda action: action.kind.is_communication
    )
    dropped = schedule.actions[rank][step]
    error = refusal(changed(schedule, lambda programs: programs[rank].pop(step)))
    assert [(p.code, p.rank, p.step) for p in error.problems] == [
        ("missing", rank, None)
    ]
    assert f"{dropped} is missing on rank {rank}." in str(error)


@examples(100)
@given(data=st.data())
def test_a_duplicated_action_is_caught_where_it_stands_again(every_schedule, data):
    schedule = data.draw(st.sampled_from(every_schedule))
    schedule = lower(schedule) if data.draw(st.booleans()) else schedule
    rank, step = drawn_place(data, schedule)
    again = data.draw(st.integers(step + 1, len(schedule.actions[rank])))
    error = refusal(
        changed(
            schedule,
            lambda programs: programs[rank].insert(again, programs[rank][step]),
        )
    )
    (problem,) = error.problems
    assert (problem.code, problem.rank, problem.step) == ("duplicate", rank, again)
    assert f"is a duplicate of position {step}" in problem.message


@examples(100)
@given(data=st.data())
def test_an_action_moved_to_another_rank_is_caught_there(every_schedule, data):
    schedule = data.draw(
        st.sampled_from(every_schedule).filter(
            lambda s: s.num_ranks > 1 and not s.has_replicas
        )
    )
    schedule = lower(schedule) if data.draw(st.booleans()) else schedule
    rank, step = drawn_place(data, schedule)
    other = data.draw(
        st.sampled_from([r for r in range(schedule.num_ranks) if r != rank])
    )
    place = data.draw(st.integers(0, len(schedule.actions[other])))
    error = refusal(
        changed(
            schedule,
            lambda programs: programs[other].insert(place, programs[rank].pop(step)),
        )
    )
    (problem,) = error.problems
    assert (problem.code, problem.rank, problem.step) == ("placement", other, place)
    assert "replicas" not in problem.message


def test_an_action_on_a_rank_that_is_no_replica_is_told_where_it_is_as_well():
    error = refusal(
        table("mine", (0, 1), 1, [["0F0", "0B0"], ["1F0", "1B0", "0F0", "0B0"]])
    )
    assert [(p.code, p.rank, p.step) for p in error.problems] == [
        ("placement", 1, 2),
        ("placement", 1, 3),
    ]
    assert error.problems[0].message == (
        "Rank 1, position 2: 0F0 is on the wrong rank; stage 0 is on rank 0. "
        "0F0 is on rank 0 as well: a microbatch runs once."
    )


@examples(100)
@given(data=st.data())
def test_two_dependent_actions_of_a_rank_that_are_swapped_are_caught(
    every_schedule, data
):
    schedule = split(data.draw(st.sampled_from(every_schedule).filter(trains)))
    schedule = lower(schedule) if data.draw(st.booleans()) else schedule

    def follows(later, earlier):
        """Tell whether the value of one action is at once used by the other, on the
        same rank.
        """
        used = {
            "I": ["F", "RECV_B"],
            "W": ["I"],
            "F": ["RECV_F"],
            "SEND_F": ["F"],
            "SEND_B": ["I"],
        }
        return earlier.kind.value in used.get(later.kind.value, []) and (
            later.stage,
            later.microbatch,
        ) == (
            earlier.stage,
            earlier.microbatch,
        )

    pairs = [
        (rank, first, second)
        for rank, row in enumerate(schedule.actions)
        for first in range(len(row))
        for second in range(first + 1, len(row))
        if follows(row[second], row[first])
    ]
    rank, first, second = data.draw(st.sampled_from(pairs))

    def swap(programs):
        row = programs[rank]
        row[first], row[second] = row[second], row[first]

    error = refusal(changed(schedule, swap))
    assert error.code in {"order", "deadlock"}
    assert error.problems[0].step is not None


@examples(100)
@given(data=st.data())
def test_a_stage_or_a_microbatch_that_is_not_there_is_out_of_range(
    every_schedule, data
):
    schedule = data.draw(st.sampled_from(every_schedule))
    schedule = lower(schedule) if data.draw(st.booleans()) else schedule
    rank, step = drawn_place(data, schedule)
    stage, kind, k = schedule.actions[rank][step]
    field, bound = data.draw(
        st.sampled_from(
            [("stage", schedule.num_stages), ("microbatch", schedule.num_microbatches)]
        )
    )
    wrong = data.draw(st.sampled_from([-1, bound, bound + 5]))
    mutant = Action(wrong, kind, k) if field == "stage" else Action(stage, kind, wrong)
    error = refusal(
        changed(schedule, lambda programs: programs[rank].__setitem__(step, mutant))
    )
    (problem,) = error.problems
    assert (problem.code, problem.rank, problem.step) == ("out-of-range", rank, step)
    assert f"names {field} {wrong}; there are {bound}" in problem.message


@examples(100)
@given(data=st.data())
def test_i_or_w_beside_b_is_caught(every_schedule, data):
    with_whole_backward = [
        s for s in every_schedule if any(action.kind is B for action in s.actions[0])
    ]
    schedule = data.draw(st.sampled_from(with_whole_backward))
    rank, step = drawn_place(data, schedule, lambda action: action.kind is B)
    stage, _, k = schedule.actions[rank][step]
    kind = data.draw(st.sampled_from([INPUT, WEIGHT]))
    error = refusal(
        changed(
            schedule,
            lambda programs: programs[rank].insert(step + 1, Action(stage, kind, k)),
        )
    )
    (problem,) = error.problems
    assert (problem.code, problem.rank, problem.step) == ("unexpected", rank, step + 1)
    assert f"{stage}{kind.value}{k} comes in addition to {stage}B{k}" in problem.message


@examples(100)
@given(data=st.data())
def test_i_without_its_w_and_w_without_its_i_are_caught(every_schedule, data):
    schedule = split(data.draw(st.sampled_from(every_schedule).filter(trains)))
    rank, step = drawn_place(
        data, schedule, lambda action: action.kind in (INPUT, WEIGHT)
    )
    dropped = schedule.actions[rank][step]
    error = refusal(changed(schedule, lambda programs: programs[rank].pop(step)))
    assert (error.code, error.problems[0].rank) == ("missing", rank)
    assert str(dropped) in str(error)


def test_w_before_its_i_is_caught():
    error = refusal(schedule_of_text("0F0 0W0 0I0"))
    (problem,) = error.problems
    assert (problem.code, problem.rank, problem.step) == ("order", 0, 1)
    assert (
        problem.message
        == "Rank 0, position 1: 0W0 comes before 0I0 (position 2), which it needs."
    )


@pytest.mark.parametrize(
    ("text", "stray"),
    [
        # no stage before the first
        ("0F0 0SEND_F0 0RECV_B0 0B0 0SEND_B0\n1RECV_F0 1F0 1B0 1SEND_B0", "0SEND_B0"),
        # no stage after the last
        ("0F0 0SEND_F0 0RECV_B0 0B0\n1RECV_F0 1F0 1SEND_F0 1B0 1SEND_B0", "1SEND_F0"),
        ("0F0 0SEND_F0 1F0 1B0 0B0", "0SEND_F0"),  # stage 1 is on the same rank
        # forward-only: no gradient ever comes
        ("0F0 0SEND_F0 0RECV_B0\n1RECV_F0 1F0", "0RECV_B0"),
    ],
)
def test_a_message_without_a_partner_is_caught(text, stray):
    error = refusal(schedule_of_text(text))
    assert error.code == "missing"
    assert f"{stray} has no partner" in str(error)


def test_two_messages_under_one_tag_collide():
    error = refusal(
        schedule_of_text("0F0 0SEND_F0 0F1 0SEND_F0\n1RECV_F0 1F0 1RECV_F1 1F1")
    )
    assert [(p.code, p.rank, p.step) for p in error.problems] == [
        ("duplicate", 0, 3),
        ("missing", 0, None),  # the second SEND should have been that of microbatch 1
    ]
    assert "Two messages with the same tag cannot be distinguished" in str(error)


def test_a_deadlock_that_buffered_sends_would_avoid_is_named_apart():
    # Both neighbours send first: small messages pass, large ones hang.
    both_send = (
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1\n1RECV_F0 1F0 1B0 "
        "1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1"
    )
    error = refusal(schedule_of_text(both_send))
    assert error.code == "rendezvous-deadlock"
    assert "It would finish only if every send were buffered" in str(error)
    # Each waits to receive before it sends: no buffer helps.
    both_receive = "0RECV_B0 0F0 0SEND_F0 0B0\n1RECV_F0 1F0 1B0 1SEND_B0"
    error = refusal(schedule_of_text(both_receive))
    assert error.code == "deadlock" and "buffered" not in str(error)


def test_a_peak_over_the_memory_limit_is_named_where_it_is_first_passed():
    schedule = schedules.gpipe(2, 3)
    verify(schedule, memory_limit=3)
    verify(schedule, memory_limit=[3, 4])
    with pytest.raises(ScheduleError) as caught:
        verify(schedule, memory_limit=[3, 1])
    (problem,) = caught.value.problems
    assert (problem.code, problem.rank, problem.step) == ("memory", 1, 1)
    assert problem.message == (
        "Rank 1, position 1: with 1F1 it holds 2 (stage, microbatch) pairs; the "
        "limit is 1."
    )
    assert "rank 1:  1F0  >1F1<" in str(caught.value)


@examples(60)
@given(data=st.data())
def test_the_memory_limit_that_fits_is_the_peak(every_schedule, data):
    schedule = data.draw(st.sampled_from(every_schedule))
    schedule = lower(schedule) if data.draw(st.booleans()) else schedule
    peaks = schedules.peak_activations(schedule)
    verify(schedule, peaks)
    rank = data.draw(
        st.integers(0, schedule.num_ranks - 1).filter(
            lambda r: peaks[r] > 1 or max(peaks) == 1
        )
    )
    if peaks[rank] > 1:
        with pytest.raises(ScheduleError) as caught:
            verify(schedule, [peak - (r == rank) for r, peak in enumerate(peaks)])
        assert (caught.value.code, caught.value.problems[0].rank) == ("memory", rank)


@pytest.mark.parametrize("wrong", [0, -1, [1], [1, 2, 3], [1, 0], "3"])
def test_a_memory_limit_that_is_none_is_refused(wrong):
    with pytest.raises(ScheduleError) as caught:
        verify(schedules.gpipe(2, 3), memory_limit=wrong)
    assert caught.value.code == "value" and "memory_limit" in str(caught.value)


HALF = Costs(activation=2, weight_activation=0.5, transient_activation=1).memory(2)


def test_memory_may_be_an_amount_in_any_unit_and_a_limit_a_fraction():
    # Rank 0 of ZB-H1 with F0 and F1: 2 + 2. Then I0 needs 1 more, and leaves 0.5.
    schedule = schedules.zb_h1(2, 3)
    row = "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2"
    assert " ".join(map(str, schedule.actions[0])) == row
    verify(schedule, memory_limit=[5, 3.5], memory=HALF)
    for limit in (10**400, float("inf")):
        verify(schedule, memory_limit=limit, memory=HALF)
    verify(schedule, memory_limit=10**400)
    with pytest.raises(ScheduleError) as caught:
        verify(schedule, memory_limit=[4.75, 3.5], memory=HALF)
    (problem,) = caught.value.problems
    assert (problem.code, problem.rank, problem.step) == ("memory", 0, 2)
    assert (
        problem.message == "Rank 0, position 2: with 0I0 it holds 5; the limit is 4.75."
    )


def test_the_limit_is_one_up_to_rounding_and_no_further():
    tenth = Costs(activation=0.1).memory(1)
    # 0.1 + 0.1 + 0.1 is more than 0.3 in binary
    verify(schedules.gpipe(1, 3), memory_limit=0.3, memory=tenth)
    with pytest.raises(
        ScheduleError, match=r"with 0F2 it holds 0\.3; the limit is 0\.29999\."
    ):
        verify(schedules.gpipe(1, 3), memory_limit=0.29999, memory=tenth)


@examples(60)
@given(data=st.data())
def test_the_amount_that_fits_is_the_peak_of_the_simulator(every_schedule, data):
    schedule = data.draw(st.sampled_from(every_schedule))
    amounts = st.lists(
        st.floats(0.125, 9), min_size=schedule.num_stages, max_size=schedule.num_stages
    )
    memory = Costs(
        *[1] * 3, activation=data.draw(amounts), weight_activation=data.draw(amounts)
    )
    peaks = peak_memory(schedule, memory)
    footprint = memory.sliced(schedule.num_slices).memory(schedule.num_stages)
    verify(schedule, peaks, footprint)
    rank = data.draw(st.integers(0, schedule.num_ranks - 1))
    with pytest.raises(ScheduleError) as caught:
        verify(
            schedule,
            [peak * (0.999 if r == rank else 1) for r, peak in enumerate(peaks)],
            footprint,
        )
    assert (caught.value.code, caught.value.problems[0].rank) == ("memory", rank)


@pytest.mark.parametrize(
    ("limit", "memory", "wrong"),
    [
        (
            0,
            HALF,
            "memory_limit is 0; expected an amount above 0, or one for each of 2 ranks",
        ),
        (float("nan"), HALF, "memory_limit is nan; expected an amount"),
        ([1.5], HALF, "expected an amount above 0, or one for each of 2 ranks"),
        (
            1.5,
            [1, 1],
            (
                "memory is .1, 1.; expected a Footprint, such as "
                "Costs.activation=2.*memory.2."
            ),
        ),
        (
            1.5,
            Costs().memory(3),
            (
                "activation of memory is .1.0, 1.0, 1.0.; expected an amount, at "
                "least 0, for each"
            ),
        ),
        (
            1.5,
            HALF._replace(transient={0: 1}),
            "transient of memory is {0: 1}; expected",
        ),
        (
            1.5,
            HALF._replace(weight_activation=[1, -1]),
            "weight_activation of memory is .1, -1.; expected",
        ),
    ],
)
def test_memory_that_is_none_is_refused(limit, memory, wrong):
    with pytest.raises(ScheduleError, match=wrong) as caught:
        verify(schedules.gpipe(2, 3), limit, memory)
    assert caught.value.code == "value"
