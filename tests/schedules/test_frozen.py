"""Schedules with frozen stages: legal, without what nothing needs, and no longer than
before.
"""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from minipipe import Action, Costs, Schedule, schedules, simulate, verify
from minipipe.core.flow import flow_of
from minipipe.core.schedules.analysis.walk import complete_walk
from minipipe.errors import ScheduleError
from minipipe.schedules import Program, freeze_stages, lower
from minipipe.schedules.transforms import first_stages
from tests.schedules.analysis.verdicts import refusal
from tests.strategies import NAMES, examples, named_schedules, updated_schedules


@st.composite
def frozen_schedules(draw):
    _, schedule, *_ = draw(
        named_schedules(NAMES, max_ranks=4, max_microbatches=6, max_chunks=2)
    )
    if draw(st.booleans()):
        schedule = schedules.paci(*(draw(st.integers(1, most)) for most in (4, 6, 3)))
    if not schedule.is_forward_only:
        schedule = schedules.data_parallel(schedule, draw(st.integers(1, 2)))
    return schedule, draw(st.sets(st.sampled_from(range(schedule.num_stages))))


@examples(80)
@given(frozen_schedules(), st.booleans())
def test_a_legal_schedule_stays_legal_and_lowers_without_a_deadlock(drawn, is_lowered):
    schedule, stages = drawn
    frozen = freeze_stages(lower(schedule) if is_lowered else schedule, stages)
    verify(frozen)
    verify(lower(frozen))
    complete_walk(lower(frozen), sends_are_buffered=False)
    assert (
        frozen.frozen == lower(frozen).frozen == lower(frozen).schedule.frozen == stages
    )
    assert type(frozen) is (Program if is_lowered else Schedule)


@examples(80)
@given(frozen_schedules())
def test_just_what_nothing_needs_is_left_out(drawn):
    schedule, stages = drawn
    before, after = (
        {a for row in t.actions for a in row}
        for t in (lower(schedule), lower(freeze_stages(*drawn)))
    )
    trained = sorted(set(range(schedule.num_stages)) - stages)
    for action in before:
        stage, kind, k = action
        is_upstream_trained = any(other < stage for other in trained)
        needed = {
            "F": {action},
            "B": {action}
            if stage in trained
            else {Action(stage, "I", k)}
            if is_upstream_trained
            else set(),
            "I": {action} if stage in trained or is_upstream_trained else set(),
            **dict.fromkeys(
                ("W", "U", "REDUCE_GRAD"), {action} if stage in trained else set()
            ),
            "SEND_B": {action} if is_upstream_trained else set(),
            "RECV_B": {action} if is_upstream_trained or stage in trained else set(),
        }.get(kind.value, {action})
        assert needed <= after
        assert action in needed or action not in after
    assert len(after) <= len(before)


@examples(80)
@given(
    frozen_schedules(),
    st.sampled_from([Costs(), Costs(forward=2, latency=0.5), Costs(backward_weight=3)]),
)
def test_it_takes_no_longer_holds_no_more_and_gives_all_back(drawn, costs):
    whole, frozen = simulate(drawn[0], costs), simulate(freeze_stages(*drawn), costs)
    assert frozen.makespan <= whole.makespan + 1e-9
    for before, after in (
        (whole.peak_activations, frozen.peak_activations),
        (whole.peak_memory, frozen.peak_memory),
    ):
        assert all(b >= a for b, a in zip(before, after))
    assert all(row[-1] == 0 for row in (*frozen.held_activations, *frozen.memory))


@examples(60)
@given(frozen_schedules(), st.data())
def test_an_action_that_is_missing_or_needless_is_refused(drawn, data):
    frozen = freeze_stages(*drawn)
    rank = data.draw(
        st.sampled_from([r for r, row in enumerate(frozen.actions) if row])
    )
    of_one = [
        at
        for at, action in enumerate(frozen.actions[rank])
        if action.kind not in ("U", "REDUCE_GRAD")
    ]
    position = data.draw(st.sampled_from(of_one))
    rows = [list(row) for row in frozen.actions]
    del rows[rank][position]
    changed = Schedule(
        "changed", frozen.placement, frozen.num_microbatches, rows, frozen.frozen
    )
    assume(not changed.is_forward_only)  # which is legal: the last backward is gone
    assert {problem.code for problem in refusal(changed).problems} & {
        "missing",
        "unexpected",
        "frozen",
    }
    needless = sorted(
        {a for row in drawn[0].actions for a in row}
        - {a for row in frozen.actions for a in row}
    )
    if needless:
        action = data.draw(st.sampled_from(needless))
        rows = [
            [*row, *([action] if rank == drawn[0].home_of(action) else [])]
            for rank, row in enumerate(frozen.actions)
        ]
        changed = Schedule(
            "changed", frozen.placement, frozen.num_microbatches, rows, frozen.frozen
        )
        assert "frozen" in {problem.code for problem in refusal(changed).problems}


