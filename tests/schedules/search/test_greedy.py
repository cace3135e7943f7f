"""The list scheduler: legal for anything, and 1F1B and GPipe where those are what it is
asked for.
"""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import schedules
from minipipe.core.schedules.action import ActionKind
from minipipe.core.schedules.analysis.lowering import lower
from minipipe.errors import ScheduleError
from minipipe.schedules.analysis.activations import peak_activations
from minipipe.schedules.analysis.limits import verify
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.simulator import simulate
from minipipe.search.list_scheduling import greedy
from tests.strategies import examples

PRIORITIES = [
    "".join(order) for letters in ("BF", "FIW") for order in permutations(letters)
]
EVEN = st.tuples(st.integers(1, 5), st.integers(0, 5), st.integers(0, 5))


@examples(150)
@given(p=st.integers(1, 8), m=st.integers(1, 24), times=EVEN)
def test_backward_first_with_room_for_the_stages_left_is_1f1b(p, m, times):
    built = greedy(
        m,
        Costs(*times),
        range(p),
        memory_limit=[p - r for r in range(p)],
        priority="BF",
    )
    if times[1] + times[2]:  # a backward that takes no time leaves room at once
        assert built.actions == schedules.one_f_one_b(p, m).actions


@examples(150)
@given(p=st.integers(1, 8), m=st.integers(1, 24), times=EVEN)
def test_forward_first_without_a_limit_is_gpipe(p, m, times):
    assert (
        greedy(m, Costs(*times), range(p), priority="FB").actions
        == schedules.gpipe(p, m).actions
    )


@st.composite
def requests(draw):
    """Draw any placement, uneven costs, and limits that leave room for one microbatch
    or more.
    """
    num_stages = draw(st.integers(1, 8))
    wished = draw(st.lists(st.integers(0, 4), min_size=num_stages, max_size=num_stages))
    used = sorted(set(wished))
    placement = [used.index(rank) for rank in wished]
    by_stage = st.lists(st.integers(0, 6), min_size=num_stages, max_size=num_stages)
    costs = Costs(
        draw(by_stage),
        draw(by_stage),
        draw(by_stage),
        latency=draw(st.sampled_from([0, 1, 7])),
    )
    least = [placement.count(rank) for rank in range(len(used))]
    limits = draw(st.none() | st.tuples(*[st.integers(n, n + 4) for n in least]))
    return (
        draw(st.integers(1, 9)),
        costs,
        placement,
        limits,
        draw(st.sampled_from(PRIORITIES)),
    )


@examples(500)
@given(requests())
def test_it_is_legal_within_its_memory_and_ascending_for_any_costs_and_placement(
    request,
):
    num_microbatches, costs, placement, limits, priority = request
    built = greedy(num_microbatches, costs, placement, limits, priority)
    verify(built, memory_limit=limits)
    verify(lower(built))
    assert built.is_reproducible
    assert (ActionKind.BACKWARD in built.kinds) is ("B" in priority)


@examples(200)
@given(requests())
def test_no_rank_waits_while_it_could_work(request):
    # What the simulator finds is what the builder reckoned with: it never starts an
    # action later than it had to.
    num_microbatches, costs, placement, _, _ = request
    timeline = simulate(greedy(num_microbatches, costs, placement, None, "BF"), costs)
    ends = {span.action: span.end for row in timeline.spans for span in row}
    for row in timeline.spans:
        for i, (_, start, _) in enumerate(row):
            free = row[i - 1].end if i else 0.0
            # In any pause before this action, no later action of the rank had its
            # value.
            for later in row[i:]:
                stage, kind, k = later.action
                source = schedules.Action(
                    stage + (-1 if kind.value == "F" else 1), kind, k
                )
                if source.stage < 0 or (
                    kind.value == "B" and source.stage == len(placement)
                ):
                    source = (
                        schedules.Action(stage, ActionKind.FORWARD, k)
                        if kind.value == "B"
                        else None
                    )
                arrived = 0.0 if source is None else ends[source]
                if source is not None and placement[source.stage] != placement[stage]:
                    arrived += costs.latency
                if kind.value == "B":
                    arrived = max(
                        arrived, ends[schedules.Action(stage, ActionKind.FORWARD, k)]
                    )
                assert start <= max(free, arrived)


def test_it_beats_1f1b_where_stages_are_uneven():
    # A slow first stage: everything behind it has time for backwards at once.
    costs = Costs(
        forward=[1, 3, 1, 1], backward_input=[1, 3, 1, 1], backward_weight=[1, 3, 1, 1]
    )
    limits = [8, 8, 8, 8]
    split = simulate(greedy(16, costs, range(4), limits, "IFW"), costs)
    assert split.makespan < simulate(schedules.one_f_one_b(4, 16), costs).makespan
    assert max(peak_activations(greedy(16, costs, range(4), limits, "IFW"))) <= 8


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, Costs(), (0, 1)), "num_microbatches is 0"),
        ((4, Costs(), ()), "placement is ()"),
        (
            (4, Costs(), (0, 1, 0), 1),
            (
                "memory_limit is 1 on rank 0, but one microbatch alone takes 2 "
                "there; expected at least that"
            ),
        ),
        (
            (4, Costs(), (0, 1), [1]),
            (
                "memory_limit is [1]; expected an amount above 0, or one for each of "
                "2 ranks"
            ),
        ),
        (
            (4, Costs(), (0, 1), None, "FBW"),
            "expected an order of B and F, or of F, I and W",
        ),
        ((4, Costs(forward=[1]), (0, 1)), "forward has 1 value for 2 stages"),
    ],
)
def test_what_cannot_be_is_refused_with_what_could(arguments, words):
    with pytest.raises(ScheduleError) as caught:
        greedy(*arguments)
    assert words in str(caught.value)


def rows_of(schedule):
    return [" ".join(map(str, row)) for row in schedule.actions]


def test_of_equal_microbatches_greedy_takes_the_weights_of_the_earlier_stage_first():
    assert rows_of(greedy(1, Costs(), (0, 0), None, "IFW")) == [
        "0F0 1F0 1I0 0I0 0W0 1W0"
    ]
