"""Building blocks: what is predicted of one microbatch is what a simulation of many
finds.
"""

import random
from dataclasses import replace
from itertools import chain, combinations, product
from math import ceil, inf

import pytest

from minipipe import Costs, Schedule, schedules, simulate, verify
from minipipe.errors import ScheduleError
from minipipe.schedules import Action, BuildingBlock, build, one_microbatch
from minipipe.schedules.placements import v_placement
from tests.launch import for_each

RANKS = range(1, 7)
NAMES = (
    "1f1b",
    "eager-1f1b",
    "zb-h1",
    "zb-h2",
    "zb-v",
    "v-half",
    "v-min",
    "dualpipe-v",
)
PLACEMENTS = {
    "straight": lambda p: tuple(range(p)),
    "v": v_placement,
    "looped": lambda p: (*range(p),) * 2,
    "any": lambda p: (p - 1, *range(p), 0),
}


def random_block(seed, is_legal=True):
    """Return a block with random waits; a legal one repeats, any other may not."""
    draw = random.Random(seed)
    ranks = draw.randint(1, 4)
    placement = PLACEMENTS[draw.choice(list(PLACEMENTS))](ranks)
    times = [[draw.choice((1, 1, 2, 0.5)) for _ in placement] for _ in range(3)]
    if draw.random() < 0.2:
        times[2] = 0
    costs = Costs(*times, latency=draw.choice((0, 0, 0.5)))
    one = one_microbatch(placement, ranks)
    if draw.random() < 0.3:
        one = Schedule.from_text(str(one).replace("I0", "B0"))
        kept = (tuple(a for a in row if a.kind != "W") for row in one.actions)
        one = Schedule("whole", placement, 1, tuple(kept))
    interval = max(simulate(one, costs).busy(rank) for rank in range(ranks))
    interval += draw.choice((0.5, 1, 2, 5))
    ends, starts, taken = {}, {}, {rank: [] for rank in range(ranks)}
    order = sorted(chain.from_iterable(simulate(one, costs).spans), key=lambda s: s[1:])
    for action, start, end in order:
        needed = [inf_of(ends, other) for other in needs_of(action, len(placement))]
        at = max([0.0, *needed]) + draw.choice((0, 0, 0, 0.5, 1, 4))
        at += costs.latency
        size, row = end - start, taken[placement[action.stage]]
        if is_legal:
            tries = 0
            while any(is_shared(at, size, *other, interval) for other in row):
                at, tries = at + 0.5, tries + 1
                if tries > 200:
                    return random_block(seed + 10_000)
        row.append((at, size))
        starts[action], ends[action] = at, at + size
    return BuildingBlock(placement, starts, interval, costs)


def needs_of(action, num_stages):
    """Return the actions that an action may need, written out again."""
    stage, kind, _ = action
    if kind == "F":
        return [Action(stage - 1, action.kind, 0)]
    if kind == "W":
        return [Action.parse(f"{stage}I0")]
    if stage == num_stages - 1:
        return [Action.parse(f"{stage}F0")]
    return [Action.parse(f"{stage + 1}{other}0") for other in "IB"]


def inf_of(ends, action):
    return ends.get(action, 0.0)


def is_shared(start, size, other, other_size, interval):
    """Tell whether two actions of a rank, each repeated, need it at once."""
    return any(
        start < other + shift * interval + other_size
        and other + shift * interval < start + size
        for shift in range(-60, 61)
    )


def moved(block, action, start):
    return replace(block, starts={**block.starts, action: start})


def enough(block):
    return 2 * ceil(block.length / block.interval) + 1


V = "0F@0 3F@3 3I@4 0I@7 3W@8 0W@11\n1F@1 2F@2 2I@5 1I@6 2W@9 1W@10"


# -- memory ----------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "ranks"), list(product(NAMES, RANKS)))
def test_the_peak_predicted_of_a_named_schedule_is_its_own(name, ranks):
    named = build(name, ranks, 12 * ranks)
    block = BuildingBlock.of(named)
    block.check()
    unrolled = block.unrolled(enough(block))
    verify(unrolled)
    predicted = block.peak_activations
    assert simulate(unrolled).peak_activations == predicted
    assert simulate(named).peak_activations == predicted
    assert min(block.starts.values()) == 0


