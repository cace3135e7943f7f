"""The verifier against a second opinion: a token game over sets of facts, written from
the rules alone.

They must agree in both directions: a verifier that refuses too much is as wrong as one
that accepts too much.
"""

from collections import Counter
from dataclasses import replace
from itertools import permutations, product
from math import comb

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from minipipe import schedules
from minipipe.core.schedules.action import Action, ActionKind
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.core.schedules.analysis.verifier import verify
from minipipe.errors import ScheduleError
from minipipe.schedules import schedule_of_text
from minipipe.schedules.analysis.data_parallel import data_parallel
from tests.launch import slowly
from tests.schedules.analysis.second_opinion import TAKERS, is_legal
from tests.schedules.sliced_tables import sliced_schedules
from tests.strategies import (
    could_be_joined,
    examples,
    named_schedules,
    replicated_schedules,
    table,
    updated_schedules,
    with_offloads,
)


def is_accepted(schedule):
    try:
        verify(schedule)
    except ScheduleError:
        return False
    return True


# -- the second opinion ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("legal", "text"),
    [
        (True, "0F0 0B0\n1F0 1B0"),
        (False, "0B0 0F0\n1F0 1B0"),
        (False, "0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0"),
        (False, "0F0 0B0\n1F0"),
        (False, "0F0 0I0\n1F0 1B0"),
        (True, "0F0 0I0 0W0\n1F0 1B0"),
        (False, "0F0 0W0 0I0\n1F0 1B0"),
        (True, "0F0 0F1\n1F0 1F1"),
        (True, "0F0 0SEND_F0 0RECV_B0 0B0\n1RECV_F0 1F0 1B0 1SEND_B0"),
        (False, "0F0 0SEND_F0 0B0 0RECV_B0\n1RECV_F0 1F0 1B0 1SEND_B0"),
        (False, "0F0 0SEND_F0 0RECV_B0 0B0\n1RECV_F0 1F0 1SEND_B0 1B0"),
        (True, "0F0 0O0 0F1 0L0 0R0 0B0 0R1 0B1"),
        (False, "0F0 0O0 0F1 0L0 0B0 0R0 0R1 0B1"),
        (False, "0F0 0O0 0F1 0B0 0B1"),
        # A later slice needs the keys and values of the earlier ones of its sequence.
        (True, "0F0.0 0F0.1 0O0.0 0L0.0 0B0.1 0B0.0"),
        (False, "0F0.0 0O0.0 0F0.1 0L0.0 0B0.1 0B0.0"),
        (False, "0F0.0 0F0.1 0O0.0 0B0.1 0L0.0 0B0.0"),
        (True, "0F0.0 0F0.1 0O0.1 0L0.1 0B0.1 0B0.0"),
        (True, "0F0 (0F1;0B0)OVERLAP_F_B 0B1\n1F0 1B0 1F1 1B1"),
        (False, "0F0 (0F1;0B0)OVERLAP_F_B 0B1\n1F0 1F1 1B0 1B1"),
        (False, "(0F0;0B0)OVERLAP_F_B 0F1 0B1\n1F0 1B0 1F1 1B1"),
        (True, "0F0 0F1 0B0 0U0 0B1 0U1"),
        (False, "0F0 0F1 0B0 0U1 0B1"),
        (False, "0F0 0F1 0B0 0B1 0U0"),
        (True, "0F0 0B0 0REDUCE_GRAD0 0U0\n0F1 0B1 0REDUCE_GRAD1 0U1"),
        (False, "0F0 0B0 0U0 0REDUCE_GRAD0\n0F1 0B1 0REDUCE_GRAD1 0U1"),
        (False, "0F0 0REDUCE_GRAD0 0B0\n0F1 0B1 0REDUCE_GRAD1"),
        (False, "0F0 0B0 0U0\n0F1 0B1 0U1"),
        (
            False,
            (
                "0F0 1F0 1B0 0B0 1REDUCE_GRAD0 0REDUCE_GRAD0\n0F1 1F1 1B1 0B1 "
                "0REDUCE_GRAD1 1REDUCE_GRAD1"
            ),
        ),
        # Two neighbours that both send first: each would block until the other
        # receives.
        (
            False,
            (
                "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1\n1RECV_F0 1F0 "
                "1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1"
            ),
        ),
    ],
)
def test_the_second_opinion_is_right_where_one_can_see_it(legal, text):
    assert is_legal(schedule_of_text(text)) is legal


