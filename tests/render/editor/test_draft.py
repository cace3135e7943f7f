"""A draft: a schedule that is still being written."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, schedules, simulate, verify
from minipipe.core.schedules.action import Action, ActionKind
from minipipe.core.schedules.analysis.walk import complete_walk
from minipipe.errors import ScheduleError
from minipipe.render.editor.draft import Draft
from tests.launch import slowly

EDITABLE = [name for name in schedules.REGISTRY if name not in ("forward-only",)]


def plain_schedules():
    """Every named schedule that can be placed by hand, small."""
    for name in EDITABLE:
        for ranks, microbatches in ((2, 4), (3, 6)):
            try:
                yield Draft.of(schedules.build(name, ranks, microbatches))
            except ScheduleError:
                continue


DRAFTS = list(plain_schedules())
# Of each name the first one is quick.
FIRST = {draft.name: draft for draft in reversed(DRAFTS)}
SAMPLE = [draft if draft is FIRST[draft.name] else slowly(draft) for draft in DRAFTS]


def empty(draft):
    return replace(draft, rows=((),) * len(draft.rows))


def test_many_named_schedules_can_be_edited():
    assert len({draft.name for draft in DRAFTS}) >= 12


@pytest.mark.parametrize(
    "draft", SAMPLE, ids=lambda draft: f"{draft.name} {len(draft.rows)}"
)
def test_any_schedule_is_built_action_by_action_in_the_order_of_its_walk_and_each_was_a_choice(
    draft,
):
    built = empty(draft)
    for rank, action in complete_walk(draft.whole).order():
        chosen = {choice.action: choice.is_ready for choice in built.choices()[rank]}
        assert chosen.get(action, True), f"{action} is not ready"
        assert built.refusal(rank, action) is None
        built = built.placed(rank, action)
    assert (
        built == draft and not built.missing and all(not row for row in built.choices())
    )


@given(st.sampled_from(DRAFTS), st.data())
def test_whatever_is_chosen_the_draft_stays_legal_and_ends(draft, data):
    built = empty(draft)
    kinds = data.draw(st.sampled_from(["FB", "FIW"]))
    while built.missing:
        assert built.problem() is None
        ready = [
            (rank, each.action)
            for rank, row in enumerate(built.choices())
            for each in row
            if each.is_ready and each.action.kind in kinds
        ]
        built = built.placed(*data.draw(st.sampled_from(ready)))
    verify(built.whole)


@given(st.sampled_from(DRAFTS), st.data())
def test_a_choice_is_ready_exactly_if_placing_it_is_not_refused(draft, data):
    order = list(complete_walk(draft.whole).order())
    built = empty(draft)
    for rank, action in order[: data.draw(st.integers(0, len(order)))]:
        built = built.placed(rank, action)
    for rank, row in enumerate(built.choices()):
        for action, is_ready in row:
            assert is_ready == (built.refusal(rank, action) is None), (
                rank,
                str(action),
            )


@given(st.sampled_from(DRAFTS), st.data())
def test_what_is_added_behind_a_draft_does_not_change_its_times(draft, data):
    costs = Costs(forward=2, latency=0.5)
    timeline = simulate(draft.whole, costs)
    time = data.draw(st.floats(0, timeline.makespan))
    cut = draft.cut(timeline, time)
    again = simulate(cut.whole, costs)
    for kept, row, spans in zip(cut.rows, timeline.spans, again.spans):
        assert spans[: len(kept)] == row[: len(kept)]
        assert all(span.start < time for span in spans[: len(kept)]) and (
            len(kept) == len(row) or row[len(kept)].start >= time
        )
    assert cut.problem() is None


def test_the_last_action_of_a_rank_is_taken_back_unless_another_needs_it():
    draft = Draft.of(schedules.one_f_one_b(2, 2))
    assert [str(a) for a in draft.without_last(0).rows[0]] == ["0F0", "0F1", "0B0"]
    with pytest.raises(
        ScheduleError, match="1B1 cannot be taken back before 0B1, which needs it"
    ):
        draft.without_last(1)
    with pytest.raises(ScheduleError, match="Rank 1 has no action"):
        empty(draft).without_last(1)


def placed(draft, *words):
    for word in words:
        rank, cell = word.split(":")
        draft = draft.placed(int(rank), Action.parse(cell))
    return draft


@pytest.mark.parametrize(
    ("before", "rank", "cell", "code", "sentence"),
    [
        (
            (),
            1,
            "1F0",
            "order",
            "Rank 1, position 0: 1F0 comes before 0F0, which it needs.",
        ),
        (
            (),
            0,
            "0B0",
            "order",
            "Rank 0, position 0: 0B0 comes before 0F0, which it needs.",
        ),
        (
            ("0:0F0",),
            0,
            "0B0",
            "order",
            "Rank 0, position 1: 0B0 comes before 1B0, which it needs.",
        ),
        (
            (),
            0,
            "1F0",
            "placement",
            "Rank 0, position 0: 1F0 is on the wrong rank; stage 1 is on rank 1.",
        ),
        (
            ("0:0F0",),
            0,
            "0F0",
            "duplicate",
            "Rank 0, position 1: 0F0 is a duplicate of position 0.",
        ),
        (
            (),
            0,
            "5F0",
            "out-of-range",
            "Rank 0, position 0: 5F0 names stage 5; there are 2, counted from 0.",
        ),
        (
            (),
            0,
            "0F7",
            "out-of-range",
            "Rank 0, position 0: 0F7 names microbatch 7; there are 2, counted from 0.",
        ),
        (
            ("0:0F0", "1:1F0", "1:1B0"),
            1,
            "1I0",
            "unexpected",
            "Rank 1, position 2: 1I0 comes in addition to 1B0, which includes I and W.",
        ),
    ],
)
def test_a_wrong_action_is_refused_with_the_verifiers_sentence(
    before, rank, cell, code, sentence
):
    draft = placed(Draft("mine", (0, 1), 2, ((), ())), *before)
    problem = draft.refusal(rank, Action.parse(cell))
    assert (problem.code, problem.message) == (code, sentence)


def test_the_limit_of_memory_refuses_a_forward_but_not_what_is_still_to_come():
    draft = placed(Draft("mine", (0, 1), 3, ((), ())), "0:0F0", "0:0F1")
    problem = draft.refusal(0, Action.parse("0F2"), memory_limit=2)
    assert (problem.code, problem.step) == (
        "memory",
        2,
    ) and "it holds 3 (stage, microbatch) pairs" in problem.message
    assert draft.problem(2) is None and draft.problem(1).step == 1


def test_a_text_that_fits_keeps_the_size_and_any_other_has_its_own():
    draft = Draft.of(schedules.one_f_one_b(2, 4))
    assert draft.written("rank 0: 0F0\nrank 1:").num_microbatches == 4
    assert draft.written("0F0 0F1\n1F0").rows[0][1] == Action(0, ActionKind.FORWARD, 1)
    other = draft.written(schedules.gpipe(3, 2).to_csv())
    assert (other.placement, other.num_microbatches) == ((0, 1, 2), 2)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (schedules.chimera(4, 4), "replicas"),
        (schedules.forward_only(2, 2), "does not train all"),
        (schedules.lower(schedules.gpipe(2, 2)), "SEND and RECV"),
        (schedules.seq1f1b(2, 2), "slices"),
        (schedules.freeze_stages(schedules.gpipe(2, 2), [0]), "does not train all"),
    ],
)
def test_what_cannot_be_placed_by_hand_is_refused(table, words):
    with pytest.raises(ScheduleError, match=words):
        Draft.of(table)


def test_a_schedule_that_is_too_large_to_be_drawn_at_each_edit_is_refused():
    with pytest.raises(
        ScheduleError, match="24,000 actions; the editor takes at most 20,000"
    ):
        Draft("mine", tuple(range(80)), 100, ((),) * 80)
