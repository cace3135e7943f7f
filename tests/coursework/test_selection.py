"""Some of the tasks: by the name of a file, or by --only, once or several times."""

import json
import zipfile
from pathlib import Path

import pytest

from minipipe.cli import main
from minipipe.coursework import grade
from minipipe.coursework.exercise import chosen_of, exercises_in, find_source
from minipipe.coursework.submission import directories_of
from minipipe.errors import CourseworkError
from tests.coursework.small_course import CHECKS, SOLUTION, double
from tests.launch import slowly

pytestmark = pytest.mark.usefixtures("in_process")

RIGHT, WRONG = double("return 2 * number"), double("return number")


@pytest.fixture
def classes(tmp_path, monkeypatch):
    """A course of three tasks, and two students with the first right, and then with
    none right.
    """
    (tmp_path / "source" / "checks").mkdir(parents=True)
    for number, name in enumerate(("double", "twice", "both"), 1):
        (tmp_path / "source" / f"0{number}_{name}.py").write_text(
            SOLUTION.replace("01", f"0{number}")
        )
        (tmp_path / "source" / "checks" / f"0{number}_{name}.py").write_text(CHECKS)
    for student in ("ada", "bob"):
        (tmp_path / student).mkdir()
        (tmp_path / student / "01_double.py").write_text(RIGHT)
        (tmp_path / student / "02_twice.py").write_text(WRONG)
        (tmp_path / student / "03_both.py").write_text(RIGHT)
        (tmp_path / student / "notes.py").write_text("")
    monkeypatch.chdir(tmp_path)


def graded(capsys, *words):
    """Return the exit status, and the names of the tasks by submission."""
    status = main(["grade", "--source", "source", "--json", *words])
    found = json.loads(capsys.readouterr().out)
    reports = found.get("submissions", [found])
    return status, {
        report["submission"]: [task["task"] for task in report["tasks"]]
        for report in reports
    }


@pytest.mark.parametrize(
    ("words", "status", "tasks"),
    [
        (["ada/01_double.py"], 0, {"ada": ["01_double"]}),
        slowly(["./ada/../ada/01_double.py"], 0, {"ada": ["01_double"]}),
        slowly(["ada/02_twice.py"], 1, {"ada": ["02_twice"]}),
        slowly(
            ["ada/03_both.py", "ada/01_double.py"], 0, {"ada": ["01_double", "03_both"]}
        ),
        (
            ["ada/01_double.py", "bob/01_double.py"],
            0,
            {"ada": ["01_double"], "bob": ["01_double"]},
        ),
        slowly(["ada", "--only", "01_double"], 0, {"ada": ["01_double"]}),
        (
            ["ada", "--only", "03_both", "--only", "01_double"],
            0,
            {"ada": ["01_double", "03_both"]},
        ),
        (
            ["ada", "bob", "--only=01_double", "--only=02_twice"],
            1,
            {"ada": ["01_double", "02_twice"], "bob": ["01_double", "02_twice"]},
        ),
        slowly(
            ["ada", "--only", "01_double", "--only", "01_double"],
            0,
            {"ada": ["01_double"]},
        ),
    ],
)
def test_the_tasks_that_are_named_are_graded_and_no_others(
    classes, capsys, words, status, tasks
):
    """The story: of two --only the last one counted, and a lesson named a file, which
    was refused.
    """
    assert graded(capsys, *words) == (status, tasks)


def test_a_file_is_graded_in_its_own_directory(classes, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "ada")
    assert main(["grade", "--source", "../source", "01_double.py", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["submission"] == "ada"
    report = grade("01_double.py", source="../source")
    assert (report.points, report.possible) == (3, 3)


def test_a_file_that_is_missing_in_its_directory_is_no_point(classes, tmp_path):
    (tmp_path / "ada" / "01_double.py").unlink()
    report = grade("ada/01_double.py", source="source")
    assert (
        report.tasks[0].problem.startswith("01_double.py is missing")
        and report.points == 0
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ["ada/01_double.py", "--only", "02_twice"],
            "names its task, 01_double; leave --only out",
        ),
        (["ada/01_double.py", "bob/02_twice.py"], "the same selection of tasks"),
        (["ada/01_double.py", "bob"], "the same selection of tasks"),
        (
            ["ada/notes.py"],
            "is a file; name its directory, a zip archive, or the file of a task",
        ),
        (["nowhere/01_double.py"], "There is no directory 'nowhere/01_double.py'"),
        (
            ["ada", "--only", "01_double", "--only", "02_twic"],
            "There is no task '02_twic'. Did you mean 02_twice?",
        ),
        (["ada", "--only", ""], "There is no task ''"),
    ],
)
def test_a_selection_that_means_two_things_or_none_is_refused(
    classes, capsys, words, complaint
):
    assert main(["grade", "--source", "source", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_an_archive_that_is_named_as_a_task_stays_an_archive(classes, tmp_path):
    with zipfile.ZipFile(tmp_path / "eve.zip", "w") as archive:
        archive.writestr("01_double.py", RIGHT)
    assert directories_of(["eve.zip", "ada"], ["01_double.py"], None) == (
        [Path("eve.zip"), Path("ada")],
        None,
    )
    assert grade("eve.zip", source="source", only=["01_double"]).points == 3


def test_a_handout_has_the_tasks_that_are_named(tmp_path, capsys):
    words = ["coursework", str(tmp_path / "a.html"), "--as", "handout"]
    assert main([*words, "--only", "05_bubble", "--only", "01_multiply"]) == 0
    page = (tmp_path / "a.html").read_text()
    assert "05_bubble" in page and "01_multiply" in page and "14_puzzle" not in page
    with pytest.raises(CourseworkError, match="There is no task"):
        chosen_of(exercises_in(find_source()), ["05_bubble", "x"])