# -- all orders of small programs ------------------------------------------------------


def orders(schedule):
    for programs in product(*(permutations(row) for row in schedule.actions)):
        yield table(
            "any order",
            schedule.placement,
            schedule.num_microbatches,
            programs,
            schedule.num_slices,
        )


@pytest.mark.parametrize(
    ("text", "num_legal"),
    [
        # One rank, two microbatches: any interleaving of two chains, C(4, 2) and C(6,
        # 3).
        ("0F0 0F1 0B0 0B1", comb(4, 2)),
        slowly("0F0 0F1 0I0 0I1 0W0 0W1", comb(6, 3)),
        # Forwards alone may go in any order on either rank.
        ("0F0 0F1\n1F0 1F1", 4),
        # Two ranks. If rank 0 begins F0 B0, rank 1 must do the same; if it begins F0
        # F1, rank 1 may do any of its C(4, 2) orders, and rank 0 may end in two ways.
        # Twice, for the names of the microbatches.
        slowly("0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1", 2 * (1 + 2 * 6)),
        # One path through everything: only one order of each rank.
        ("0F0 2F0 2B0 0B0\n1F0 1B0", 1),
        slowly("0F0 0SEND_F0 0RECV_B0 0B0\n1RECV_F0 1F0 1B0 1SEND_B0", 1),
        # W may stand before or behind the SEND of its I.
        slowly("0F0 0SEND_F0 0RECV_B0 0B0\n1RECV_F0 1F0 1I0 1SEND_B0 1W0", 2),
        # Two slices: F0.0 F0.1 B0.1 B0.0 and nothing else; W0.1 may run before, between
        # or behind I0.0 and W0.0.
        ("0F0.0 0F0.1 0B0.1 0B0.0", 1),
        slowly("0F0.0 0F0.1 0I0.1 0W0.1 0I0.0 0W0.0", 3),
        # O and L of the first slice may only be side by side, between F0.1 and B0.1, or
        # before F0.1 or behind B0.1.
        slowly("0F0.0 0F0.1 0O0.0 0L0.0 0B0.1 0B0.0", 3),
        # Two sequences in two slices, forward only, on two ranks: C(4, 2) mergers of
        # two chains on each.
        slowly("0F0.0 0F0.1 0F1.0 0F1.1\n1F0.0 1F0.1 1F1.0 1F1.1", 36),
        # A rendezvous ties the orders: the messages pass in one order at both ends,
        # half of C(4, 2)² pairs.
        ("0F0 0SEND_F0 0F1 0SEND_F1\n1RECV_F0 1F0 1RECV_F1 1F1", 6 * 6 // 2),
    ],
)
def test_of_all_orders_of_a_small_program_both_accept_the_same(text, num_legal):
    verdicts = Counter()
    for schedule in orders(schedule_of_text(text)):
        legal = is_legal(schedule)
        assert is_accepted(schedule) is legal, str(schedule)
        verdicts[legal] += 1
    assert verdicts[True] == num_legal


# -- mutants of larger programs --------------------------------------------------------


def joined(draw, mutant):
    """Join some forwards with whatever is behind them, mostly with what they can be
    joined with.
    """
    forwards = [
        action
        for row in mutant.actions
        for action in row
        if action.kind is ActionKind.FORWARD
    ]
    found = draw(
        st.sampled_from([could_be_joined(mutant), could_be_joined(mutant), forwards])
    )
    return (
        replace(mutant, overlaps=draw(st.sets(st.sampled_from(found))))
        if found
        else mutant
    )


def mutate(draw, programs, kinds, num_stages, num_microbatches):
    """Change something at a place that is drawn; nothing, where nothing is left."""
    rank = draw(st.integers(0, len(programs) - 1))
    row = programs[rank]
    if not row:
        return
    step = draw(st.integers(0, len(row) - 1))
    stage, kind, k = row[step]
    act = draw(
        st.sampled_from(
            [
                "swap",
                "swap",
                "neighbours",
                "drop",
                "duplicate",
                "move",
                "kind",
                "stage",
                "microbatch",
            ]
        )
    )
    if act == "swap":
        other = draw(st.integers(0, len(row) - 1))
        row[step], row[other] = row[other], row[step]
    elif act == "neighbours":
        row[step - 1], row[step] = row[step], row[step - 1]
    elif act == "drop":
        row.pop(step)
    elif act == "duplicate":
        row.insert(draw(st.integers(0, len(row))), row[step])
    elif act == "move":
        target = draw(st.sampled_from(programs))
        action = row.pop(step)
        target.insert(draw(st.integers(0, len(target))), action)
    elif act == "kind":
        row[step] = Action(stage, draw(st.sampled_from(kinds)), k)
    elif act == "stage":
        row[step] = Action(draw(st.integers(-1, num_stages)), kind, k)
    else:
        row[step] = Action(stage, kind, draw(st.integers(-1, num_microbatches)))


def split_some(draw, schedule):
    """Write some B as I and, later or at once, W."""
    programs = []
    for row in schedule.actions:
        program = list(row)
        for action in row:
            if action.kind is ActionKind.BACKWARD and draw(st.booleans()):
                step = program.index(action)
                program[step] = Action(
                    action.stage, ActionKind.BACKWARD_INPUT, action.microbatch
                )
                half = Action(
                    action.stage, ActionKind.BACKWARD_WEIGHT, action.microbatch
                )
                later = [
                    a
                    for a in program
                    if a.kind in TAKERS and a.stage == half.stage and a[2] >= half[2]
                ]
                # the first of them takes it
                until = program.index(later[0]) if later else len(program)
                program.insert(draw(st.integers(step + 1, until)), half)
        programs.append(program)
    return table(
        schedule.name,
        schedule.placement,
        schedule.num_microbatches,
        programs,
        schedule.num_slices,
    )


@st.composite
def originals(draw):
    """Small legal schedules without messages, some with split backwards, replicas,
    slices, forward only, or on a V.
    """
    special = draw(st.integers(0, 7))
    if special == 0:
        return draw(replicated_schedules(max_ranks=2, max_microbatches=2))[0]
    if special == 1:
        return draw(updated_schedules(max_ranks=2, max_microbatches=3))
    if special == 2:
        return split_some(draw, draw(sliced_schedules()))
    if special == 3:
        return data_parallel(draw(sliced_schedules(max_ranks=2, max_sequences=1)), 2)
    _, built = draw(named_schedules(max_ranks=3, max_microbatches=4, max_chunks=2))
    if draw(st.integers(0, 9)) == 0:
        p = built.num_ranks
        placement = draw(
            st.sampled_from(
                [(*range(p), *reversed(range(p))), (*range(p), p - 1), (0, *range(p))]
            )
        )
        built = schedules.forward_only_over(placement, built.num_microbatches)
    split = split_some(draw, built)
    if draw(st.booleans()):
        return split
    offloaded = with_offloads(draw, split)
    # what a later slice reads may be offloaded
    assume(split.num_slices == 1 or is_legal(offloaded))
    return offloaded


@st.composite
def mutants(draw, lowered):
    original = draw(originals())
    programs = [list(row) for row in (lower(original) if lowered else original).actions]
    kinds = [kind for kind in ActionKind if lowered or not kind.is_communication]
    for _ in range(draw(st.integers(0, 3))):
        mutate(draw, programs, kinds, original.num_stages, original.num_microbatches)
    mutant = table(
        "mutant",
        original.placement,
        original.num_microbatches,
        programs,
        original.num_slices,
    )
    return joined(draw, mutant) if draw(st.booleans()) else mutant


@examples(100)
@given(originals())
def test_both_accept_what_mutants_are_made_of(original):
    assert is_legal(original) and is_accepted(original)
    assert is_legal(lower(original)) and is_accepted(lower(original))


@examples(100)
@given(st.data())
def test_both_accept_offloads_of_slices(data):
    """O and L once stood around a later slice, which needs what O took away."""
    original = with_offloads(data.draw, data.draw(sliced_schedules(max_ranks=2)))
    assert is_legal(original) and is_accepted(original)
    assert is_legal(lower(original)) and is_accepted(lower(original))


@pytest.mark.parametrize("lowered", [False, True], ids=["schedule", "program"])
@examples(400)
@given(st.data())
def test_both_agree_on_any_mutant(lowered, data):
    mutant = data.draw(mutants(lowered=lowered))
    legal = is_legal(mutant)
    event(
        ("legal" if legal else "illegal")
        + (" with overlaps" if mutant.overlaps else "")
    )
    assert is_accepted(mutant) is legal
    if legal and not lowered:
        assert is_legal(lower(mutant)) and is_accepted(lower(mutant))


@examples(200)
@given(mutants(lowered=False))
def test_every_problem_points_at_a_cell_that_exists_or_at_the_rank_that_lacks_one(
    mutant,
):
    try:
        verify(mutant)
    except ScheduleError as error:
        event(error.code)
        for problem in error.problems:
            assert 0 <= problem.rank < mutant.num_ranks
            # a U that is missing is missed by the gradient that it applies
            if problem.step is None:
                assert problem.code == "missing"
            else:
                assert (
                    str(mutant.actions[problem.rank][problem.step]) in problem.message
                )
        marks = str(error).count(">")
        assert marks == str(error).count("<")
        waits_in_a_cycle = error.code in ("deadlock", "rendezvous-deadlock")
        assert (
            marks >= 2
            if waits_in_a_cycle
            else marks == (error.problems[0].step is not None)
        )


@pytest.mark.parametrize(
    "schedule",
    [
        slowly(schedules.one_f_one_b(3, 4)),
        lower(schedules.one_f_one_b(3, 2)),
        # Three ranks in a row: the middle one must not answer a send before it has
        # something to answer with.
        lower(schedules.sequential(3, 2)),
        slowly(
            lower(
                schedule_of_text(
                    "0F0 3F0 0F1 3F1 3I0 0I0 3I1 0I1 0W0 3W0 0W1 3W1\n1F0 2F0 1F1 "
                    "2F1 2B0 1B0 2B1 1B1"
                )
            )
        ),
    ],
    ids=["1f1b", "lowered 1f1b", "lowered sequential", "lowered V"],
)
def test_every_single_swap_is_judged_alike(schedule):
    verdicts = Counter()
    for rank, row in enumerate(schedule.actions):
        for first, second in product(range(len(row)), repeat=2):
            if first < second:
                programs = [list(row) for row in schedule.actions]
                programs[rank][first], programs[rank][second] = row[second], row[first]
                swapped = table(
                    "swapped",
                    schedule.placement,
                    schedule.num_microbatches,
                    programs,
                    schedule.num_slices,
                )
                legal = is_legal(swapped)
                assert is_accepted(swapped) is legal, str(swapped)
                verdicts[legal] += 1
    assert verdicts[True] > 0 and verdicts[False] > 5


@pytest.mark.slow
def test_every_schedule_is_legal_by_the_second_opinion(every_schedule):
    for schedule in every_schedule:
        assert is_legal(schedule), str(schedule)
        assert is_legal(lower(schedule)), str(schedule)
