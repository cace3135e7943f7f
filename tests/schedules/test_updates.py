"""REDUCE_GRAD and U: which gradients they take, what is wrong with them, and which
versions of weights they make.
"""

from math import ceil

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from minipipe import Costs, Schedule, schedules, verify
from minipipe.core.flow import flow_of
from minipipe.core.memory import pairs_of
from minipipe.core.schedules.action import REDUCE_GRAD, ActionKind, U
from minipipe.core.schedules.analysis.walk import walk
from minipipe.errors import ScheduleError
from minipipe.schedules import lower
from minipipe.schedules.analysis.copies import applied, copies_held
from minipipe.schedules.analysis.updates import drift, staleness, weight_versions
from minipipe.schedules.transforms import repeat
from tests.schedules.published import most_held
from tests.strategies import examples, updated_schedules

TWO = """
    rank 0: 0F0         0B0 0REDUCE_GRAD0 0U0
    rank 1:     1F0 1B0     1REDUCE_GRAD0 1U0
    rank 2: 0F1         0B1 0REDUCE_GRAD1 0U1
    rank 3:     1F1 1B1     1REDUCE_GRAD1 1U1
"""


def refusal(schedule, **limits):
    with pytest.raises(ScheduleError) as caught:
        verify(
            schedule
            if isinstance(schedule, Schedule)
            else Schedule.from_text(schedule),
            **limits,
        )
    return caught.value


# -- text ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [TWO, "F0 F1 B0 U0 B1 U1", "0F0 0B0 0REDUCE_GRAD0"])
def test_sums_and_updates_survive_text_csv_and_lowering(text):
    schedule = Schedule.from_text(text)
    verify(schedule)
    program = lower(schedule)
    verify(program)
    assert program.schedule == schedule
    for table in (schedule, program):
        for read, written in (
            (type(table).from_text, table.to_text()),
            (type(table).from_csv, table.to_csv()),
        ):
            assert read(written, name=table.name) == table


def test_a_sum_without_its_last_microbatch_as_pytorch_writes_it_is_refused_and_never_dropped_unasked():
    error = refusal_of_text("0F0,0B0,0REDUCE_GRAD")
    assert error.code == "syntax"
    assert "Line 1, cell 3: 0REDUCE_GRAD shards parameters" in str(error)
    assert (
        "Name the last microbatch of the sum, as in 0REDUCE_GRAD3; leave it out; "
        "or read with"
    ) in str(error)
    assert Schedule.from_csv(
        "0F0,0B0,0REDUCE_GRAD", ignore_sharding=True
    ) == Schedule.from_csv("0F0,0B0")
    kept = Schedule.from_csv("0UNSHARD,0F0,0B0,0REDUCE_GRAD0", ignore_sharding=True)
    assert list(map(str, kept.actions[0])) == ["0F0", "0B0", "0REDUCE_GRAD0"]


def refusal_of_text(text):
    with pytest.raises(ScheduleError) as caught:
        Schedule.from_csv(text)
    return caught.value


# -- what they take --------------------------------------------------------------------


def taken(schedule, rank, kind):
    """Return each action of a kind, REDUCE_GRAD or U, with its position, and the
    microbatches that it takes.
    """
    value = {REDUCE_GRAD: "sum", U: "weights"}[kind]
    found = applied(pairs_of(flow_of(schedule), with_away=True), rank, value)
    return [
        (schedule.actions[rank][position], position, list(numbers))
        for position, numbers in found.items()
    ]


def test_each_takes_what_no_earlier_one_took_of_its_own_row():
    schedule = Schedule.from_text(
        "0F0 0F2 0F5 0B0 0U0 0B2 0B5 0U5 \n 0F1 0F3 0F4 0B1 0B3 0B4 0U4"
    )
    assert [
        [(str(action), numbers) for action, _, numbers in taken(schedule, rank, U)]
        for rank in range(2)
    ] == [
        [("0U0", [0]), ("0U5", [2, 5])],
        [("0U4", [1, 3, 4])],
    ]


