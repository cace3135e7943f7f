"""The student's copy: what is in it, what is not, and that nothing of a student is
overwritten.
"""

import ast
import json
import re
import sys

import pytest

from minipipe.cli import main
from minipipe.coursework import write_coursework
from minipipe.coursework.checking import load
from minipipe.coursework.exercise import exercises_in, find_source
from minipipe.errors import CourseworkError
from tests.coursework.small_course import CHECKS, SOLUTION
from tests.launch import run

EXERCISES = exercises_in(find_source())


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    directory = tmp_path_factory.mktemp("student") / "mine"
    write_coursework(directory)
    return directory


def test_it_holds_a_stub_and_a_test_for_each_task_and_a_readme(copy):
    tasks = {exercise.name for exercise in EXERCISES}
    expected = {f"{name}.py" for name in tasks} | {f"test_{name}.py" for name in tasks}
    assert {path.name for path in copy.iterdir()} == expected | {
        "README.md",
        "conftest.py",
        "pytest.ini",
    }


def test_two_copies_have_the_same_bytes(copy, tmp_path):
    write_coursework(tmp_path / "another name")
    for path in copy.iterdir():
        assert path.read_bytes() == (tmp_path / "another name" / path.name).read_bytes()


def lines_of(text):
    """Return what is distinctive in a text: its longer lines, not ``for rank in
    range(num_ranks):``.
    """
    return {line.strip() for line in text.splitlines() if len(line.strip()) > 32}


def solutions_of(exercise):
    return re.findall(r"# SOLUTION\n(.*?)# STUB", exercise.solution, re.DOTALL)


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_it_holds_no_solution_no_hidden_test_and_no_wrong_answer(copy, exercise):
    everything = lines_of(
        "\n".join(path.read_text() for path in sorted(copy.iterdir()))
    )
    solution = lines_of("".join(solutions_of(exercise)))
    assert solution and not everything & solution
    hidden_names = [test.name for test in exercise.tests if test.is_hidden]
    hidden = exercise.checks.removeprefix(exercise.visible_checks.rstrip())
    assert hidden_names and all(f"def {name}(" in hidden for name in hidden_names)
    own = (copy / f"test_{exercise.name}.py").read_text()
    assert not [name for name in hidden_names if name in own]
    assert "WRONG_ANSWERS" in hidden and "WRONG_ANSWERS" not in own
    assert not everything & {
        line
        for why, _, _ in load("", exercise.checks).WRONG_ANSWERS
        for line in lines_of(why)
    }


def test_no_marker_is_left_in_it(copy):
    for path in copy.glob("*.py"):
        assert not re.search(
            r"# (SOLUTION|STUB|END|HIDDEN)$", path.read_text(), re.MULTILINE
        ), path
        ast.parse(path.read_text())


def test_the_readme_lists_every_task_with_its_points_and_title(copy):
    readme = (copy / "README.md").read_text()
    for exercise in EXERCISES:
        hidden = sum(test.is_hidden for test in exercise.tests)
        title = exercise.title.partition(": ")[2]
        assert (
            f"| {exercise.name} | {len(exercise.tests)} | {hidden} | "
            f"{exercise.lesson} | {title} |"
        ) in readme
    assert (
        f"{sum(len(exercise.tests) for exercise in EXERCISES)} points in all" in readme
    )


@pytest.mark.slow
def test_pytest_runs_it_from_anywhere(copy, tmp_path):
    """Its stubs fail, a solution passes; also where the directory lies inside a clone
    with settings of its own.
    """
    (tmp_path / "setup.cfg").write_text(
        "[tool:pytest]\naddopts = --import-mode=importlib --doctest-modules\n"
    )
    directory = tmp_path / "mine"
    write_coursework(directory)
    solved = EXERCISES[4]
    (directory / f"{solved.name}.py").write_text(solved.solution)
    done = run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", directory])
    visible = {e.name: sum(not test.is_hidden for test in e.tests) for e in EXERCISES}
    passed = visible[solved.name]
    assert (
        done.code == 1
        and f"{sum(visible.values()) - passed} failed, {passed} passed" in done.out
    ), done.out


