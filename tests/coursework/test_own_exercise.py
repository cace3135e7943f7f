"""The page about an exercise of one's own is followed literally: its files are written,
its commands run.
"""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import jsonschema
import pytest

from minipipe import coursework
from minipipe.coursework.exercise import exercises_in
from tests.coursework.test_results import SCHEMA
from tests.launch import ROOT, environment

PAGE = (ROOT / "tutorials" / "exercises" / "README.md").read_text()
STEPS, RULES = PAGE.split("## Every rule\n")
BLOCK = re.compile(
    r"(?:^`([\w/.]+)`:\n\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE
)


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """Follow the page in an empty directory; return it, and of each command its lines
    and what it printed.
    """
    folder, ran = tmp_path_factory.mktemp("own"), []
    paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
    variables = {
        **environment(),
        "PATH": os.pathsep.join(paths),
        "PYTHONPATH": str(ROOT),
    }
    for name, language, text in BLOCK.findall(STEPS):
        if language == "python":
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        elif language == "sh":
            words = ["bash", "-c", text]
            done = subprocess.run(
                words,
                cwd=folder,
                env=variables,
                capture_output=True,
                text=True,
                check=False,
            )
            ran.append((text, done, []))
        else:
            ran[-1][2].extend(text.splitlines())
    return folder, ran


@pytest.mark.slow
def test_each_command_succeeds_and_prints_what_the_page_says(followed):
    _, ran = followed
    assert len(ran) == 5
    for text, done, expected in ran:
        # Bob has not all points
        assert done.returncode == ("grade class" in text), done.stderr
        # On a slow machine it says that it is still at work.
        assert all(
            line.startswith("minipipe: ") for line in done.stderr.splitlines()
        ), text
        printed = iter(done.stdout.splitlines())
        for line in expected:
            assert line in printed, (
                f"{line!r} is not among what is left of\n{done.stdout}"
            )
    assert sum(bool(expected) for _, _, expected in ran) == 3


@pytest.mark.slow
def test_what_the_commands_wrote_is_what_students_instructors_and_gradescope_get(
    followed,
):
    folder, _ = followed
    (task,) = exercises_in(folder / "mine")
    assert [test.weight for test in task.tests] == [1, 1, 2.5, 0.5] and task.points == 5
    assert [test.is_hidden for test in task.tests] == [False, False, True, True]
    drawn = {name: task.for_student(name) for name in ("ada", "bob")}
    for name, own in drawn.items():
        assert (
            folder / "class" / name / "test_01_start.py"
        ).read_text() == own.visible_checks
        assert "HIDDEN" not in own.visible_checks and "2.5" not in own.visible_checks
    assert drawn["ada"].checks != drawn["bob"].checks
    assert (folder / "grades.csv").read_text().splitlines()[1:] == [
        "ada,5,5,5,0,5,",
        "bob,2,2,5,0,2,",
    ]
    results = json.loads((folder / "results.json").read_text())
    jsonschema.validate(results, SCHEMA)
    assert [(each["score"], each["visibility"]) for each in results["tests"]] == [
        (1, "visible"),
        (1, "visible"),
        (0, "hidden"),
        (0, "hidden"),
    ]
    handout, sheet = (
        (folder / f"{name}.html").read_text() for name in ("handout", "solutions")
    )
    assert (
        "test_with_latency" in sheet
        and "test_with_latency" not in handout
        and "2.5 points" in sheet
    )
    with zipfile.ZipFile(folder / "autograder.zip") as archive:
        assert archive.read("exercises/01_start.py").decode() == task.solution
        assert b" --late-factor 0.9 --variants" in archive.read("run_autograder")


def test_the_rules_name_every_assertion_and_every_mark_of_the_format():
    offered = {name for name in coursework.__all__ if name.startswith("expect_")}
    assert offered == set(re.findall(r"`(expect_\w+)`", RULES))
    marks = (
        "# SOLUTION",
        "# STUB",
        "# END",
        "# HIDDEN",
        "WRONG_ANSWERS",
        "VARIANTS",
        "LEVELS",
        "Hint: …",
        "Points: 2.5",
    )
    assert (
        all(f"`{mark}`" in RULES for mark in marks)
        and "`Lesson NN`" in RULES
        and "`@remote`" in RULES
    )
