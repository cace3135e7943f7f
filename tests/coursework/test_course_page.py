"""The page for instructors is followed literally, and its figures hold."""

import json
import re
import shlex
import shutil
import zipfile
from pathlib import Path

import pytest

from minipipe import Costs, schedules, simulate
from minipipe.cli import main
from minipipe.coursework.assignment import prepared
from minipipe.coursework.checking import load
from minipipe.coursework.exercise import exercises_in, find_source
from tests.launch import ROOT

PAGE = (ROOT / "tutorials" / "site" / "course.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
SHELL = [text for kind, text in BLOCKS if kind == "sh"]
TEXTS = [text for kind, text in BLOCKS if kind == "text"]
EXERCISES = {each.name: each for each in exercises_in(find_source())}


def ran(text, capsys):
    """Run the commands of a block; return what they printed."""
    capsys.readouterr()
    for line in text.splitlines():
        assert main(shlex.split(line)[1:]) in (0, 1), line
    return capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_an_assignment_is_set_and_graded_with_the_commands_of_the_page(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    setting, composing, uploading, grading, comparing = SHELL
    assert "wrote 5 tasks with 100 points to week-2" in ran(setting, capsys)
    assert "with 50 points" in ran(composing, capsys)
    assert "wrote autograder.zip" in ran(uploading, capsys)
    with zipfile.ZipFile("autograder.zip") as archive:
        points = json.loads(archive.read("exercises/assignment.json"))["points"]
    assert points == prepared(find_source(), "week-2").points
    for student, tasks in (("ada", "05 06 08 12 15"), ("bob", "05 06")):
        for exercise in EXERCISES.values():
            if exercise.name[:2] in tasks.split():
                answer = exercise.for_student(student).answer
                Path("class", student, f"{exercise.name}.py").write_text(answer)
    roster, book, table, filled, similar, published, groups = TEXTS
    Path("roster.csv").write_text(roster)
    Path("book.csv").write_text(book)
    assert table.rstrip() in ran(grading, capsys)
    assert Path("book.csv").read_text() == filled
    assert similar in Path("similar.txt").read_text()
    assert "35 of 100 points" in Path("feedback", "bob.txt").read_text()
    Path("minipipe").symlink_to(ROOT)
    ran(comparing, capsys)
    assert published in Path("similar.txt").read_text()
    Path("roster.csv").write_text(groups)
    assert main(shlex.split(grading)[1:]) == 2
    said = capsys.readouterr().err
    assert "Group 'red' has two submissions, 'ada' and 'bob'; move one away" in said
    shutil.rmtree(Path("class", "bob"))
    grading = grading.replace(" --similarity similar.txt", "")
    assert "no submission: eve@x.edu\n" in ran(grading, capsys)
    assert Path("book.csv").read_text() == filled.replace("edu,35", "edu,100")
    assert "100 of 100 points" in Path("feedback", "bob@x.edu.txt").read_text()


def test_the_command_that_installs_is_that_of_the_first_page():
    (install,) = [text for kind, text in BLOCKS if kind == "bash"]
    first = install.replace("'./minipipe[mpi]'", "'.[mpi]'").strip()
    assert first in (ROOT / "README.md").read_text()


def test_the_weeks_name_lessons_and_assignments_that_exist():
    rows = re.findall(r"^\| (\d) \| (.+?) \| `([\w-]+)`: ", PAGE, re.MULTILINE)
    assert [row[0] for row in rows] == ["1", "2", "3", "4"]
    for number, lessons, assignment in rows:
        assert assignment == f"week-{number}"
        assert (find_source() / "assignments" / f"{assignment}.json").exists()
        names = re.findall(r"lessons/(\w+)\.ipynb", lessons)
        assert len(names) >= 3
        assert all((ROOT / "tutorials" / f"{name}.py").exists() for name in names)


def test_each_question_has_four_answers_and_a_reason_for_each_wrong_one():
    questions, answers = PAGE.split("## Ten questions\n")[1].split("### Answers\n")
    for number in range(1, 11):
        item = re.compile(rf"^{number}\. (.+?)(?=^\d+\. |\Z)", re.DOTALL | re.MULTILINE)
        question = item.search(questions)[1]
        letters = re.findall(r"(?<=\s)([A-D])\. ", question)
        assert letters == ["A", "B", "C", "D"], question
        heads = re.findall(r"\b([A-D](?:, [A-D])*):\s", item.search(answers)[1])
        assert ", ".join(heads).split(", ") == ["A", "C", "D"], (number, heads)


def test_the_figures_of_the_questions_are_so():
    gpipe = simulate(schedules.gpipe(4, 8))
    assert gpipe.bubble_fraction == pytest.approx(3 / 11)
    one_f_one_b = simulate(schedules.one_f_one_b(4, 16))
    assert one_f_one_b.peak_activations == (4, 3, 2, 1)
    assert one_f_one_b.makespan == simulate(schedules.gpipe(4, 16)).makespan
    assert simulate(schedules.gpipe(4, 8), Costs()).makespan == 33
    partition = load("13", EXERCISES["13_partition"].solution).partition
    assert partition([99, 100, 1], 2) == [1, 2]