def test_they_take_gradients_by_their_numbers_in_whatever_order_these_come():
    schedule = Schedule.from_text("0F0 0F1 0F2 0B2 0B0 0U0 0B1 0U2")
    verify(schedule)
    assert [microbatches for _, _, microbatches in taken(schedule, 0, U)] == [
        [0],
        [1, 2],
    ]
    assert schedules.staleness(schedule) == ((0, 1, 1),)
    assert [after.sums for _, after in copies_held(flow_of(schedule), 0)] == [
        0,
        0,
        0,
        1,
        2,
        1,
        1,
        0,
    ]


# -- mistakes --------------------------------------------------------------------------


def marked(text, code):
    error = refusal(text)
    assert error.code == code, str(error)
    return str(error)


def test_an_update_before_its_gradient_is_marked():
    assert marked("0F0 0F1 0B0 0U1 0B1", "order") == (
        "[order] Rank 0, position 3: 0U1 comes before 0B1 (position 4), whose "
        "gradient it applies.\n\n"
        "rank 0:  0F0   0F1   0B0  >0U1<  0B1"
    )
    # I has no gradient of weights
    assert "before 0W0 (position 3)" in marked("0F0 0I0 0U0 0W0", "order")


def test_a_sum_before_the_last_backward_is_marked():
    """Replicas that sum before their last backward train on a part of the batch
    (torchrec PR 4758).
    """
    text = TWO.replace("0B1 0REDUCE_GRAD1", "0REDUCE_GRAD1 0B1")
    message = marked(text, "order")
    assert (
        "Rank 2, position 1: 0REDUCE_GRAD1 comes before 0B1 (position 2), whose "
        "gradient it reduces."
    ) in message
    assert ">0REDUCE_GRAD1<" in message
    assert "comes before 0B0 (position 4)" in marked(
        "0F0 0F1 0B1 0REDUCE_GRAD1 0B0", "order"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "0F0 0F1 0B1 0U1 0B0",
            (
                "position 3: 0U1 skips 0B0 (position 4): it applies all gradients of "
                "microbatches up"
            ),
        ),
        (
            "0F0 0F1 0B0 0B1 0U0",
            "position 3: no U applies the gradient of 0B1; the last is 0U0.",
        ),
        (
            "0F0 0F1 0B0 0REDUCE_GRAD0 0B1",
            "no REDUCE_GRAD reduces the gradient of 0B1; the last is 0REDUCE_GRAD0.",
        ),
    ],
)
def test_a_gradient_that_no_update_or_sum_takes_is_marked(text, words):
    assert words in marked(text, "missing")


def test_an_update_of_a_stage_with_replicas_needs_the_sum_of_the_same_gradients():
    message = marked(TWO.replace("1REDUCE_GRAD0 1U0", "1U0 1REDUCE_GRAD0"), "missing")
    assert (
        "Rank 1, position 2: 1U0 comes without 1REDUCE_GRAD0 before it; stage 1 "
        "has replicas on ranks 1 and 3"
    ) in (message)
    assert "which must all-reduce their gradients first" in marked(
        "0F0 0B0 0U0 \n 0F1 0B1 0U1", "missing"
    )
    verify(Schedule.from_text("0F0 0B0 0U0 \n 1F0 1B0 1U0"))  # one replica needs none
    verify(
        Schedule.from_text(
            "0F0 0B0 0REDUCE_GRAD0 \n 0F1 0B1 0REDUCE_GRAD1 \n 1F0 1B0 1F1 1B1"
        )
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "0F0 0B0 0U0 \n 1F0 1B0",
            "1U0 is missing on rank 1: either all stages have a U, or none.",
        ),
        (
            "0F0 0B0 0REDUCE_GRAD0 \n 0F1 0B1",
            "0REDUCE_GRAD1 is missing on rank 1: either all stages have",
        ),
        (
            "0F0 0B0 0REDUCE_GRAD0 \n 0F1 0F2 0B1 0REDUCE_GRAD1 0B2 0REDUCE_GRAD2",
            "A REDUCE_GRAD is missing on rank 0: the partner of 0REDUCE_GRAD2.",
        ),
    ],
)
def test_stages_and_replicas_have_sums_and_updates_alike(text, words):
    assert words in marked(text, "missing")


