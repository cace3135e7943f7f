"""What a search asks of an order: its critical path, and how to shorten it."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, simulate
from minipipe.core.schedules.action import ActionKind
from minipipe.schedules.analysis.workload import Objective
from minipipe.schedules.simulation.evaluation import costs_of
from minipipe.search.clock import ProblemData, schedule_of
from minipipe.search.heuristic import Search, TimedOrder, with_any_move, without_delay
from minipipe.search.list_scheduling import ListScheduler, Policy
from tests.schedules.search.workloads import any_workloads
from tests.strategies import examples

KINDS = {
    str(kind): kind
    for kind in (
        ActionKind.FORWARD,
        ActionKind.BACKWARD_INPUT,
        ActionKind.BACKWARD_WEIGHT,
    )
}


@pytest.mark.parametrize(
    "rows, of_rank_0, of_rank_1",
    [
        # rank 0: F0 F1 .. I0 W0 .. I1 W1      I1 of rank 0 waits for that of rank 1, which is late for W0 before F1
        # rank 1: .. F0 I0 W0 F1 I1 W1
        (
            ["FFIWIW", "FIWFIW"],
            [(0, 5), (1, 4), (1, 3), (1, 2), (1, 1)],
            [(1, 5), (1, 4), (1, 3), (1, 2), (1, 1)],
        ),
        # rank 0: F0 F1 .. .. I0 I1 W0 W1      an action like the one before it is not late for it
        # rank 1: .. F0 F1 I0 I1 W0 W1
        (["FFIIWW", "FFIIWW"], [(0, 4), (1, 2)], [(1, 4), (1, 2)]),
    ],
)
def test_delays_are_the_steps_of_the_critical_path_that_stay_on_a_rank(
    rows, of_rank_0, of_rank_1
):
    orders = [
        [(KINDS[letter], rank) for letter in row] for rank, row in enumerate(rows)
    ]
    order = TimedOrder(orders, ProblemData(Costs().workload((0, 1), 2)))
    assert (order.delays(0), order.delays(1)) == (of_rank_0, of_rank_1)


@examples(100)
@given(data=st.data(), workload=any_workloads())
def test_a_delayed_action_starts_when_its_rank_is_free_and_follows_another_one(
    data, workload
):
    orders = ListScheduler(
        ProblemData(workload), [Policy(6)] * workload.num_ranks
    ).orders
    spans = simulate(schedule_of(orders, workload, "drawn"), costs_of(workload)).spans
    last = data.draw(
        st.sampled_from([rank for rank, order in enumerate(orders) if order])
    )
    before = None
    for rank, position in TimedOrder(orders, ProblemData(workload)).delays(last):
        previous, span = spans[rank][position - 1 : position + 1]
        assert span.start == pytest.approx(previous.end + workload.overhead)
        assert orders[rank][position] != orders[rank][position - 1]
        assert before is None or span.end <= before + 1e-9
        before = span.start


@given(seed=st.integers(0, 99), position=st.integers(1, 5))
def test_without_a_delay_an_action_comes_earlier_or_the_w_before_it_later(
    seed, position
):
    order = [(KINDS[letter], 0) for letter in "FFIWIW"]
    changed = without_delay(order, position, Random(seed))
    assert sorted(changed) == sorted(order)
    first = next(
        (i for i, (old, new) in enumerate(zip(order, changed)) if old != new), None
    )
    if first is not None:
        assert (changed[first] == order[position] and first < position) or order[first][
            0
        ] is KINDS["W"]


def test_an_action_comes_a_few_places_earlier_and_a_w_before_it_any_number_later():
    """It moves up to three places, any move up to six, and a W as far as the end; all
    of these come up.
    """
    order = [(KINDS["F"], stage) for stage in range(20)]
    assert {
        without_delay(order, 10, Random(seed)).index(order[10]) for seed in range(50)
    } == {7, 8, 9}
    order[9] = KINDS["W"], 9
    assert {
        without_delay(order, 10, Random(seed)).index(order[9]) for seed in range(200)
    } == {*range(10, 20)}
    steps = set()
    for seed in range(500):
        changed = with_any_move(order, Random(seed))
        op = order[Random(seed).randrange(len(order))]
        if 6 <= order.index(op) < 14:
            steps.add(changed.index(op) - order.index(op))
    assert steps == {*range(-6, 0), *range(1, 7)}


class Halves(Random):
    """Draws 0.5 where a chance is asked for, so what is accepted is what is likelier
    accepted than not.
    """

    def random(self):
        return 0.5


def a_search():
    search = Search(Costs().workload((0, 1), 4), Objective.MAKESPAN, 0.0, seed=0)
    search.best = search.candidate(
        ListScheduler(search.problem, [Policy(4)] * 2), "list scheduling"
    )
    return search


@pytest.mark.parametrize(
    ("hot", "cold", "accepted"), [(2.0, 0.125, 61), (0.125, 0.125, 0), (2.0, 2.0, 99)]
)
def test_annealing_accepts_what_is_worse_while_it_is_hot_enough(hot, cold, accepted):
    """A rise of 0.26 mean times of an action is likelier accepted than not above a heat
    of 0.375, which cooling from 2 to 1/8 reaches after 0.604 of its steps."""
    search, energies = a_search(), []
    search.random = Halves(0)

    def rise(search, now):
        energies.append(now.energy)
        return now._replace(energy=now.energy + 0.26 * search.mean_time)

    assert len(list(search.anneal(rise, 100, hot, cold))) == 100
    assert [later > before for before, later in pairwise(energies)] == [
        True
    ] * accepted + [False] * (99 - accepted)


def test_an_order_of_which_no_delay_is_known_is_changed_by_any_move():
    search = a_search()
    found = [search.with_other_order(search.best) for _ in range(40)]
    assert any(
        candidate.run.orders != search.best.run.orders
        for candidate in found
        if candidate is not None
    )
