"""Exact search by CP-SAT: known optima, rounding, hints, and what it refuses."""

import sys

import pytest
from hypothesis import given

from minipipe import Costs, schedules
from minipipe.errors import ArgumentError, ScheduleError
from minipipe.schedules.analysis.workload import Objective
from minipipe.schedules.simulation.evaluation import costs_of, evaluate
from minipipe.search.brute_force import solve_by_branch_and_bound
from minipipe.search.clock import one_after_another
from minipipe.search.exact import in_whole_numbers, scale_of, solve
from minipipe.search.finding import find_schedule
from tests.launch import slowly
from tests.schedules.search.workloads import STRAIGHT, V, objectives, workloads
from tests.strategies import examples

MAKESPAN, SPAN = Objective


@pytest.fixture
def solver():
    pytest.importorskip("ortools", reason="needs OR-tools: pip install '.[search]'")


UNIT = Costs()
KNOWN = [
    *(
        (UNIT, STRAIGHT, 8, limit, MAKESPAN, best)
        for limit, best in zip(range(1, 6), (72, 41, 31, 27, 27))
    ),
    *(
        (UNIT, STRAIGHT, 8, limit, SPAN, best)
        for limit, best in zip(range(4, 8), (27, 26, 25, 24))
    ),
    *(
        (Costs(2, 2, 1), STRAIGHT, 8, limit, MAKESPAN, best)
        for limit, best in zip(range(4, 8), (49, 48, 47, 46))
    ),
    *(
        slowly(UNIT, V, 8, limit, MAKESPAN, best)
        for limit, best in zip((4, 6, 8), (59, 53, 51))
    ),
    slowly(UNIT, V, 16, 4, MAKESPAN, 107),
]


@pytest.mark.parametrize(
    ("costs", "placement", "microbatches", "limit", "objective", "best"), KNOWN
)
def test_known_optima_are_found_and_proved(
    solver, costs, placement, microbatches, limit, objective, best
):
    found = solve(
        costs.workload(placement, microbatches, limit), objective, seconds=150
    )
    assert found.value == found.bound == best
    assert evaluate(found.schedule, found.workload, objective) == best
    assert found.gap == 0 and found.schedule.is_reproducible


def test_times_that_are_no_whole_numbers_are_scaled_and_the_value_is_the_simulated_one(
    solver,
):
    costs = Costs(18.522, 18.086, 9.337, latency=0.601, weight_activation=0.366)
    found = solve(costs.workload(STRAIGHT, 4, 4), SPAN, seconds=30)
    assert found.value == evaluate(found.schedule, found.workload, SPAN)
    assert found.bound == found.value and found.gap == 0


THIRDS = Costs(
    1 / 3,
    [2 / 3, 1, 5 / 3],
    4 / 7,
    latency=0.1 + 0.2,
    overhead=1 / 30,
    activation=1 / 3,
)
MEASURED = Costs(
    1 / 3,
    0.1234567891234,
    2**-0.5,
    latency=0.0123456789,
    activation=0.7,
    weight_activation=0.5,
)


@pytest.mark.parametrize("costs", [THIRDS, MEASURED], ids=["thirds", "measured"])
@pytest.mark.parametrize("objective", Objective)
def test_the_best_schedule_is_proved_optimal_whatever_its_times(
    solver, costs, objective
):
    """A third was rounded to six digits, so that the solver proved a millionth less
    than the optimum it had found.
    """
    found = solve(costs.workload((0, 1, 2), 3, 1.5), objective, seconds=150)
    assert found.bound == found.value and found.gap == 0
    best = solve_by_branch_and_bound(found.workload, objective)
    assert found.value == pytest.approx(best.value, rel=1e-9)


def test_a_time_close_to_a_fraction_of_a_small_denominator_is_that_fraction():
    times = [1 / 3, 0.1 + 0.2, 5 / 7 - 1e-16, 1e-9]
    assert scale_of(times[:3], largest=9, most=2000) == 210
    assert scale_of(times, largest=1, most=1000) == 1000 and scale_of([], 0, 10) == 1
    whole, scale = in_whole_numbers(MEASURED.workload((0, 1), 3, 2))
    assert whole.forward[0] == int(scale / 3) > 10**12