def test_a_copy_of_other_exercises_names_no_command_that_a_student_cannot_run(
    tmp_path, capsys
):
    """The story: `minipipe grade .` in such a copy looked for minipipe's own
    exercises.
    """
    (tmp_path / "source" / "checks").mkdir(parents=True)
    (tmp_path / "source" / "01_double.py").write_text(SOLUTION)
    (tmp_path / "source" / "checks" / "01_double.py").write_text(CHECKS)
    assert (
        main(
            [
                "coursework",
                str(tmp_path / "mine"),
                "--source",
                str(tmp_path / "source"),
                "--student",
                "ada",
            ]
        )
        == 0
    )
    assert "wrote 1 task to" in capsys.readouterr().out
    readme = (tmp_path / "mine" / "README.md").read_text()
    assert (
        "minipipe grade" not in readme
        and "Your instructor runs the hidden tests" in readme
    )
    assert "    python -m pytest .                    all visible tests\n" in readme


def test_a_copy_has_no_name_of_a_file(tmp_path, capsys):
    for name in ("course.pdf", "course.html", "autograder.zip", "classroom.yml"):
        assert main(["coursework", str(tmp_path / name)]) == 2
        assert (
            f"A copy is a directory, and {name} is the name of a file; choose "
            "what to write with --as"
        ) in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_of_a_failing_test_pytest_shows_the_student_s_files_alone(tmp_path):
    write_coursework(tmp_path / "mine")
    done = run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            tmp_path / "mine" / "test_05_bubble.py",
        ]
    )
    assert (
        done.code == 1
        and "05_bubble.py:" in done.out
        and "coursework/checking.py" not in done.out
    )


def test_a_directory_that_is_not_empty_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(CourseworkError) as caught:
        write_coursework(tmp_path)
    assert caught.value.code == "unwritable"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    assert main(["coursework", str(tmp_path)]) == 2
    assert (
        "is not empty (thesis.txt), and no file is overwritten"
        in capsys.readouterr().err
    )


def test_the_command_says_what_it_wrote(tmp_path, capsys):
    assert main(["coursework", str(tmp_path)]) == 0
    assert (
        f"wrote {len(EXERCISES)} tasks to {tmp_path}; begin with"
        in capsys.readouterr().out
    )
    assert main(["coursework", str(tmp_path / "second"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert "05_bubble.py" in printed["files"]


def test_where_a_file_lies_no_directory_is_made(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["coursework", str(tmp_path / "file" / "mine"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == "not-found"


def test_a_source_without_exercises_is_refused(tmp_path, capsys):
    assert main(["coursework", str(tmp_path / "mine"), "--source", str(tmp_path)]) == 2
    assert (
        "expected files such as 05_bubble.py. Without --source, minipipe's "
        "exercises are used"
    ) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("solution", "checks", "words"),
    [
        (
            '"""01 a: b.\n\nLesson 01."""\n# SOLUTION\nx = 1\n# END\n',
            "# HIDDEN\n",
            "needs the lines # SOLUTION, # STUB and # END",
        ),
        (
            '"""01 a: b.\n\nLesson 01."""\n# SOLUTION\n# STUB\n# END\n',
            "",
            "need one line # HIDDEN; there are 0",
        ),
        (
            '"""01 a: b."""\n# SOLUTION\n# STUB\n# END\n',
            "# HIDDEN\n",
            "names no lesson",
        ),
    ],
)
def test_an_exercise_that_is_not_marked_is_refused(tmp_path, solution, checks, words):
    (tmp_path / "checks").mkdir()
    (tmp_path / "01_a.py").write_text(solution)
    with pytest.raises(CourseworkError, match="has no tests"):
        write_coursework(tmp_path / "mine", source=tmp_path)
    (tmp_path / "checks" / "01_a.py").write_text(checks)
    with pytest.raises(CourseworkError, match=words):
        write_coursework(tmp_path / "mine", source=tmp_path)
    assert not (tmp_path / "mine").exists()
