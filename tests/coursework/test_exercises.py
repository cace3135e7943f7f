"""Every exercise: its solution passes, its stub gets nothing, and every wrong answer
fails.
"""

from itertools import product

import numpy as np
import pytest

from minipipe import Action, Costs, Schedule, schedules, simulate, verify
from minipipe.coursework import Task
from minipipe.coursework.checking import load, run_test
from minipipe.coursework.exercise import exercises_in, find_source
from minipipe.schedules.analysis.bounds import lower_bound
from minipipe.schedules.analysis.workload import Objective
from minipipe.search.finding import find_schedule
from tests.coursework.small_course import asked_here
from tests.launch import ROOT

EXERCISES = exercises_in(find_source())
CHECKS = {
    exercise.name: load(f"checks of {exercise.name}", exercise.checks)
    for exercise in EXERCISES
}
by_exercise = pytest.mark.parametrize(
    "exercise", EXERCISES, ids=lambda exercise: exercise.name
)
by_wrong_answer = pytest.mark.parametrize(
    ("exercise", "number"),
    [
        (exercise, number)
        for exercise in EXERCISES
        for number in range(len(CHECKS[exercise.name].WRONG_ANSWERS))
    ],
    ids=lambda value: value if isinstance(value, int) else value.name,
)


def failures_of(exercise, text, is_enough=lambda outcome: False):
    """Return what failed, by the test's name."""
    task = asked_here(exercise.name, text)
    checks = (
        CHECKS[exercise.name]
        if exercise in EXERCISES
        else load("checks of a variant", exercise.checks)
    )
    failed = {}
    for test in exercise.tests:
        outcome = run_test(getattr(checks, test.name), task)
        if not outcome.passed:
            failed[test.name] = outcome
            if is_enough(outcome):
                break
    return failed


def test_the_tasks_are_numbered_without_a_gap():
    assert [exercise.name[:2] for exercise in EXERCISES] == [
        f"{number:02}" for number in range(1, 1 + len(EXERCISES))
    ]
    assert len(EXERCISES) >= 12


@by_exercise
def test_the_solution_passes_every_test(exercise):
    assert failures_of(exercise, exercise.solution) == {}


@by_exercise
def test_the_stub_runs_and_fails_every_test(exercise):
    assert failures_of(exercise, exercise.stub).keys() == {
        test.name for test in exercise.tests
    }


@by_wrong_answer
def test_a_wrong_answer_fails_with_a_reason(exercise, number):
    why, old, new = CHECKS[exercise.name].WRONG_ANSWERS[number]
    assert old in exercise.solution, f"{exercise.name} has no {old!r}"
    failed = failures_of(
        exercise, exercise.solution.replace(old, new), is_enough=lambda outcome: True
    )
    assert failed, f"{exercise.name} accepts a wrong answer: {why}"
    assert all(outcome.reason for outcome in failed.values())


NO_ANSWERS = (
    None,
    [],
    [[]],
    [[], []],
    0,
    1,
    float("nan"),
    float("inf"),
    "",
    "0F0",
    np.zeros(0),
    np.zeros(()),
    {},
)


@pytest.mark.slow
@by_exercise
def test_who_answers_every_call_alike_gets_no_point(exercise):
    """A process that returns what it likes, without the checks having run there. The
    story: results were compared pair by pair, and none with none at all is no pair."""
    for answer in NO_ANSWERS:
        nothing_else = Task(lambda function, given, answer=answer: answer)
        passed = [
            test
            for test in exercise.tests
            if run_test(getattr(CHECKS[exercise.name], test.name), nothing_else).passed
        ]
        # a legal schedule has no stuck rank; 1 microbatch
        allowed = {("09_verifier_rule", "[]"), ("05_bubble", "1")}
        assert not passed or (exercise.name, str(answer)) in allowed, (answer, passed)