@examples(60)
@given(updated_schedules(), st.data())
def test_a_frozen_stage_has_no_sum_and_no_update(schedule, data):
    """The story: U and REDUCE_GRAD stayed, and ``minipipe show pipedream --freeze 0``
    was refused.
    """
    frozen = freeze_stages(
        schedule, data.draw(st.sets(st.sampled_from(range(schedule.num_stages))))
    )
    verify(frozen)
    assert {a.stage for row in frozen.actions for a in row if a.kind == "U"}.isdisjoint(
        frozen.frozen
    )


@examples(60)
@given(frozen_schedules(), st.data())
def test_without_its_last_stages_the_others_stay_frozen(drawn, data):
    """The story: the mark was lost, and the W of the frozen stages were missing."""
    frozen = freeze_stages(*drawn)
    shorter = first_stages(frozen, data.draw(st.integers(1, frozen.num_stages)))
    verify(shorter)
    assert shorter.frozen == {
        stage for stage in frozen.frozen if stage < shorter.num_stages
    }


def test_without_the_mark_the_same_rows_are_refused():
    frozen = freeze_stages(schedules.zb_h1(3, 4), [0, 2])
    assert (
        refusal(Schedule("mine", frozen.placement, 4, frozen.actions)).problems[0].code
        == "missing"
    )
    assert frozen != Schedule(frozen.name, frozen.placement, 4, frozen.actions)


def test_zero_bubble_with_a_frozen_first_half_as_on_paper():
    # rank 0: F F F F                        nobody before rank 2 is trained
    # rank 1:   F F F F
    # rank 2:     F     I W F I W F I W F I W   2I sends nothing
    # rank 3:       F I F I F I F I           3 is frozen and passes gradients on
    schedule = freeze_stages(schedules.zb_h1(4, 4), [0, 1, 3])
    assert [{str(kind) for _, kind, _ in row} for row in schedule.actions] == [
        {"F"},
        {"F"},
        {"F", "I", "W"},
        {"F", "I"},
    ]
    assert schedule.first_backward_stage == 2 and not schedule.is_forward_only
    flow, rows = flow_of(schedule), enumerate(schedule.actions)
    given = [
        value
        for rank, row in rows
        for i in range(len(row))
        for value in flow.uses(rank, i).gives
    ]
    # stage 3 alone gives gradients
    assert {value.stage for value in given if value.name == "g"} == {2}
    timeline = simulate(schedule)
    assert timeline.peak_activations[:2] == (1, 1) and timeline.held_activations[0] == (
        0,
        0,
        0,
        0,
    )
    assert (
        repr(schedule)
        == "<Schedule zb-h1 (frozen: 0, 1, 3): 4 ranks, 4 stages, 4 microbatches>"
    )
    assert timeline.name == "zb-h1 (frozen: 0, 1, 3)"


def test_nothing_to_train_leaves_the_forward_alone_and_forward_only_stays_as_it_is():
    frozen = freeze_stages(schedules.zb_v(2, 3), range(4))
    assert frozen.is_forward_only and frozen.first_backward_stage == 4
    verify(lower(frozen))
    forward = schedules.forward_only(2, 3)
    assert freeze_stages(forward, [0]) is forward


@pytest.mark.parametrize("stage", [-1, 2, 0.5, "0"])
def test_a_frozen_stage_must_exist(stage):
    with pytest.raises(ScheduleError, match="There is no stage") as caught:
        Schedule("mine", (0, 1), 1, [["0F0"], ["1F0"]], {stage})
    assert caught.value.code == "out-of-range"
    with pytest.raises(ScheduleError, match="There is no stage"):
        freeze_stages(schedules.gpipe(2, 1), [stage])


@examples(40)
@given(frozen_schedules(), st.booleans())
def test_as_text_it_keeps_what_is_frozen(drawn, is_lowered):
    """The story: what ``print`` had written was refused when it was read, for all the
    backwards that are not there.
    """
    frozen = freeze_stages(lower(drawn[0]) if is_lowered else drawn[0], drawn[1])
    read = schedules.schedule_of_text(frozen.to_text(), frozen.name)
    if (
        any(action.kind.is_communication for row in frozen.actions for action in row)
        == is_lowered
    ):
        assert read == frozen
    verify(read)


@pytest.mark.parametrize(
    ("stages", "words"),
    [(0, "stages is 0; expected the numbers"), ([True], "There is no stage True")],
)
def test_what_is_no_list_of_stages_is_refused(stages, words):
    with pytest.raises(ScheduleError, match=words):
        freeze_stages(schedules.gpipe(2, 1), stages)
    with pytest.raises(ScheduleError, match="Expected a Schedule"):
        freeze_stages("1f1b", stages)
