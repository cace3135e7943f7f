"""Any number of stages on any ranks: straight schedules in several chunks, groups of
any size, stages left out.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, schedules, simulate, verify
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.core.schedules.interleaved import microbatch_groups, order_table
from minipipe.core.schedules.one_f_one_b import warmup_then_pairs
from minipipe.errors import ScheduleError
from minipipe.schedules.transforms import cut_stages, first_stages

STRAIGHT = ("gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2")
GROUPED = ("interleaved-1f1b", "interleaved-zb")


def test_1f1b_with_two_neighbouring_stages_on_each_rank():
    assert str(schedules.one_f_one_b(2, 2, chunks_per_rank=2)).splitlines()[1:] == [
        "rank 0: 0F0 1F0 0F1 1F1 1B0 0B0 1B1 0B1",
        "rank 1: 2F0 3F0 3B0 2B0 2F1 3F1 3B1 2B1",
    ]


def test_zb_h1_with_two_neighbouring_stages_on_each_rank():
    assert str(schedules.zb_h1(2, 2, chunks_per_rank=2)).splitlines()[1:] == [
        "rank 0: 0F0 1F0 0F1 1F1 1I0 0I0 1W0 0W0 1I1 0I1 1W1 0W1",
        "rank 1: 2F0 3F0 3I0 2I0 2F1 3F1 3I1 2I1 3W0 2W0 3W1 2W1",
    ]


@given(
    st.sampled_from(STRAIGHT), st.integers(1, 6), st.integers(1, 12), st.integers(1, 4)
)
def test_straight_chunks_take_the_time_of_one_stage_and_send_as_many_messages(
    name, p, m, v
):
    one, several = schedules.build(name, p, m), schedules.build(name, p, m, v)
    verify(several)
    assert several.is_reproducible and several.placement == tuple(
        r for r in range(p) for _ in range(v)
    )
    whole, cut = (
        simulate(one, Costs(v, v, v, latency=0.5)),
        simulate(several, Costs(1, 1, 1, latency=0.5)),
    )
    assert (cut.makespan, cut.bubble_fraction) == (
        whole.makespan,
        pytest.approx(whole.bubble_fraction),
    )
    assert cut.peak_activations == tuple(v * peak for peak in whole.peak_activations)
    messages = [
        sum(a.kind.is_communication for row in lower(s).actions for a in row)
        for s in (one, several)
    ]
    assert messages[0] == messages[1]


@given(
    st.sampled_from(GROUPED),
    st.integers(1, 5),
    st.integers(1, 20),
    st.integers(1, 4),
    st.data(),
)
def test_interleaved_schedules_take_any_number_of_microbatches_in_groups_of_any_size_from_p_on(
    name, p, m, v, data
):
    size = data.draw(st.one_of(st.none(), st.integers(p, p + m)))
    schedule = schedules.build(name, p, m, v, size)
    verify(schedule)
    assert schedule.is_reproducible and schedule.num_microbatches == m


def test_smaller_groups_would_deadlock():
    """The reason for the limit: built by hand, with groups of one microbatch, three
    ranks wait for each other.
    """
    groups = [range(k, k + 1) for k in range(3)]
    rows = []
    for rank in range(3):
        stages = range(rank, 6, 3)
        forwards = order_table(schedules.ActionKind.FORWARD, stages, groups)
        backwards = order_table(schedules.ActionKind.BACKWARD, stages[::-1], groups)
        rows.append(warmup_then_pairs(forwards, backwards, min(2 * (2 - rank) + 1, 6)))
    with pytest.raises(ScheduleError, match="cycle"):
        verify(schedules.Schedule("small groups", (0, 1, 2, 0, 1, 2), 3, rows))


@pytest.mark.parametrize(
    ("p", "m", "size", "sizes"),
    [
        (4, 8, None, [4, 4]),
        (4, 9, None, [4, 5]),
        (4, 3, None, [3]),
        (4, 9, 4, [4, 5]),
        (3, 8, 5, [8]),
        (3, 11, 5, [5, 6]),
    ],
)
def test_groups_are_as_equal_as_can_be_and_no_smaller_than_asked_for(p, m, size, sizes):
    groups = microbatch_groups(p, m, size)
    assert [len(group) for group in groups] == sizes
    assert [k for group in groups for k in group] == list(range(m))


@given(
    st.sampled_from([*STRAIGHT, *GROUPED, "looped-bfs", "sequential"]),
    st.integers(1, 4),
    st.integers(1, 12),
)
def test_without_its_last_stages_a_schedule_stays_legal(name, p, num_stages):
    chunks = -(-num_stages // p)
    schedule = first_stages(schedules.build(name, p, 5, chunks), num_stages)
    verify(schedule)
    assert (
        schedule.num_stages == num_stages
        and schedule.num_ranks == p
        and schedule.is_reproducible
    )


@pytest.mark.parametrize("wrong", [0, 3, -1])
def test_more_stages_than_there_are_or_none_are_refused(wrong):
    with pytest.raises(
        ScheduleError,
        match=f"num_stages is {wrong}; expected 1 to 2, the stages of gpipe",
    ):
        first_stages(schedules.gpipe(2, 2), wrong)


def test_one_piece_changes_nothing():
    actions = schedules.zb_v(3, 5).actions
    assert cut_stages(actions, 1) == actions
