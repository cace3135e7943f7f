"""``find_schedule``: what decides what is found, when it ends, and how an exact search
goes on.
"""

from itertools import count
from math import inf

import pytest

from minipipe import Costs
from minipipe.errors import ScheduleError
from minipipe.schedules.analysis.workload import Objective
from minipipe.schedules.simulation.evaluation import evaluate
from minipipe.search import finding, heuristic
from minipipe.search.finding import find_schedule
from minipipe.search.heuristic import Search

# its best: evaluation 2318
UNEVEN = Costs([3, 4, 5], [4, 4, 6], [2, 3, 3], latency=0.5).workload(range(3), 5, 2)


@pytest.fixture
def clock(monkeypatch):
    """Give every reader of the clock a later time, by as many seconds as the test
    says.
    """

    def set_(step):
        times = count(0.0, step)
        for module in (finding, heuristic):
            monkeypatch.setattr(module, "perf_counter", lambda: next(times))

    return set_


@pytest.mark.slow
def test_a_slow_machine_finds_what_a_fast_one_finds(clock):
    """Its phases ended with parts of the time, so a busy machine went another way, and
    came less far.
    """
    clock(1e-9)
    fast = find_schedule(UNEVEN, evaluations=2400)
    clock(1e3)
    slow = find_schedule(UNEVEN, evaluations=2400)
    assert fast._replace(seconds=0) == slow._replace(seconds=0)


def test_a_clock_only_ends_a_search(clock):
    """What it has found in 700 readings of a clock is what 700 evaluations find."""
    clock(1.0)
    timed, counted = (
        find_schedule(UNEVEN, seconds=700.0),
        find_schedule(UNEVEN, evaluations=700),
    )
    assert (
        timed.found_by == f"{counted.found_by} (the clock ended the search after 700)"
    )
    assert timed._replace(seconds=0, found_by="") == counted._replace(
        seconds=0, found_by=""
    )


@pytest.mark.slow
def test_more_evaluations_never_find_less():
    values = [
        find_schedule(UNEVEN, Objective.MAKESPAN, evaluations=number).value
        for number in (1, 8, 60, 500, 2400)
    ]
    assert values == sorted(values, reverse=True) and len(set(values)) == 3


def test_the_evaluation_it_names_finds_the_same():
    workload = Costs([3, 4, 5, 3], [4, 4, 6, 5], [2, 3, 3, 2], latency=0.5).workload(
        range(4), 4, 3
    )
    found = find_schedule(workload, Objective.MAKESPAN)  # the bound
    number = int(found.found_by.rsplit(", evaluation ", 1)[1])
    again = find_schedule(workload, Objective.MAKESPAN, evaluations=number)
    assert number > 500 and (again.schedule, again.found_by) == (
        found.schedule,
        found.found_by,
    )
    assert (
        find_schedule(workload, Objective.MAKESPAN, evaluations=number - 1).schedule
        != found.schedule
    )


def test_the_evaluation_it_names_is_that_of_what_it_returns(monkeypatch):
    """It named the first evaluation with the value, and returned a later schedule of
    less mean over ranks.
    """

    def candidates(search):
        first = next(filter(None, search.seeds()))
        yield from (
            first,
            first._replace(energy=first.energy - 1, found_by="a shorter mean"),
            first,
        )

    monkeypatch.setattr(heuristic.Search, "candidates", candidates)
    assert (
        find_schedule(UNEVEN, evaluations=3).found_by == "a shorter mean, evaluation 2"
    )


def test_a_search_of_no_given_length_counts_actions(monkeypatch):
    tried, run = [], heuristic.Search.run
    monkeypatch.setattr(finding, "_ACTIONS", 7250)
    monkeypatch.setattr(
        finding.Search,
        "run",
        lambda self, *limits: tried.append(limits) or run(self, 10),
    )
    find_schedule(UNEVEN)
    find_schedule(UNEVEN, seconds=3)
    find_schedule(UNEVEN, seconds=3, evaluations=5)
    assert tried == [(7250 // 45, float("inf")), (float("inf"), 3), (5, 3)]


@pytest.mark.slow
def test_it_stops_where_the_gallery_proves_the_optimum():
    """It went on for 10 s, and said 3.3 % above the bound of what ``simulate`` called
    proved optimal.
    """
    found = find_schedule(Costs().workload(range(4), 8, 3), Objective.MAKESPAN)
    assert (found.value, found.gap, found.bound, found.bound_by) == (
        31,
        0,
        31,
        "gallery",
    )


@pytest.fixture
def asked(monkeypatch):
    """Let the exact search answer with its hint, and note the seconds that it gets."""
    asked = []

    def solve(workload, objective, seconds, hint):
        asked.append(seconds)
        value = evaluate(hint, workload, objective)
        return finding.Certificate(
            hint, workload, objective, value, 1.0, "CP-SAT", "CP-SAT", 0.5
        )

    monkeypatch.setattr(finding, "solve", solve)
    monkeypatch.setattr(finding, "solver_module", lambda: None)
    return asked


@pytest.mark.parametrize("spent, left", [(0.0, 12.0), (1.0, 10.0), (10.0, 1.0)])
def test_an_exact_search_has_the_time_that_is_left_and_begins_with_what_was_found(
    asked, clock, spent, left
):
    """The clock goes two steps until then: one before the first evaluation, and one
    after the last.
    """
    clock(spent)
    plain = find_schedule(UNEVEN, evaluations=1)
    clock(spent)
    found = find_schedule(UNEVEN, seconds=12, exact=True, evaluations=1)
    assert asked == [left]
    # neither the solver's bound nor its schedule is better
    assert found[:-1] == plain[:-1]
    find_schedule(UNEVEN, exact=True, evaluations=1)
    assert asked == [left, 20.0]


def test_an_exact_search_begins_in_the_second_half_of_the_time(asked, clock):
    """The clock goes a step for each evaluation, and one before the first and after the
    last.
    """
    clock(1.0)
    found = find_schedule(UNEVEN, seconds=20, exact=True)
    assert asked == [8.0] and found.found_by.endswith(
        "(the clock ended the search after 10)"
    )
    assert found.seconds == 13.0


def test_a_search_whose_time_is_over_does_not_finish_the_schedule_that_it_builds(
    monkeypatch,
):
    """The story: a search of 5 s took minutes, because a schedule of a million actions
    took one to build.
    """
    now = iter(range(10**9))
    monkeypatch.setattr("minipipe.search.heuristic.perf_counter", lambda: next(now))
    # 12,288 actions: the clock is looked at three times
    workload = Costs().workload(range(32), 128, 20)
    search = Search(workload, Objective.SPAN, 0.0, seed=0)
    search.run(inf, seconds=2)
    assert search.is_late and search.best is not None and search.evaluations == 1


def test_a_workload_of_which_one_schedule_takes_long_is_refused_with_its_size():
    with pytest.raises(
        ScheduleError, match="1,179,648 actions, .* expected at most 1,000,000 actions"
    ):
        find_schedule(Costs().workload(range(384), 1024))


def test_whoever_watches_is_told_how_far_the_search_is():
    told = []
    find_schedule(UNEVEN, evaluations=3, watch=told.append)
    assert (
        told[0]()
        == "tried 3 schedules, of 3 at most; the best has 110, the bound is 90"
    )