def test_other_mistakes_have_the_codes_that_other_kinds_have():
    assert ">0U0<" in marked("0F0 0B0 0U0 0U0", "duplicate")
    assert "position 5: 0U0 applies no gradient" in marked(
        "0F0 0F1 0B0 0B1 0U1 0U0", "order"
    )
    assert "0U1 is on another replica than its forward" in marked(
        "0F0 0B0 0U1 \n 0F1 0B1 0U0", "placement"
    )
    frozen = schedules.freeze_stages(schedules.gpipe(2, 1), [0]).actions
    rows = [[*map(str, frozen[0]), "0U0"], [*map(str, frozen[1]), "1U0"]]
    error = refusal(Schedule("mine", (0, 1), 1, rows, frozenset([0])))
    assert (error.code, "0U0 is needless: stage 0 is frozen" in str(error)) == (
        "frozen",
        True,
    )
    assert marked("0F0 0U0", "order")  # nothing to apply without a backward


def test_replicas_that_come_to_their_sums_in_different_orders_are_a_deadlock():
    """The first sum of each replica would meet the second of the other (Megatron-LM
    issue 107).
    """
    rows = "0F0 1F0 1B0 0B0 1REDUCE_GRAD0 0REDUCE_GRAD0 \n 0F1 1F1 1B1 0B1 {} {}"
    verify(Schedule.from_text(rows.format("1REDUCE_GRAD1", "0REDUCE_GRAD1")))
    message = marked(rows.format("0REDUCE_GRAD1", "1REDUCE_GRAD1"), "deadlock")
    assert (
        "rank 0 cannot run 1REDUCE_GRAD0 (position 4) before 1REDUCE_GRAD1, "
        "which rank 1 runs later; "
        "rank 1 cannot run 0REDUCE_GRAD1 (position 4) before 0REDUCE_GRAD0, "
        "which rank 0 runs later."
    ) in message
    assert ">1REDUCE_GRAD0<" in message and ">0REDUCE_GRAD1<" in message


def test_a_sum_is_one_event_in_the_round_after_the_last_of_its_replicas():
    rows = [
        "0F0 0B0 0REDUCE_GRAD0",
        "0F1 0B1 0F2 0B2 0REDUCE_GRAD2",
        "0F3 0F4 0F5 0B3 0B4 0B5 0REDUCE_GRAD5",
    ]
    found = walk(Schedule.from_text(" \n ".join(rows)))
    assert not found.blocked and found.rounds[6] == [0, 1, 2]
    # a replica never comes
    stuck = walk(Schedule.from_text(" \n ".join([*rows, "0F6 0B6"]))).blocked
    assert [(blocked.rank, str(blocked.awaited)) for blocked in stuck] == [
        (0, "0REDUCE_GRAD0"),
        (1, "0REDUCE_GRAD2"),
        (2, "0REDUCE_GRAD5"),
    ]


# -- versions --------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1, 2, 4, 8])
def test_pipedream_holds_p_minus_s_versions_and_its_staleness_is_p_minus_1_minus_s(p):
    """Narayanan et al. 2019, section 3.3: the first of p stages keeps p versions of its
    weights, the last one.
    """
    schedule = schedules.pipedream(p, 3 * p)
    verify(schedule, max_versions=p, max_staleness=p - 1)
    assert most_held(schedule, "versions") == [p - s for s in range(p)]
    assert schedules.staleness(schedule) == tuple(
        tuple(min(k, p - 1 - s) for k in range(3 * p)) for s in range(p)
    )
    assert most_held(schedule, "sums") == [1] * p