@by_exercise
def test_there_are_three_wrong_answers_and_tests_of_both_kinds(exercise):
    reasons = [why for why, _, _ in CHECKS[exercise.name].WRONG_ANSWERS]
    assert len(set(reasons)) == len(reasons) >= 3 and all(
        len(why) > 30 for why in reasons
    )
    assert sum(test.is_hidden for test in exercise.tests) >= 2
    assert sum(not test.is_hidden for test in exercise.tests) >= 2


@by_exercise
def test_the_statement_says_what_why_by_example_and_what_is_checked(exercise):
    number, _, words = exercise.name.partition("_")
    assert exercise.title.startswith(f"{number} ") and ": " in exercise.title, words
    assert len(list((ROOT / "tutorials").glob(f"{exercise.lesson}_*.py"))) == 1
    assert "Example" in exercise.statement and "\nChecked" in exercise.statement


@by_exercise
def test_every_test_says_what_it_means(exercise):
    assert all(
        test.meaning.endswith(".") and len(test.meaning) > 20 for test in exercise.tests
    )
    assert any(test.hint for test in exercise.tests)


# -- the puzzle ------------------------------------------------------------------------

PUZZLE = next(exercise for exercise in EXERCISES if exercise.name == "14_puzzle")
LEVELS = CHECKS[PUZZLE.name].LEVELS
by_level = pytest.mark.parametrize("number", LEVELS)


def least_of_all(level):
    """Return the shortest makespan of all schedules, and how many states a search of
    them all meets.

    For stages and actions that take one unit each, and without latency. A rank gains
    nothing by waiting when an action is ready: move its next action of that kind to
    now, and everything else stays possible. (An F that is moved forward takes memory
    earlier, but there was room, and no other F lies between.) So all ranks step unit by
    unit, and a state is what each of them has done: the numbers of its F, I and W.
    """
    assert level.costs == Costs()
    ranks, all_done = range(level.num_ranks), (level.num_microbatches,) * 3

    def choices(state, rank):
        f, i, w = state[rank]
        has_input = rank == 0 or state[rank - 1][0] > f
        has_gradient = rank == ranks[-1] or state[rank + 1][1] > i
        if f < level.num_microbatches and f - w < level.memory_limit and has_input:
            yield f + 1, i, w
        if i < f and has_gradient:
            yield f, i + 1, w
        if w < i:
            yield f, i, w + 1

    states, time, met = {((0, 0, 0),) * level.num_ranks}, 0, 0
    while (all_done,) * level.num_ranks not in states:
        steps = (
            [list(choices(state, rank)) or [state[rank]] for rank in ranks]
            for state in states
        )
        states, time = (
            {state for options in steps for state in product(*options)},
            time + 1,
        )
        met += len(states)
    return time, met


@pytest.mark.parametrize(
    ("memory_limit", "makespan"), [(1, 72), (2, 41), (3, 31), (4, 27), (5, 27)]
)
def test_the_search_of_all_schedules_agrees_with_what_a_solver_has_proved(
    memory_limit, makespan
):
    level = LEVELS[5]._replace(memory_limit=memory_limit)
    assert least_of_all(level)[0] == makespan


@by_level
def test_the_par_of_a_level_is_reached_by_a_legal_schedule_within_its_memory(number):
    level, text = (
        LEVELS[number],
        getattr(load(PUZZLE.name, PUZZLE.solution), f"level_{number}")(),
    )
    schedule = Schedule.from_text(text)
    verify(schedule, level.memory_limit)
    assert (
        schedule.placement == tuple(range(level.num_ranks))
        and schedule.num_microbatches == level.num_microbatches
    )
    assert simulate(schedule, level.costs).makespan == level.par


