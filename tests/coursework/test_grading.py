"""Grading: every test of a student's file gets its verdict, and the reason is said."""

import json
import re
import shutil

import pytest

from minipipe.cli import main
from minipipe.coursework import (
    Report,
    TaskReport,
    Unexpected,
    expect_close,
    expect_type,
    grade,
)
from minipipe.coursework.checking import CheckResult, load, run_test
from minipipe.coursework.exercise import exercises_in, find_source
from minipipe.coursework.leaderboard import Entry
from minipipe.coursework.results import as_csv, as_table
from minipipe.errors import CourseworkError
from tests.coursework.small_course import CHECKS, SOLUTION, asked_here, double, reasons
from tests.launch import slowly

EXERCISES = exercises_in(find_source())


def test_the_solution_gets_every_point_and_the_stub_none(course):
    solved = course(SOLUTION)
    assert solved.points == 3 and solved.passed
    stub = course(double('raise NotImplementedError("twice the number")'))
    assert stub.points == 0 and stub.is_untouched
    assert reasons(stub) == ["not written yet: twice the number"] * 3


@pytest.mark.usefixtures("in_process")
def test_what_failed_is_said_with_expected_got_and_hint(course):
    task = course(double("return number + 2"))
    assert [outcome.passed for _, outcome in task.outcomes] == [True, False, False]
    test, outcome = task.outcomes[1]
    assert (test.name, test.meaning) == ("test_nothing", "Twice nothing is nothing.")
    assert outcome[:5] == (False, "double(0): expected 0, got 2", "0", "2", "")
    assert (task.points, task.possible) == (1, 3)


@pytest.mark.usefixtures("in_process")
def test_an_error_is_said_with_the_line_of_the_file(course):
    task = course(double("half = number / 2\nreturn half.twice"))
    assert (
        reasons(task)[0]
        == "it raised AttributeError: 'float' object has no attribute 'twice'"
    )
    assert task.outcomes[0][1].where == "line 4: return half.twice"


def checked(text):
    """Return the reasons of the tests."""
    checks = load("checks", CHECKS)
    tests = [checks.test_two, checks.test_nothing, checks.test_a_negative_number]
    return [run_test(test, asked_here("01_double", text)).reason for test in tests]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import sys; sys.exit(0)", "it called sys.exit(0); return a result instead"),
        (
            "return double(number)",
            "it raised RecursionError: maximum recursion depth exceeded",
        ),
        ("raise KeyboardInterrupt", "it raised KeyboardInterrupt: "),
        ("raise MemoryError", "it needed more memory than a task may use"),
        ("assert number > 3, 'too small'", "too small"),
        ("assert number > 3", "an assertion failed"),
        (
            "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})",
            "it raised Odd: (an error that cannot be",
        ),
    ],
)
def test_what_a_test_raises_is_its_reason(body, reason):
    found = checked(double(f"if number == 2:\n    {body}\nreturn 2 * number"))
    assert found[0].startswith(reason) and found[1:] == ["", ""]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return None", "double(2): expected 4, got None"),
        ("return str(2 * number)", "double(2): expected 4, got '4'"),
        (
            "return EqualsAll()",
            "double(2): expected numbers, text, or lists of them, got an object",
        ),
        ("return 'x' * 10 ** 7", "double(2): expected 4, got 'xxxx"),
        (
            "return BadRepr()",
            "double(2): expected numbers, text, or lists of them, got an object",
        ),
    ],
)
def test_what_is_of_a_wrong_type_is_no_result(body, words):
    classes = (
        "class EqualsAll:\n    __eq__ = lambda self, other: True\n    __hash__ = None\n"
    )
    classes += "class BadRepr:\n    def __repr__(self): raise ValueError\n"
    for reason in checked(double(body, before=classes)):
        assert reason and len(reason) < 1000
    assert checked(double(body, before=classes))[0].startswith(words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "def double(number)\n    return 4\n",
            "it is not valid Python: expected ':' (line 1: def double(number))",
        ),
        (
            "import numpie\n",
            (
                "it raised ModuleNotFoundError: No module named 'numpie' (line 1: "
                "import numpie)"
            ),
        ),
        (
            "x = 1\nnumpie",
            "it raised NameError: name 'numpie' is not defined (line 2: numpie)",
        ),
        slowly(
            "import os\nos._exit(3)\n", "it ended the whole process, with exit status 3"
        ),
        ("import sys\nsys.exit(3)\n", "it called sys.exit(3)"),
    ],
)
def test_a_file_that_does_not_load_is_said_once(course, text, words, request):
    if "_exit" not in text:
        request.getfixturevalue("in_process")
    task = course(text)
    assert task.points == 0 and task.problem.startswith(
        f"01_double.py does not load: {words}"
    )
    assert str(task).count("does not load") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        slowly(
            b"\xff\xfe",
            "it is not valid Python: invalid or missing encoding declaration",
        ),
        (
            b"# coding: rot13\n",
            (
                "it is not valid Python: 'rot13' is not a text encoding; use "
                "codecs.decode()"
            ),
        ),
        slowly(
            b"# coding: nothing\n", "it is not valid Python: unknown encoding: nothing"
        ),
        slowly(
            b"# coding: latin-1\n# \xe9\nx = (\n",
            "it is not valid Python: '(' was never closed (line 3: x = ()",
        ),
        slowly(b"x = 1\0\n", "it "),
        slowly(
            b"x = " + b"(" * 500_000,
            "it is not valid Python: too many nested parentheses (line 1: x = (((",
        ),
        slowly(b"x = " + b"-" * 500_000 + b"1", "it "),
        slowly(b"x = 1 +" + b" 1 +" * 100_000 + b"\n", "it "),
    ],
    ids=lambda value: value[:20] if isinstance(value, bytes) else "",
)
def test_a_file_that_python_cannot_read_is_said(course, content, reason):
    """The story: the report of '# coding: rot13' was that the process had ended with
    exit status 1, since Python's traceback read the file again to quote a line, and
    failed."""
    task = course(content)
    assert task.points == 0 and task.problem.startswith(
        f"01_double.py does not load: {reason}"
    ), task.problem
    assert len(task.problem) < 500 and str(task).count("\n") == 0