@given(workload=workloads(), objective=objectives)
@examples(100)
def test_a_rounded_workload_is_never_harder(workload, objective):
    """The bound of the rounded one is valid: what answers the workload answers it, and
    takes no longer there.
    """
    whole, scale = in_whole_numbers(workload)
    schedule = one_after_another(workload)
    value = evaluate(schedule, workload, objective)
    assert evaluate(schedule, whole, objective) <= value * scale * (1 + 1e-12)
    uneven = workload._replace(forward=tuple(time / 3 for time in workload.forward))
    whole, scale = in_whole_numbers(uneven)
    assert all(int(time) == time for time in whole.forward)
    value = evaluate(schedule, uneven, Objective.MAKESPAN)
    assert evaluate(schedule, whole, Objective.MAKESPAN) <= value * scale * (1 + 1e-12)


@given(workload=workloads())
def test_costs_of_a_workload_give_the_workload_back(workload):
    limits = (
        None if max(workload.memory_limit) == float("inf") else workload.memory_limit
    )
    assert (
        costs_of(workload).workload(
            workload.placement, workload.num_microbatches, limits
        )
        == workload
    )


def test_without_time_the_result_is_the_hint_or_better(solver):
    hint = schedules.zb_h2(4, 8)
    found = solve(Costs().workload(STRAIGHT, 8), SPAN, seconds=0.0, hint=hint)
    assert found.value == 24 and found.bound <= 24


def test_a_hint_in_another_order_of_microbatches_is_taken(solver):
    hint = schedules.Schedule.from_text(
        "0F1 0F0 0I0 0W0 0I1 0W1\n1F1 1F0 1I0 1W0 1I1 1W1", name="turned"
    )
    found = solve(Costs().workload((0, 1), 2), MAKESPAN, seconds=10, hint=hint)
    assert found.value == found.bound == 7


@pytest.mark.parametrize(
    ("hint", "code"),
    [
        (schedules.one_f_one_b(4, 8), "unexpected"),
        (schedules.zb_h1(4, 6), "missing"),
        (schedules.zb_h1(3, 8), "placement"),
        (schedules.zb_h2(4, 8), "memory"),
        ("zb-h1", "type"),
    ],
)
def test_a_hint_that_is_no_answer_is_refused(solver, hint, code):
    with pytest.raises(ScheduleError) as caught:
        solve(Costs().workload(STRAIGHT, 8, 4), MAKESPAN, seconds=1, hint=hint)
    assert caught.value.problems[0].code == code


def test_where_not_one_microbatch_fits_no_search_begins(solver):
    workload = Costs(activation=2, transient_activation=0.5).workload(
        (0, 1), 4, [3, 2.25]
    )
    with pytest.raises(
        ScheduleError,
        match=r"memory_limit is 2\.25 on rank 1, but one microbatch alone takes 2\.5",
    ):
        solve(workload, MAKESPAN, seconds=1)


def test_without_or_tools_it_says_how_to_install_them(monkeypatch):
    for module in ("ortools", "ortools.sat.python"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ArgumentError, match=r"pip install -e '\.\[search\]'"):
        solve(Costs().workload((0, 1), 2), MAKESPAN, seconds=1)
    # before the search, also where it would need no solver
    with pytest.raises(ArgumentError, match="not installed"):
        find_schedule(Costs().workload((0, 1), 2), exact=True)


def test_a_search_lets_the_solver_prove_what_no_formula_does(solver):
    workload = Costs(3, 3, 2).workload(STRAIGHT, 8, 3)  # the gallery has no such times
    found = find_schedule(workload, Objective.MAKESPAN, 6, exact=True)
    assert (found.value, found.bound, found.gap) == (
        88,
        88,
        0,
    ) and found.bound_by.startswith("CP-SAT")