@pytest.mark.slow
@for_each(seed=range(60))
def test_the_predicted_peak_is_that_of_the_simulated_steady_state(seed):
    block = random_block(seed)
    for m in (1, 2, enough(block), enough(block) + 3):
        unrolled = block.unrolled(m)
        verify(unrolled, memory_limit=max(block.peak_activations))
        timeline = simulate(unrolled, block.costs)
        for peak, most in zip(timeline.peak_activations, block.peak_activations):
            assert peak == most or (peak < most and m < enough(block))
        end = block.length + (m - 1) * block.interval
        assert timeline.makespan <= end + 1e-6
        assert unrolled.is_reproducible


@pytest.mark.parametrize("seed", range(20))
def test_the_mean_over_an_interval_is_lifespan_over_interval(seed):
    """Little's law, against the times themselves."""
    block = random_block(seed)
    k = ceil(block.length / block.interval)
    for stage, lifespan in enumerate(block.lifespans):
        row = block.spans[block.placement[stage]]
        begin = min(start for action, start, _ in row if action.stage == stage)
        area, now = 0.0, k * block.interval
        for other in range(2 * k + 1):
            first = begin + other * block.interval
            overlap = min(first + lifespan, now + block.interval) - max(first, now)
            area += max(0.0, overlap)
        assert area / block.interval == pytest.approx(lifespan / block.interval)


def test_a_longer_life_is_held_longer_and_no_other_one():
    block = BuildingBlock.from_text(V, 6)
    later = moved(block, Action.parse("0W0"), 17)
    assert block.lifespans[0] == 12 and later.lifespans == (18, *block.lifespans[1:])
    assert (block.peak_activations, later.peak_activations) == ((3, 4), (4, 4))


def test_a_pair_released_when_another_arrives_is_not_held_with_it():
    block = BuildingBlock.from_text("0F@0 0B@1", 3)
    assert block.peak_activations == (1,)
    assert BuildingBlock.from_text("0F@0 0B@1.5", 3.25).peak_activations == (2,)


# -- legality --------------------------------------------------------------------------


def is_refused(block):
    try:
        block.check()
    except ScheduleError:
        return True
    return False


def is_impossible(block):
    """Look at each pair of actions of twice as many microbatches as overlap."""
    times = {}
    for rank, row in enumerate(block.spans):
        tiled = [
            (start + k * block.interval, end - start)
            for k, (_, start, end) in product(range(enough(block)), row)
        ]
        for (start, size), (other, other_size) in combinations(sorted(tiled), 2):
            if start + size > other + 1e-6 and other + other_size > start + 1e-6:
                return True
        times |= {action: (start, end, rank) for action, start, end in row}
    for action, (start, _, rank) in times.items():
        for other in needs_of(action, len(block.placement)):
            _, end, owner = times.get(other, (0, -inf, rank))
            if start < end + block.costs.latency * (owner != rank) - 1e-6:
                return True
    return False


def test_a_block_is_refused_where_its_repetition_is_impossible_and_nowhere_else():
    verdicts = []
    for seed in range(120):
        block = random_block(seed, is_legal=seed % 3 == 0)
        draw = random.Random(seed)
        if seed % 3 == 1:  # one action a little early or late
            legal = random_block(seed)
            action = draw.choice(sorted(legal.starts))
            start = legal.starts[action] + draw.choice((-2, -0.5, 0.5, 3))
            block = moved(legal, action, max(0, start))
        assert is_refused(block) == is_impossible(block), seed
        verdicts.append(is_refused(block))
    assert 24 < sum(verdicts) < 96


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        (
            ("1F@1", "1F@0"),
            "order",
            "Rank 1: 1F starts at 0, but its input from 0F arrives at 1.",
        ),
        (("3I@4", "3I@3.5"), "order", "its input from 3F arrives at 4"),
        (
            ("3W@8", "3W@6"),
            "overlap",
            "Two actions need rank 0 at 6: 0F of microbatch 1 and 3W of microbatch 0.",
        ),
        (("3W@8", "3W@8.5"), "overlap", "Two actions need rank 0 at 9"),
        (
            ("0W@11", "0W@11.25"),
            "overlap",
            "need rank 0 at 12: 0W of microbatch 0 and 0F of microbatch 2.",
        ),
    ],
)
def test_a_problem_names_its_actions_and_its_time(changed, code, words):
    block = BuildingBlock.from_text(V.replace(*changed), 6)
    with pytest.raises(ScheduleError) as caught:
        block.check()
    assert caught.value.problems[0].code == code
    assert words in caught.value.problems[0].message
    with pytest.raises(ScheduleError):
        block.unrolled(4)