@pytest.mark.parametrize(
    "encoding", ["latin-1", *map(slowly, ("cp1252", "utf-8-sig", "utf-16-le"))]
)
def test_a_file_is_read_in_the_encoding_that_python_would_take(course, encoding):
    text = f"# coding: {encoding}\n# Zoë\n" + double("raise ValueError('Zoë')")
    task = course(text.encode(encoding))
    assert task.points == 0 and (
        encoding == "utf-16-le" or reasons(task)[0] == "it raised ValueError: Zoë"
    )


@pytest.mark.slow
def test_a_line_that_is_quoted_is_cut(course):
    task = course(double("return [" + "0, " * 200_000 + "number / 0]"))
    assert (
        reasons(task)[0] == "it raised ZeroDivisionError: division by zero"
        and len(str(task)) < 3000
    )


def test_a_function_that_is_gone_is_missed_and_its_new_name_guessed():
    missed = (
        "double: expected a function of this name, as in the original file, got none"
    )
    assert checked("def triple(x): return 3 * x\n")[0] == missed
    guess = f"{missed}; is it doubled? Name it double again"
    assert checked("import math as _doubl\ndef doubled(x): return 2 * x\n")[0] == guess


def test_a_function_that_prints_its_result_is_told_to_return_it():
    with pytest.raises(
        Unexpected,
        match="expected a number or an array, got None, as from a function that",
    ):
        expect_close(None, 4.0, "double(2)")
    with pytest.raises(Unexpected, match="expected text, got 4 of type int"):
        expect_type(4, str, "double(2)")


def test_a_table_cuts_what_is_long_and_csv_does_not():
    task = {
        "task": "05_bubble",
        "points": 0,
        "passed": False,
        "flags": ["line 3: gc"],
        "problem": "x" * 300,
    }
    task["is_of_another"] = False
    report = {
        "submission": "ada",
        "points": 0,
        "possible": 7,
        "days_late": 0,
        "score": 0,
        "containment": None,
    }
    report["tasks"] = [task]
    assert as_table([report]).splitlines()[1:] == [
        f"ada              0   7      0     0  {'x' * 118} …",
        "… is in full in the report of --csv",
    ]
    assert f"{'x' * 300}; uses names that are not allowed: line 3: gc" in as_csv(
        [report]
    )


