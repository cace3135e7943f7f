"""Two pipelines in opposite directions: their orders against tables made by other
rules, and the papers' figures.
"""

from collections import Counter
from itertools import product

import numpy as np
import pytest

from minipipe import (
    ActionKind,
    Costs,
    Schedule,
    advise,
    nn,
    schedules,
    simulate,
    verify,
)
from minipipe.schedules import theory
from minipipe.tuning.weighing import candidates, names_left_out
from tests.refusals import refusal


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    """Give tables and sentences all the room that they want."""
    monkeypatch.setenv("COLUMNS", "1000")


UNITS = Costs(1, 0.5, 0.5)  # a whole backward takes as long as a forward
DOUBLE = Costs(1, 1, 1)  # a whole backward takes twice as long


def directed(schedule, pairs=False):
    """Return each rank's row as words: direction, kind and the place of the microbatch
    in its direction, ``down F0``.

    With ``pairs``, joined actions are one, with a ``+`` between them. On rank r, the
    pipeline down runs stage r, and the one up the stage of the opposite rank.
    """
    p, num_down = schedule.num_ranks, (schedule.num_microbatches + 1) // 2
    rows = []
    for rank, row in enumerate(schedule.actions):
        assert {stage for stage, _, _ in row} <= {rank, p - 1 - rank}
        ways = {rank: ("down", 0), p - 1 - rank: ("up", num_down)}
        named = [(*ways[stage], kind, k) for stage, kind, k in row]
        words = [f"{way} {kind}{k - first}" for way, first, kind, k in named]
        for at in reversed(
            [
                at
                for at, action in enumerate(row)
                if pairs and action in schedule.overlaps
            ]
        ):
            words[at : at + 2] = [" + ".join(words[at : at + 2])]
        rows.append(words)
    return rows


# -- Chimera ---------------------------------------------------------------------------


def test_chimera_as_in_the_figure_of_its_paper():
    """Figure 3: four workers, four microbatches. Each direction is 1F1B, and the second
    fills gaps of the first.
    """
    down = """
        rank 0: F0 .  F1 .  .  .  .  B0 .  B1
        rank 1: .  F0 .  F1 .  .  B0 .  B1 .
        rank 2: .  .  F0 .  F1 B0 .  B1 .  .
        rank 3: .  .  .  F0 B0 F1 B1 .  .  .
    """
    rows = [line.split()[2:] for line in down.strip().splitlines()]
    merged = []
    for rank, (own, opposite) in enumerate(zip(rows, reversed(rows))):
        assert all("." in pair for pair in zip(own, opposite))  # never both at once
        slots = [
            (a, rank, 0) if a != "." else (b, 3 - rank, 2)
            for a, b in zip(own, opposite)
            if (a, b) != (".", ".")
        ]
        merged.append(
            " ".join(
                f"{stage}{cell[0]}{int(cell[1]) + first}"
                for cell, stage, first in slots
            )
        )
    assert [
        " ".join(map(str, row)) for row in schedules.chimera(4, 4).actions
    ] == merged
    assert merged[1] == "1F0 2F2 1F1 2F3 2B2 1B0 2B3 1B1"


