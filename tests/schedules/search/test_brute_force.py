"""Three independent searches agree: branch and bound, CP-SAT, and an enumeration that
leaves nothing out.
"""

from functools import cache
from itertools import permutations, product

import pytest
from hypothesis import given

from minipipe import ActionKind, Costs, Schedule, schedules
from minipipe.errors import ScheduleError
from minipipe.schedules import Action
from minipipe.schedules.analysis.workload import Objective
from minipipe.schedules.simulation.evaluation import evaluate
from minipipe.search import brute_force
from minipipe.search.brute_force import solve_by_branch_and_bound
from tests.launch import slowly
from tests.schedules.search.enumeration import optimum
from tests.schedules.search.workloads import (
    PLACEMENTS,
    STRAIGHT,
    V,
    objectives,
    workloads,
)
from tests.strategies import examples

F, I, W = ActionKind.FORWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT
MAKESPAN, SPAN = Objective
DISTINCT = [
    placement
    for placement in PLACEMENTS
    if len(set(placement[: 1 + max(placement)])) == 1 + max(placement)
]


@cache
def orders(own, microbatches, ascending=True):
    """Return all orders of the actions of a rank with I after its F and W after its
    I.
    """
    actions = [
        Action(s, kind, k)
        for s in own
        for kind in (F, I, W)
        for k in range(microbatches)
    ]
    found = []

    def extend(row, left):
        if not left:
            found.append(tuple(row))
        for action in left:
            stage, kind, k = action
            first = [] if kind is F else [Action(stage, {I: F, W: I}[kind], k)]
            if ascending and k:
                first.append(Action(stage, kind, k - 1))
            if not any(needed in left for needed in first):
                extend([*row, action], [other for other in left if other != action])

    extend([], actions)
    return found


def every_value(workload, objective, ascending=True):
    """Yield the value of every answer to a workload."""
    own = [
        tuple(s for s, r in enumerate(workload.placement) if r == rank)
        for rank in range(workload.num_ranks)
    ]
    for rows in product(
        *(orders(stages, workload.num_microbatches, ascending) for stages in own)
    ):
        try:
            schedule = Schedule(
                "any", workload.placement, workload.num_microbatches, rows
            )
            yield evaluate(schedule, workload, objective)
        except ScheduleError:
            continue


@given(
    workload=workloads([(0,), (0, 1), (0, 1, 2), (0, 1, 0), (0, 0)], most_actions=12),
    objective=objectives,
)
@examples(60)
def test_branch_and_bound_finds_what_the_enumeration_of_all_orders_finds(
    workload, objective
):
    # two microbatches have 23,100 orders on a rank with two stages
    if workload.placement in [(0, 0), (0, 1, 0)]:
        workload = workload._replace(num_microbatches=1)
    found = solve_by_branch_and_bound(workload, objective)
    assert (
        found.value
        == found.bound
        == pytest.approx(min(every_value(workload, objective)), rel=1e-9)
    )


@given(
    workload=workloads([*DISTINCT, (0, 1, 2, 1)], most_actions=18), objective=objectives
)
@examples(150)
def test_branch_and_bound_finds_the_optimum_also_where_actions_take_no_time(
    workload, objective
):
    """An I or W of no length was dropped, being over when it starts, and false optima
    were proved (87 of 400).
    """
    found = solve_by_branch_and_bound(workload, objective)
    assert (
        found.value
        == found.bound
        == pytest.approx(optimum(workload, objective), rel=1e-9)
    )


def test_a_weight_gradient_of_no_length_is_not_left_out():
    workload = Costs(forward=1, backward_input=2, backward_weight=[0, 1]).workload(
        (0, 1), 3, 2
    )
    found = solve_by_branch_and_bound(workload, MAKESPAN)
    assert found.value == found.bound == optimum(workload, MAKESPAN) == 13


@given(workload=workloads([(0,), (0, 1)], most_actions=12), objective=objectives)
@examples(20)
def test_two_enumerations_agree(workload, objective):
    """One takes all rows of all ranks to verifier and simulator, the other walks
    through states.
    """
    assert optimum(workload, objective) == pytest.approx(
        min(every_value(workload, objective)), rel=1e-9
    )


@pytest.mark.slow
@given(workload=workloads([(0, 1)], most_actions=12), objective=objectives)
@examples(20)
def test_renumbering_microbatches_loses_nothing(workload, objective):
    workload = workload._replace(num_microbatches=2)
    least = min(every_value(workload, objective))
    assert least == pytest.approx(
        min(every_value(workload, objective, ascending=False)), rel=1e-9
    )


def test_the_enumeration_leaves_nothing_out():
    actions = [Action(0, kind, k) for kind in (F, I, W) for k in range(2)]
    legal = [
        row
        for row in permutations(actions)
        if all(
            row.index(Action(0, F, k))
            < row.index(Action(0, I, k))
            < row.index(Action(0, W, k))
            for k in range(2)
        )
    ]
    assert sorted(orders((0,), 2, ascending=False)) == sorted(legal)