@by_level
def test_the_par_of_a_level_cannot_be_beaten_and_no_named_schedule_has_it(number):
    level = LEVELS[number]
    workload = level.costs.workload(
        range(level.num_ranks), level.num_microbatches, level.memory_limit
    )
    bound = lower_bound(workload, Objective.MAKESPAN)
    if number == 5:
        assert bound.value < level.par and least_of_all(level) == (level.par, 3391)
    else:
        assert bound.value == level.par
    if number == 4:
        waits = (
            "must wait because its memory is full: 12 before its first I, 9 after "
            "its last F."
        )
        assert bound.reason == f"Rank 0 computes for 18 and {waits}"
    for name in ("1f1b", "zb-h1", "eager-1f1b"):
        schedule = schedules.build(name, level.num_ranks, level.num_microbatches)
        if max(schedules.peak_activations(schedule)) <= level.memory_limit:
            assert simulate(schedule, level.costs).makespan > level.par


@by_level
@pytest.mark.slow
def test_a_search_reaches_par_so_that_no_assignment_grades_the_puzzle(number):
    level = LEVELS[number]
    workload = level.costs.workload(
        range(level.num_ranks), level.num_microbatches, level.memory_limit
    )
    result = find_schedule(workload, Objective.MAKESPAN, evaluations=5000)
    assert simulate(result.schedule, level.costs).makespan == level.par


@by_level
def test_the_statement_of_a_level_is_what_is_checked(number):
    level = LEVELS[number]
    (row,) = [
        line.split()
        for line in PUZZLE.statement.splitlines()
        if line.split()[:1] == [str(number)]
    ]
    figures = f"F={row[3]},I={row[4]},W={row[5]},latency={row[6]}"
    assert [int(row[i]) for i in (1, 2, 7, 9)] == [
        level.num_ranks,
        level.num_microbatches,
        level.memory_limit,
        level.par,
    ]
    assert Costs.parse(figures).durations(level.num_ranks) == level.costs.durations(
        level.num_ranks
    )
    one_f_one_b = schedules.one_f_one_b(level.num_ranks, level.num_microbatches)
    assert simulate(one_f_one_b, level.costs).makespan == float(row[8])


def test_what_a_statement_says_of_numbers_is_so():
    """The figures that are quoted in statements, from the solutions."""
    task = {
        exercise.name[:2]: load(exercise.name, exercise.solution)
        for exercise in EXERCISES
    }
    assert (
        task["05"].bubble_fraction(4, 8) == 3 / 11
        and task["05"].microbatches_for(4, 0.2) == 12
    )
    wrong = Schedule("10", tuple(range(4)) * 2, 8, microbatch_major_rows(4, 8, 2))
    assert simulate(wrong, Costs(1, 1, 0)).makespan == 86
    stacked = task["11"].place_weights(
        [[Action.parse(cell) for cell in row.split()] for row in TWO_ROWS], 2
    )
    assert [" ".join(map(str, row)) for row in stacked] == [
        "0F0 0F1 0I0 0W0 0I1 0W1",
        "1F0 1I0 1F1 1I1 1W0 1W1",
    ]
    (mistaken,) = (load(e.name, e.stub) for e in EXERCISES if e.name == "15_gpipe_time")
    assert (
        mistaken.gpipe_time([1] * 4, [2] * 4, 8) == 26
        and task["15"].gpipe_time([1] * 4, [2] * 4, 8) == 33
    )
    assert task["15"].gpipe_time([1, 1], [2, 2], 2) == 9
    assert task["13"].partition([99, 100, 1], 2) == [1, 2]
    assert task["16"].shares(
        [np.array([[3, 1, 2]]), np.array([[3, -100, -100]])], -100
    ) == [3 / 4, 1 / 4]


TWO_ROWS = ("0F0 0F1 0I0 0I1", "1F0 1I0 1F1 1I1")


def microbatch_major_rows(num_ranks, num_microbatches, num_chunks):
    (exercise,) = (
        exercise for exercise in EXERCISES if exercise.name == "10_interleaved_order"
    )
    return load(exercise.name, exercise.stub).rows(
        num_ranks, num_microbatches, num_chunks
    )