def test_an_odd_number_of_ranks_would_need_two_actions_in_one_slot():
    """Stage s of p has its F in slot s + 2i. On rank r those are r and p - 1 - r: for
    odd p both even, or both odd.
    """
    for p in range(2, 9):
        slots = [
            {r + 2 * i for i in range(p // 2)}
            & {p - 1 - r + 2 * i for i in range(p // 2)}
            for r in range(p)
        ]
        assert any(slots) == (p % 2 == 1)


def test_of_an_odd_number_of_microbatches_one_more_goes_down():
    for build in (schedules.chimera, schedules.dualpipe, schedules.bitpipe):
        for p, m in ((2, 3), (4, 5), (4, 7), (6, 13)):
            schedule = build(p, m)
            assert [schedule.rank_of(0, k) for k in range(m)] == [0] * (m // 2 + 1) + [
                p - 1
            ] * (m // 2)
            assert all(
                sum(schedule.ranks_of(stage)) == p - 1
                for stage in range(schedule.num_stages)
            )


def test_a_single_microbatch_goes_down_and_makes_no_replicas():
    for build in (schedules.chimera, schedules.dualpipe):
        schedule = build(4, 1)
        assert schedule.placement == (0, 1, 2, 3) and not schedule.has_replicas
    assert schedules.bitpipe(2, 1).placement == (0, 1, 1, 0)
    assert simulate(schedules.chimera(4, 1), DOUBLE).makespan == 12


# -- BitPipe ---------------------------------------------------------------------------


def by_counts(rank, p, num_units):
    """Return a rank's row as the authors' program counts it: forwards and backwards in
    two lists, merged by counts.

    A cell is an arm and a kind. Arm 0 is the way of the pipeline down to its last rank,
    arm 2 its way back; arms 1 and 3 are those of the pipeline up. On the lower half of
    the ranks the two pipelines change places.
    """
    half, is_below = p // 2, rank >= p // 2
    # of its own pipeline, microbatches that come before another's
    near = rank - half + 1 if is_below else half - rank
    own, other, own_back, other_back = (1, 0, 3, 2) if is_below else (0, 1, 2, 3)

    def order(first, second, third, fourth):
        turns = (
            [first] * near + [second, first] * (half - near) + [second, third] * near
        )
        return turns + [fourth, third] * (half - near) + [fourth] * near

    forwards = [f"{arm}F" for arm in order(own, other, other_back, own_back)]
    backwards = [f"{arm}B" for arm in order(own_back, other_back, other, own)]
    warmup = p + half + min(rank, p - 1 - rank)
    pairs = 2 * p - warmup
    row = forwards[:warmup]
    for unit in range(num_units):
        row += [cell for pair in zip(forwards[warmup:], backwards) for cell in pair]
        if unit == num_units - 1:
            return row + backwards[pairs:]
        ahead = warmup - pairs + 1  # until the next unit begins
        row += backwards[pairs : pairs + ahead]
        row += [
            cell for pair in zip(forwards, backwards[pairs + ahead :]) for cell in pair
        ]
        row += forwards[pairs - 1 : warmup]


@pytest.mark.parametrize("p", [2, 4, 6, 8])
@pytest.mark.parametrize("num_units", [1, 2, 3])
def test_bitpipe_is_in_the_order_of_its_authors(p, num_units):
    schedule = schedules.bitpipe(p, num_units * p)
    verify(schedule)
    for rank, row in enumerate(schedule.actions):
        arm = {rank: 0, p - 1 - rank: 1, 2 * p - 1 - rank: 2, p + rank: 3}
        assert [f"{arm[action.stage]}{action.kind}" for action in row] == by_counts(
            rank, p, num_units
        )


def test_each_pipeline_of_bitpipe_is_a_v():
    schedule = schedules.bitpipe(4, 4)
    assert schedule.placement == (
        (0, 3),
        (1, 2),
        (2, 1),
        (3, 0),
        (3, 0),
        (2, 1),
        (1, 2),
        (0, 3),
    )
    assert [schedule.rank_of(stage, 0) for stage in range(8)] == [
        0,
        1,
        2,
        3,
        3,
        2,
        1,
        0,
    ]
    assert [schedule.rank_of(stage, 2) for stage in range(8)] == [
        3,
        2,
        1,
        0,
        0,
        1,
        2,
        3,
    ]


# -- DualPipe --------------------------------------------------------------------------


def by_steps(rank, num_ranks, num_chunks):
    """Return a rank's row as the control flow of ``DualPipe.step`` runs it, its eight
    steps one after the other.

    Two actions that it computes as one have a ``+`` between them. Phase 0 is the
    pipeline down in the first half of the ranks, and the one up in the second half.
    """
    row, pending, count = [], [], Counter()
    ways = ("down", "up") if rank < num_ranks // 2 else ("up", "down")

    def run(kind, phase):
        whole = "B" if kind == "I" else kind
        word = f"{kind}{count[whole, phase]}"
        row.append(f"{ways[phase]} {word}")
        count[whole, phase] += 1
        if kind == "I":
            pending.append(f"{ways[phase]} W{word[1:]}")

    def both(phase):
        run("F", phase)
        run("B", 1 - phase)
        row[-2:] = [f"{row[-2]} + {row[-1]}"]

    def weights():
        row.append(pending.pop(0))

    half_ranks, half_chunks = num_ranks // 2, num_chunks // 2
    half_rank = min(rank, num_ranks - 1 - rank)
    for _ in range((half_ranks - half_rank - 1) * 2):  # step 1
        run("F", 0)
    for _ in range(half_rank + 1):  # step 2
        run("F", 0)
        run("F", 1)
    for _ in range(half_ranks - half_rank - 1):  # step 3, zero bubble
        run("I", 1)
        weights()
        run("F", 1)
    for i in range(half_chunks - num_ranks + half_rank + 1):  # step 4
        # in the middle not as one, against a bubble
        if i == 0 and half_rank == half_ranks - 1:
            run("F", 0)
            run("B", 1)
        else:
            both(0)
        both(1)
    for _ in range(half_ranks - half_rank - 1):  # step 5
        run("B", 1)
        both(1)
    split = False
    for i in range(half_rank + 1):  # step 6, zero bubble from its middle on
        split = split or (i == (half_rank + 1) // 2 and half_rank % 2 == 1)
        run("I" if split else "B", 1)
        split = split or (i == (half_rank + 1) // 2 and half_rank % 2 == 0)
        run("I" if split else "B", 0)
    for _ in range(half_ranks - half_rank - 1):  # step 7, zero bubble
        weights()
        run("I", 0)
    for _ in range(half_rank + 1):  # step 8
        weights()
    assert not pending
    return row


@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_dualpipe_is_the_control_flow_of_its_authors(p):
    for m in {2 * p, 2 * p + 2, 20, 32}:
        schedule = schedules.dualpipe(p, m)
        steps = [by_steps(rank, p, m) for rank in range(p)]
        assert directed(schedule) == [
            [cell for pair in row for cell in pair.split(" + ")] for row in steps
        ], (p, m)
        assert directed(schedules.dualpipe(p, m, joined=True), pairs=True) == steps
        verify(schedule)
        timeline = simulate(schedule, DOUBLE)
        assert set(timeline.peak_activations) == {p + 1}
        assert (
            timeline.makespan == theory.makespan("dualpipe", p, m) == 3 * m + p // 2 - 1
        )


def test_dualpipe_on_eight_ranks_without_overlaps():
    """The figure of DeepSeek-V3's report has 8 ranks and 20 microbatches."""
    assert simulate(schedules.dualpipe(8, 20)).makespan == 63
    assert simulate(schedules.one_f_one_b(8, 20)).makespan == 81


@pytest.mark.parametrize("p", [2, 4, 6, 8])
@pytest.mark.parametrize(
    ("times", "pair"), [((1, 1, 1), 3), ((1, 1, 1), 2), ((2, 2, 1), 4)]
)
def test_the_bubble_of_dualpipe_is_the_published_one(p, times, pair):
    """It is (PP/2 - 1)(F&B + B - 3W), by the README of deepseek-ai/DualPipe, and memory
    is PP + 1.

    The ranks in the middle have it. Others have fewer pairs; where these hide time,
    they work longer and wait less.
    """
    forward, backward, weight = times[0], times[1] + times[2], times[2]
    costs = Costs(*times, overlap=(forward + backward - pair) / min(forward, backward))
    for m in (2 * p, 2 * p + 2, 20, 32):
        schedule = schedules.dualpipe(p, m, joined=True)
        verify(schedule)
        timeline = simulate(schedule, costs)
        published = (p // 2 - 1) * (pair + backward - 3 * weight)
        bubbles = [timeline.makespan - timeline.busy(rank) for rank in range(p)]
        assert published == max(bubbles) == bubbles[p // 2] and bubbles == bubbles[::-1]
        assert set(timeline.peak_activations) == {p + 1}


def test_joined_pairs_that_hide_nothing_take_longer_than_two_actions():
    for joined, makespan in ((False, 63), (True, 66)):
        assert simulate(schedules.dualpipe(8, 20, joined=joined)).makespan == makespan
    for p, m in ((2, 4), (4, 8), (4, 16), (8, 20)):
        assert simulate(
            schedules.dualpipe_v(p, m, joined=True)
        ).makespan == 6 * m + 2 * (p - 1)


def test_no_pair_is_cut_in_two_where_there_are_few_microbatches():
    for p, m in product((2, 4), range(1, 9)):
        for schedule in (
            schedules.dualpipe(p, m, joined=True),
            schedules.dualpipe_v(p, m, joined=True),
        ):
            assert schedule.joined.keys() == schedule.overlaps
            verify(schedule)


def test_opposite_ranks_of_dualpipe_run_the_same_row_in_opposite_directions():
    other = {"down": "up", "up": "down"}
    for p, m in ((2, 4), (4, 10), (8, 20)):
        rows = directed(schedules.dualpipe(p, m))
        for row, opposite in zip(rows, reversed(rows)):
            assert [(other[way], cell) for way, cell in map(str.split, row)] == [
                tuple(c.split()) for c in opposite
            ]


def test_with_fewer_microbatches_both_directions_of_dualpipe_are_cut():
    whole = directed(schedules.dualpipe(4, 8))
    for m in range(1, 8):
        most = {"down": (m + 1) // 2, "up": m // 2}
        kept = [
            [cell for cell in row if int(cell.split()[1][1:]) < most[cell.split()[0]]]
            for row in whole
        ]
        assert directed(schedules.dualpipe(4, m)) == kept


# -- who knows them --------------------------------------------------------------------


def test_the_adviser_leaves_out_slices_and_updates_and_says_so():
    model, x = (
        nn.Sequential(*(nn.Linear(2, 2) for _ in range(8))),
        np.ones((8, 2), np.float32),
    )
    left_out = names_left_out()
    with_updates = {
        name
        for name in schedules.REGISTRY
        if ActionKind.UPDATE in schedules.build(name, 2, 4).kinds
    }
    assert {*left_out} == with_updates | {"seq1f1b"}
    weighed = {
        candidate.schedule for candidate in candidates(2, num_layers=8, counts=[4])
    }
    assert weighed == {*schedules.REGISTRY} - {*left_out, "forward-only"}
    advice = advise(
        model,
        x,
        x,
        loss=nn.MSELoss(),
        num_ranks=2,
        num_microbatches=4,
        messages="assumed",
        seconds=0,
    )
    assert (
        "Not considered, because they slice sequences, or update the weights "
        "more than once"
    ) in str(advice)
    assert str(advice).endswith(f": {', '.join(left_out)}.")


# -- mistakes --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["chimera", "bitpipe", "dualpipe"])
@pytest.mark.parametrize("p", [1, 3, 7])
def test_an_odd_number_of_ranks_is_refused(name, p):
    error = refusal(schedules.build, name, p, 8)
    assert (
        error.code == "value"
        and f"num_ranks is {p}; {name} takes an even number." in str(error)
    )


@pytest.mark.parametrize("name", ["chimera", "dualpipe"])
def test_a_microbatch_that_comes_back_on_the_opposite_rank_is_refused(name):
    schedule = schedules.build(name, 4, 8)
    rows = [list(row) for row in schedule.actions]
    moved = next(
        action for action in rows[1] if action.kind.is_backward and action.stage == 1
    )
    rows[1].remove(moved)
    rows[2].append(moved)
    error = refusal(verify, Schedule("mutant", schedule.placement, 8, rows))
    assert (
        error.code == "placement"
        and f"{moved} is on another replica than its forward" in str(error)
    )


@pytest.mark.parametrize("name", ["chimera", "dualpipe"])
def test_a_rank_that_begins_with_its_backwards_blocks_both_pipelines(name):
    schedule = schedules.build(name, 4, 8)
    rows = [
        sorted(row, key=lambda action: not action.kind.is_backward)
        for row in schedule.actions[:1]
    ]
    error = refusal(
        verify,
        Schedule("mutant", schedule.placement, 8, [*rows, *schedule.actions[1:]]),
    )
    assert error.problems[0].code in ("order", "deadlock")
