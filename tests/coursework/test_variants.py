"""Numbers of one's own: drawn from a name, the same for student and grader, right for
every draw.
"""

import json
from collections import Counter

import pytest

from minipipe.cli import main
from minipipe.coursework.checking import load, run_test
from minipipe.coursework.exercise import exercises_in, find_source
from tests.coursework.small_course import asked_here
from tests.coursework.test_exercises import failures_of
from tests.launch import slowly

EXERCISES = [exercise for exercise in exercises_in(find_source()) if exercise.variants]


by_student = pytest.mark.parametrize(
    ("exercise", "student"),
    [
        (slowly if at else pytest.param)(exercise, name, id=f"{exercise.name} {name}")
        for exercise in EXERCISES
        for at, name in enumerate(exercise.all_drawn())
    ],
)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_the_alternatives_differ_and_names_are_found_that_draw_each(exercise):
    """The story: an alternative is also in the list of VARIANTS, where it was taken for
    drawn.
    """
    assert all(len(set(group)) == len(group) for group in exercise.variants)
    drawn = [exercise.drawn_by(student) for student in exercise.all_drawn()]
    assert [set(indices) for indices in zip(*drawn)] == [
        set(range(len(group))) for group in exercise.variants
    ]
    for student, indices in zip(exercise.all_drawn(), drawn):
        texts = (
            exercise.for_student(student).checks.partition("\nVARIANTS = ")[0]
            + exercise.for_student(student).solution
        )
        for group, index in zip(exercise.variants, indices):
            assert all(text in texts for text in group[index])


@by_student
@pytest.mark.slow
def test_whatever_a_name_draws_the_solution_passes_the_stub_does_not_and_each_wrong_answer_fails(
    exercise, student
):
    drawn = exercise.for_student(student)
    assert failures_of(drawn, drawn.solution) == {}
    assert failures_of(drawn, drawn.stub).keys() == {test.name for test in drawn.tests}
    for why, old, new in load("", drawn.checks).WRONG_ANSWERS:
        assert old in drawn.solution and failures_of(
            drawn, drawn.solution.replace(old, new)
        ), why


def test_the_answer_of_one_student_is_none_for_another():
    """The first level of the puzzle has a number of microbatches of one's own."""
    (puzzle,) = [exercise for exercise in EXERCISES if exercise.name == "14_puzzle"]
    drawn = {
        each.solution: each
        for each in map(puzzle.for_student, ("ada", "bob", "eve", "zoe", "max", "kim"))
    }
    assert len(drawn) == 3
    for mine in drawn.values():
        for theirs in drawn.values():
            task = asked_here(mine.name, theirs.solution)
            passed = run_test(load("", mine.checks).test_level_1_is_par, task).passed
            assert passed == (mine is theirs)


def test_every_alternative_is_drawn_about_equally_often_and_groups_by_themselves():
    (bubble,) = [exercise for exercise in EXERCISES if exercise.name == "05_bubble"]
    drawn = [bubble.for_student(f"s{number}").checks for number in range(300)]
    both = Counter(
        tuple(
            next(t for (t, *_) in group if t in text.partition("WRONG")[0])
            for group in bubble.variants[:2]
        )
        for text in drawn
    )
    assert len(both) == 9 and min(both.values()) > 15


def test_a_name_draws_the_same_in_any_case_with_blanks_around_and_however_it_is_encoded():
    for exercise in EXERCISES:
        drawn = {
            exercise.for_student(name).checks
            for name in ("Zoë", " zoë\n", "ZOË", "Zoe\u0308")
        }
        assert len(drawn) == 1


@pytest.mark.slow
def test_student_and_grader_draw_the_same_in_their_own_processes_and_calls(
    tmp_path, capsys
):
    """Handed out by name and graded by the name of the directory; under another name
    the numbers are others.
    """
    others = {"zoe", "max"}
    for name in sorted(others):
        assert (
            main(["coursework", str(tmp_path / "class" / name), "--student", name]) == 0
        )
        (puzzle,) = [e.for_student(name) for e in EXERCISES if e.name == "14_puzzle"]
        assert (tmp_path / "class" / name / "14_puzzle.py").read_text() == puzzle.stub
        assert (
            f"minipipe grade . --student {name} "
            in (tmp_path / "class" / name / "README.md").read_text()
        )
        (tmp_path / "class" / name / "14_puzzle.py").write_text(puzzle.solution)
    capsys.readouterr()
    words = ["grade", str(tmp_path / "class"), "--only", "14_puzzle", "--json"]
    assert main([*words, "--variants"]) == 0
    assert main(words) == 1
    reports = [
        json.loads(line)["submissions"] for line in capsys.readouterr().out.splitlines()
    ]
    assert {each["points"] for each in reports[0]} == {18} and {
        each["points"] for each in reports[1]
    } != {18}
    mine = ["grade", str(tmp_path / "class" / "zoe"), "--only", "14_puzzle"]
    assert main([*mine, "--student", "zoe"]) == 0 and main(
        [*mine, "--student", "somebody else"]
    ) in (0, 1)
    assert main([*words, "--student", "zoe"]) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_a_file_whose_statement_has_other_numbers_than_are_graded_is_remarked_on(
    tmp_path, capsys
):
    """The story: copies were handed out by name and graded without; the report gave no
    reason for lost points.
    """
    (bubble,) = [exercise for exercise in EXERCISES if exercise.name == "05_bubble"]
    student = next(
        name
        for name in bubble.all_drawn()
        if bubble.for_student(name).statement != bubble.statement
    )
    (tmp_path / "05_bubble.py").write_text(bubble.for_student(student).solution)
    words = ["grade", str(tmp_path), "--only", "05_bubble"]
    remark = (
        "the numbers of its statement are not the graded ones; --variants or "
        "--student selects them"
    )
    for more, is_said in (
        ([], True),
        (["--student", student], False),
        (["--csv", str(tmp_path / "grades.csv")], True),
    ):
        main([*words, *more])
        assert (remark in capsys.readouterr().out) == is_said
    assert remark in (tmp_path / "grades.csv").read_text()
    (tmp_path / "05_bubble.py").write_text(bubble.stub)
    main(words)
    assert remark not in capsys.readouterr().out