def test_an_interval_below_the_work_of_a_rank_collides():
    block = BuildingBlock.from_text(V, 6)
    assert block.work == 6
    block.check()
    for interval in (5.9, 3, 1, 0.5):
        assert is_refused(BuildingBlock.from_text(V, interval))


def test_messages_and_overhead_take_their_time():
    assert not is_refused(BuildingBlock.from_text(V, 6))
    assert is_refused(BuildingBlock.from_text(V, 6, Costs(latency=0.5)))
    assert is_refused(BuildingBlock.from_text(V, 6, Costs(overhead=0.1)))


# -- forms -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_block_is_read_as_it_was_written(seed):
    block = random_block(seed)
    again = BuildingBlock.from_text(block.to_text(), block.interval, block.costs)
    assert again == block


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("0F@0 0B", "syntax", "0B"),
        ("0F@0 0B0", "syntax", "0B has no start, or occurs twice"),
        ("0F@0 0B@1 0B@5", "syntax", "0B has no start, or occurs twice"),
        ("0F@0 0B@x", "value", "'x' is not a number"),
        ("0F@0 0B@nan", "value", "The start of 0B is nan"),
        ("0F@-1 0B@1", "value", "The start of 0F is -1"),
        ("0F@0", "missing", "Stage 0 of the block has F; expected F and B"),
        ("0F@0 0I@1", "missing", "Stage 0 of the block has F, I"),
        ("0F@0 0B@1 0W@3", "missing", "Stage 0 of the block has B, F, W"),
        ("0F@0 0B@1\n2F@0 2B@1", "missing", "stage 1"),
        ("0F@0 0F1@0 0B@1", "syntax", "'0F1@0' is not an action"),
        ("0F@0 0B@1e9", "too-large", "the block takes 1e+09; expected at most 10,000"),
        ("0F@0 0B@1e300", "too-large", "expected at most 10,000 intervals"),
        ("", "syntax", "no action"),
    ],
)
def test_what_is_no_block_is_refused_with_its_reason(text, code, words):
    with pytest.raises(Exception) as caught:
        BuildingBlock.from_text(text, 3)
    assert (caught.value.code, words in str(caught.value)) == (code, True), caught.value


@pytest.mark.parametrize("interval", [0, 1e-9, -1, inf, float("nan"), "3", None])
def test_an_interval_is_a_time_above_0(interval):
    with pytest.raises(ScheduleError, match="interval"):
        BuildingBlock.from_text("0F@0 0B@1", interval)


def test_an_F_or_I_without_time_and_a_stage_that_is_not_placed_are_refused():
    for costs in (Costs(forward=0), Costs(backward_input=0)):
        with pytest.raises(ScheduleError, match="F or I takes no time"):
            BuildingBlock.from_text("0F@0 0B@1", 3, costs)
    starts = {Action.parse("0F0"): 0, Action.parse("0B0"): 1, Action.parse("1F0"): 1}
    with pytest.raises(ScheduleError, match="Stage 1 of the block has F"):
        BuildingBlock((0,), starts, 3)


@pytest.mark.parametrize(
    ("name", "microbatches", "words"),
    [
        ("gpipe", 24, "repeats no block"),
        ("1f1b", 4, "take more of them"),
        ("1f1b", 1, "repeats no block"),
        ("hanayo", 24, "repeats no block"),
        ("chimera", 24, "replicas"),
        ("pipedream", 24, "updates"),
        ("seq1f1b", 24, "slices"),
        ("forward-only", 24, "expected F and B"),
    ],
)
def test_a_schedule_without_a_block_says_so(name, microbatches, words):
    with pytest.raises(ScheduleError, match=words):
        BuildingBlock.of(build(name, 4, microbatches))


def test_the_block_of_1f1b_gives_1f1b_again():
    block = BuildingBlock.of(schedules.one_f_one_b(4, 24))
    assert block.unrolled(8).actions == schedules.one_f_one_b(4, 8).actions