DATACLASS = """
from dataclasses import dataclass

@dataclass
class Twice:
    number: int
"""


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("future", ["", "from __future__ import annotations"])
def test_a_file_may_define_a_dataclass(course, future):
    """Dataclasses look into sys.modules for their module; and no __future__ of the
    grader's is the student's.
    """
    has_strings = "assert (Twice.__annotations__['number'] == 'int') == " + str(
        bool(future)
    )
    assert course(
        future + double(f"{has_strings}\nreturn 2 * Twice(number).number", DATACLASS)
    ).passed


@pytest.mark.usefixtures("in_process")
def test_a_file_may_be_one_that_a_windows_editor_saved(course):
    assert course(b"\xef\xbb\xbf" + SOLUTION.replace("\n", "\r\n").encode()).passed


@pytest.mark.slow
def test_two_gradings_say_the_same(course):
    """Neither addresses of objects nor the order of a set of words differ from one time
    to the next.
    """
    text = double(
        "if number:\n    return [object(), (i for i in [])][number > "
        "0]\nprint({*'abcdefgh'})\nreturn 0"
    )
    first, second = (course(text).as_json() for _ in range(2))
    assert first == second and first["points"] == 1
    assert "an object <object object>" in first["tests"][2]["reason"]


@pytest.mark.usefixtures("in_process")
def test_a_directory_may_have_any_name_and_be_a_link(course, tmp_path, monkeypatch):
    course.write(SOLUTION)
    (tmp_path / "Übung von Zoë").symlink_to(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    for given in (
        "mine",
        "./Übung von Zoë",
        "mine/../mine/",
        tmp_path / "Übung von Zoë",
    ):
        assert grade(given, source="source").passed


# -- mistakes that students make -------------------------------------------------------


def test_a_wrong_directory_is_named_with_the_right_one(course, tmp_path):
    course.write(SOLUTION)
    with pytest.raises(
        CourseworkError,
        match=(
            "There is no directory '.*nowhere'; `minipipe coursework .*nowhere` writes"
        ),
    ):
        grade(tmp_path / "nowhere", source=tmp_path / "source")
    (tmp_path / "mine" / "notes").mkdir()
    for directory in (tmp_path / "mine" / "notes", tmp_path):
        with pytest.raises(
            CourseworkError,
            match=f"holds none of 01_double.py .*'{tmp_path}/mine' does: grade that",
        ):
            grade(directory, source=tmp_path / "source")
    with pytest.raises(CourseworkError, match="is a file; name its directory"):
        grade(tmp_path / "mine" / "01_double.py", source=find_source())


@pytest.mark.usefixtures("in_process")
def test_a_renamed_file_is_found_by_its_name(course, tmp_path):
    course.write(SOLUTION)
    (tmp_path / "mine" / "01_double.py").rename(tmp_path / "mine" / "double_mine.py")
    with pytest.raises(CourseworkError, match="holds none of"):
        grade(tmp_path / "mine", source=tmp_path / "source")
    (tmp_path / "source" / "02_other.py").write_text(SOLUTION.replace("01", "02"))
    (tmp_path / "source" / "checks" / "02_other.py").write_text(CHECKS)
    (tmp_path / "mine" / "02_other.py").write_text(SOLUTION)
    report = grade(tmp_path / "mine", source=tmp_path / "source")
    assert (
        report.tasks[0].problem
        == "01_double.py is missing; is it double_mine.py? Name it 01_double.py again"
    )
    assert (report.points, report.possible, report.passed) == (3, 6, False)


@pytest.mark.parametrize(
    "name", ["05_buble", *map(slowly, ("bubble", "05", "05_bubble.py"))]
)
def test_a_misspelt_task_is_guessed(tmp_path, name, capsys):
    (tmp_path / "05_bubble.py").write_text("")
    assert main(["grade", str(tmp_path), "--only", name]) == 2
    assert (
        f"There is no task '{name}'. Did you mean 05_bubble? The tasks are "
        "01_multiply, "
    ) in capsys.readouterr().err


# -- the whole, as a command -----------------------------------------------------------


@pytest.fixture
def almost_solved(tmp_path):
    """A copy with every solution but one, whose task is a stub."""
    directory = tmp_path / "mine"
    directory.mkdir()
    for exercise in EXERCISES:
        is_left = exercise.name == "06_warmup"
        (directory / f"{exercise.name}.py").write_text(
            exercise.stub if is_left else exercise.solution
        )
    return directory


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    "names",
    [{"03_all_reduce", "06_warmup"}, slowly({e.name for e in EXERCISES})],
    ids=len,
)
def test_one_stub_loses_its_own_points_and_no_others(
    names, almost_solved, tmp_path, capsys
):
    (tmp_path / "source" / "checks").mkdir(parents=True)
    for name in names:
        for path in (f"{name}.py", f"checks/{name}.py"):
            shutil.copy(find_source() / path, tmp_path / "source" / path)
    assert (
        main(
            [
                "grade",
                str(almost_solved),
                "--source",
                str(tmp_path / "source"),
                "--json",
            ]
        )
        == 1
    )
    report = json.loads(capsys.readouterr().out)
    lost = {
        task["task"]: task["possible"] - task["points"]
        for task in report["tasks"]
        if not task["passed"]
    }
    possible = {
        exercise.name: len(exercise.tests)
        for exercise in EXERCISES
        if exercise.name in names
    }
    assert lost == {"06_warmup": possible["06_warmup"]}
    assert report["possible"] - report["points"] == sum(lost.values())
    assert report["possible"] == sum(possible.values())


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_the_table_ends_in_the_sum_and_names_what_comes_next(almost_solved, capsys):
    assert main(["grade", str(almost_solved), "--only", "06_warmup"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["06_warmup", "0", "of", "6", "not", "started"]
    assert out[-2:] == [
        "next: 06_warmup (lesson 06), the rows of 1F1B",
        "0 of 6 points, 0 of 1 task done",
    ]
    assert main(["grade", str(almost_solved), "--only", "05_bubble"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "7 of 7 points, 1 of 1 task done"


def test_the_next_task_is_that_of_the_earliest_lesson_left():
    """The story: with the tasks of lessons 05 and 11 left, a student was sent to
    14_puzzle of lesson 11 first, since 15_gpipe_time of lesson 05 has a larger number.
    """
    tasks = [
        _graded(exercise, exercise.name not in ("14_puzzle", "15_gpipe_time"))
        for exercise in EXERCISES
    ]
    assert "\nnext: 15_gpipe_time (lesson 05), find the bug;" in str(
        Report("mine", tuple(tasks))
    )


def _graded(exercise, passed):
    return TaskReport(
        exercise, tuple((test, CheckResult(passed)) for test in exercise.tests)
    )


def test_json_is_what_the_docstring_says(course, capsys, tmp_path):
    course.write(double("print('here')\nreturn number + 2"))
    assert (
        main(
            [
                "grade",
                str(tmp_path / "mine"),
                "--source",
                str(tmp_path / "source"),
                "--json",
            ]
        )
        == 1
    )
    report = json.loads(capsys.readouterr().out)
    (task,), containment = report.pop("tasks"), report.pop("containment")
    figures = {
        "points": 1,
        "possible": 3,
        "passed": False,
        "days_late": 0,
        "score": 1,
        "next": "01_double",
    }
    assert report == {
        "submission": "mine",
        "directory": str(tmp_path / "mine"),
        **figures,
    }
    assert task["tests"][2] == {
        "test": "test_a_negative_number",
        "meaning": "Twice minus three is minus six.",
        "hidden": True,
        "points": 0,
        "possible": 1,
        "passed": False,
        "reason": "double(-3): expected -6, got -1",
        "expected": "-6",
        "got": "-1",
        "where": "",
        "hint": "",
    }
    documented = set(re.findall(r'"(\w+)":', Report.as_json.__doc__))
    lists = (
        containment.keys()
        | task.keys()
        | task["tests"][0].keys()
        | {*Entry._fields, "gap"}
    )
    assert documented == report.keys() | {"tasks", "containment"} | lists


@pytest.mark.slow
def test_wrong_usage_is_2(tmp_path, capsys):
    assert main(["grade", str(tmp_path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == "not-found"
    (tmp_path / "05_bubble.py").write_text("")
    for limit in ("0", "nan", "-3", "inf"):
        assert main(["grade", str(tmp_path), "--time-limit", limit]) == 2
        assert "expected seconds, more than 0" in capsys.readouterr().err