@given(workload=workloads(DISTINCT, most_actions=36), objective=objectives)
@examples(50)
def test_the_solver_finds_what_branch_and_bound_finds(workload, objective):
    pytest.importorskip("ortools", reason="needs OR-tools: pip install '.[search]'")
    from minipipe.search.exact import solve

    ours, solved = (
        solve_by_branch_and_bound(workload, objective, seconds=20),
        solve(workload, objective, seconds=20),
    )
    assert solved.bound <= ours.value * (1 + 1e-9)
    assert ours.value <= solved.value * (1 + 1e-9)
    times = {*workload.forward, *workload.backward_input, *workload.backward_weight}
    # actions of length 0 at one time may have an order that no ranks can run
    if solved.gap == 0 or 0 not in times:
        assert ours.value == pytest.approx(solved.value, rel=1e-9)
        assert solved.bound == pytest.approx(ours.value, rel=1e-9)


@given(workload=workloads(most_actions=12))
@examples(40)
def test_where_ranks_may_wait_the_bound_of_the_solver_is_still_one(workload):
    pytest.importorskip("ortools", reason="needs OR-tools: pip install '.[search]'")
    from minipipe.search.exact import solve

    if len(workload.placement) > 2:
        workload = workload._replace(num_microbatches=1)
    if len(workload.placement) < 4:
        assert solve(workload, SPAN, seconds=20).bound <= min(
            every_value(workload, SPAN)
        ) * (1 + 1e-9)


COSTS = {(1, 1, 1): Costs(), (2, 2, 1): Costs(2, 2, 1)}
KNOWN = [
    *(
        ((1, 1, 1), STRAIGHT, 8, limit, MAKESPAN, best)
        for limit, best in zip((1, 4, 5), (72, 27, 27))
    ),
    *(
        slowly((1, 1, 1), STRAIGHT, 8, limit, MAKESPAN, best)
        for limit, best in zip((2, 3), (41, 31))
    ),
    *(
        slowly((1, 1, 1), STRAIGHT, 8, limit, SPAN, best)
        for limit, best in zip(range(4, 8), (27, 26, 25, 24))
    ),
    *(
        slowly((2, 2, 1), STRAIGHT, 8, limit, MAKESPAN, best)
        for limit, best in zip((4, 5), (49, 48))
    ),
    slowly((1, 1, 1), V, 4, 4, MAKESPAN, 35),
]


@pytest.mark.parametrize(
    ("times", "placement", "microbatches", "limit", "objective", "best"), KNOWN
)
def test_branch_and_bound_proves_known_optima(
    times, placement, microbatches, limit, objective, best
):
    workload = COSTS[times].workload(placement, microbatches, limit)
    found = solve_by_branch_and_bound(workload, objective, seconds=170)
    assert (
        found.value
        == found.bound
        == best
        == evaluate(found.schedule, workload, objective)
    )


def test_stopped_before_its_end_it_claims_its_first_bound_only():
    found = solve_by_branch_and_bound(Costs().workload(V, 12, 6), MAKESPAN, seconds=0.0)
    assert 72 <= found.bound < found.value == 12 * 18  # W runs beside the next I
    assert found.schedule.name == "found by one after another"


def test_a_span_is_searched_where_the_first_starts_are_the_same_in_all_schedules():
    with pytest.raises(
        ScheduleError,
        match="The first stages are on ranks 0, 0; for a span each must be on another",
    ):
        solve_by_branch_and_bound(Costs().workload((0, 0, 1), 2), SPAN)


def test_where_not_one_microbatch_fits_no_search_begins():
    with pytest.raises(ScheduleError, match="one microbatch alone takes 2"):
        solve_by_branch_and_bound(Costs(activation=2).workload((0, 1), 4, 1), MAKESPAN)


def test_with_the_gap_rule_for_every_action_the_search_is_wrong(monkeypatch):
    """A mutant: an early F may take the memory that a later action needs, so a rank
    must be allowed to wait.
    """
    costs = Costs([1, 3], [3, 2], [4, 2], activation=1, weight_activation=2)
    workload = costs.workload((0, 1), 4, 4)
    assert solve_by_branch_and_bound(workload, MAKESPAN).value == 35
    monkeypatch.setattr(
        brute_force._Search, "_gives_back", lambda self, rank, kind: True
    )
    assert solve_by_branch_and_bound(workload, MAKESPAN).value > 35


def test_named_schedules_are_never_better_than_what_is_proved():
    best = solve_by_branch_and_bound(Costs().workload(range(3), 5), SPAN).value
    for build in (schedules.zb_h1, schedules.zb_h2):
        assert evaluate(build(3, 5), Costs().workload(range(3), 5), SPAN) >= best


def test_the_first_bound_of_a_lone_rank_has_an_overhead_between_two_actions_and_none_before_the_first():
    search = brute_force._Search(
        Costs(overhead=0.5).workload((0,), 2), MAKESPAN, float("inf")
    )
    assert search.bound() == 6 + 5 * 0.5


def test_the_same_actions_come_up_again_no_sooner_than_before_and_are_left():
    """Without this rule the search finds the same, only later."""
    search = brute_force._Search(Costs().workload((0, 1), 2), MAKESPAN, float("inf"))
    assert [search._is_dominated(), search._is_dominated()] == [False, True]
    search.free = [1.0, 0.0]
    assert search._is_dominated()
    search.free = [-1.0, 0.0]
    assert not search._is_dominated()