@pytest.mark.parametrize(("p", "m"), [(4, 4), (4, 8), (8, 8), (3, 5)])
def test_2bw_runs_each_batch_with_the_version_before_the_last_on_every_stage(p, m):
    """Narayanan et al. 2021, section 3.1: microbatch k, from 1, has version
    max(floor((k - 1) / m) - 1, 0).
    """
    schedule = schedules.two_buffered(p, 5 * m, m)
    verify(schedule, max_versions=2, max_staleness=1)
    assert (
        schedules.weight_versions(schedule)
        == (tuple(max(k // m - 1, 0) for k in range(5 * m)),) * p
    )
    assert (
        schedules.staleness(schedule) == (tuple(int(k >= m) for k in range(5 * m)),) * p
    )
    assert max(most_held(schedule, "versions")) == 2 == max(most_held(schedule, "sums"))


@pytest.mark.parametrize("p", [2, 4, 8])
def test_vertical_sync_has_one_version_for_all_stages_of_a_microbatch(p):
    """Narayanan et al. 2019, section 3.3: the weights of the version that the first
    stage has.
    """
    schedule = schedules.vertical_sync(p, 3 * p)
    assert (
        schedules.weight_versions(schedule)
        == (tuple(max(k - p + 1, 0) for k in range(3 * p)),) * p
    )
    assert (
        schedules.staleness(schedule)
        == (tuple(min(k, p - 1) for k in range(3 * p)),) * p
    )
    assert most_held(schedule, "sums") == list(range(1, p + 1))


@pytest.mark.parametrize("p", [4, 8])
@pytest.mark.parametrize("a", range(1, 9))
def test_paci_drifts_by_at_most_p_minus_1_over_a_updates(p, a):
    """Elam et al. 2026: an update every a microbatches bounds the versions that a
    microbatch crosses.
    """
    drift = schedules.drift(schedules.paci(p, 5 * p, a))
    assert max(map(max, drift)) == ceil((p - 1) / a)
    assert max(drift[-1]) == 0


def test_a_synchronous_schedule_has_one_version_and_no_staleness():
    one = schedules.zb_h2(4, 8)
    assert set(sum(schedules.weight_versions(one) + schedules.staleness(one), ())) == {
        0
    }
    verify(one, max_versions=1, max_staleness=0)


def test_limits_name_the_first_action_beyond_them():
    schedule = schedules.pipedream(3, 5)
    error = refusal(schedule, max_versions=2)
    assert [(p.code, p.rank, p.step) for p in error.problems] == [("staleness", 0, 7)]
    assert (
        "Rank 0, position 7: with 0U1 stage 0 has 3 versions of its weights; the "
        "limit is 2."
    ) in str(error)
    error = refusal(schedule, max_staleness=1)
    assert (
        "Rank 0, position 2: 0F2 runs with weights whose staleness is 2 when its "
        "gradient is applied;"
    ) in str(error)
    for wrong in ({"max_versions": 0}, {"max_staleness": -1}, {"max_versions": 1.5}):
        assert refusal(schedule, **wrong).code == "value"


def test_a_memory_limit_counts_versions_and_sums_where_the_weights_are_given():
    schedule, memory = schedules.pipedream(3, 6), Costs(activation=2).memory(3)
    verify(schedule, memory_limit=[6, 4, 2], memory=memory)
    verify(schedule, memory_limit=[26, 14, 2], memory=memory, weights=[10, 10, 10])
    error = refusal(
        schedule, memory_limit=[25, 14, 2], memory=memory, weights=[10, 10, 10]
    )
    assert [(p.code, p.rank, p.step) for p in error.problems] == [("memory", 0, 8)]
    assert "with 0F4 it holds 26; the limit is 25." in str(error)
    assert "weights is [10]; expected an amount" in str(
        refusal(schedule, memory_limit=9, weights=[10])
    )


def test_two_swapped_versions_are_noticed():
    """In 2BW, the update of a batch one F too late runs that F with the version
    before.
    """
    right = schedules.two_buffered(2, 6, 2)
    row = list(right.actions[0])
    at = row.index(schedules.Action.parse("0U1"))
    row[at], row[at + 1] = row[at + 1], row[at]
    wrong = Schedule("mine", right.placement, 6, [row, right.actions[1]])
    verify(wrong)
    assert schedules.weight_versions(wrong)[0] != schedules.weight_versions(right)[0]
    assert refusal(wrong, max_staleness=1).code == "staleness"


def test_steps_repeat_with_their_updates():
    steps = repeat(Schedule.from_text(TWO), 3)
    verify(steps)
    assert schedules.weight_versions(steps) == ((0, 0, 1, 1, 2, 2),) * 2
    assert set(sum(schedules.staleness(steps), ())) == {0}


@pytest.mark.parametrize("m", [0, 1, 2, 2.5])
def test_2bw_refuses_updates_of_fewer_microbatches_than_ranks(m):
    with pytest.raises(
        ScheduleError,
        match=f"microbatches_per_update is {m}; expected a whole number, at least 3",
    ):
        schedules.two_buffered(3, 9, m)


# -- laws over random updates, alone and on copies -------------------------------------


@examples(100)
@given(updated_schedules())
def test_any_updates_are_legal_and_survive_text_csv_and_lowering(schedule):
    verify(schedule)
    program = lower(schedule)
    verify(program)
    assert program.schedule == schedule
    for table in (schedule, program):
        for read, written in (
            (type(table).from_text, table.to_text()),
            (type(table).from_csv, table.to_csv()),
        ):
            assert read(written, name=table.name) == table


@examples(100)
@given(updated_schedules())
def test_an_update_applies_version_and_staleness_many_updates_after_the_first(schedule):
    """The update that applies a microbatch is number version + staleness of its
    stage.
    """
    versions, stale, drifts = (
        count(schedule) for count in (weight_versions, staleness, drift)
    )
    for rank, row in enumerate(schedule.actions):
        for stage in {action.stage for action in row}:
            updates = [
                found for found in taken(schedule, rank, U) if found[0].stage == stage
            ]
            for number, (_, position, microbatches) in enumerate(updates):
                for k in microbatches:
                    assert versions[stage][k] + stale[stage][k] == number
                    assert drifts[stage][k] <= stale[stage][k]
                    assert (
                        row.index(schedules.Action(stage, ActionKind.FORWARD, k))
                        < position
                    )
    for rank in range(schedule.num_ranks):
        for during, after in copies_held(flow_of(schedule), rank):
            assert (
                1 <= after.versions <= during.versions + 1
                and during.versions <= 1 + schedule.num_microbatches
            )
            assert 0 <= after.sums <= during.sums


def changed(schedule, rank, row):
    rows = [list(row) if r == rank else own for r, own in enumerate(schedule.actions)]
    return Schedule("mutant", schedule.placement, schedule.num_microbatches, rows)


@examples(100)
@given(updated_schedules(), st.data())
def test_a_sum_or_an_update_moved_before_its_last_gradient_is_caught(schedule, data):
    rank = data.draw(
        st.sampled_from([r for r, row in enumerate(schedule.actions) if row])
    )
    row = list(schedule.actions[rank])
    kind = data.draw(
        st.sampled_from(
            [kind for kind in (REDUCE_GRAD, U) if any(a.kind is kind for a in row)]
        )
    )
    action, position, microbatches = data.draw(
        st.sampled_from(taken(schedule, rank, kind))
    )
    last = max(
        at
        for at, (s, other, k) in enumerate(row)
        if s == action.stage and other in ("B", "W") and k in microbatches
    )
    row.insert(data.draw(st.integers(0, last)), row.pop(position))
    codes = ("order", "missing")
    assert refusal(changed(schedule, rank, row)).code in codes


@examples(100)
@given(updated_schedules(), st.data())
def test_the_last_update_of_a_stage_cannot_be_left_out_and_no_number_changed(
    schedule, data
):
    rank = data.draw(
        st.sampled_from([r for r, row in enumerate(schedule.actions) if row])
    )
    row = list(schedule.actions[rank])
    stage = data.draw(st.sampled_from(sorted({action.stage for action in row})))
    *_, (action, position, _) = (
        found for found in taken(schedule, rank, U) if found[0].stage == stage
    )
    others = [k for k in range(schedule.num_microbatches) if k != action.microbatch]
    if data.draw(st.booleans()) and others:
        row[position] = action._replace(microbatch=data.draw(st.sampled_from(others)))
    else:
        row.pop(position)
    mutant = changed(schedule, rank, row)
    assume(U in mutant.kinds)  # without any, the optimiser steps behind the schedule
    error = refusal(mutant)
    assert error.code in ("missing", "placement", "order", "duplicate")
