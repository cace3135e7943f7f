"""Assignments: tasks with points of their own, a gradebook and feedback."""

import json

import pytest

from minipipe.cli import main
from minipipe.coursework import grade
from minipipe.coursework.assignment import (
    Assignment,
    apportioned,
    prepared,
    read_assignment,
)
from minipipe.coursework.exercise import exercises_in, find_source, worth
from minipipe.coursework.imports import given_names
from minipipe.errors import MinipipeError
from tests.coursework.small_course import CHECKS, SOLUTION, double
from tests.launch import slowly

FILE = "01_double.py"
PREPARED = sorted(path.stem for path in (find_source() / "assignments").glob("*.json"))


@pytest.fixture
def ask(capsys):
    """Return a function that runs a command, and returns its status and output."""

    def asked(*words):
        status = main([*words])
        return status, *capsys.readouterr()

    return asked


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in a folder with the exercise, and a class of two: one right, one half."""
    monkeypatch.chdir(tmp_path)
    for folder in ("source/checks", "class/ada", "class/bob"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "source" / FILE).write_text(SOLUTION)
    (tmp_path / "source" / "checks" / FILE).write_text(CHECKS)
    (tmp_path / "class" / "ada" / FILE).write_text(SOLUTION)
    (tmp_path / "class" / "bob" / FILE).write_text(double("return abs(number) * 2"))
    compose = ["assignment", "quiz", "--source", "source", "--task", "01_double=10"]
    assert main(compose) == 0
    return tmp_path


GRADE = ["grade", "class", "--source", "quiz"]


@pytest.mark.parametrize(
    ("weights", "total"), [([1, 2, 2.5], 10), ([1] * 7, 100), ([0.5, 3], 0.07)]
)
def test_points_are_hundredths_that_add_up_to_the_total(weights, total):
    parts = apportioned(weights, total)
    assert sum(round(100 * part) for part in parts) == round(100 * total)
    for weight, part in zip(weights, parts, strict=True):
        assert abs(part - total * weight / sum(weights)) < 0.01


@pytest.mark.slow
def test_an_assignment_counts_the_points_of_its_file(here):
    report = grade("class/bob", source="quiz")
    assert (report.points, report.possible) == (6.67, 10)
    assert json.loads((here / "quiz" / "assignment.json").read_text()) == {
        "title": "",
        "points": {"01_double": 10},
        "name": "quiz",
    }


@pytest.mark.parametrize("name", PREPARED)
def test_a_prepared_assignment_has_100_points_and_tasks_that_exist(name):
    assignment = prepared(find_source(), name)
    chosen = worth(exercises_in(find_source()), assignment.points)
    assert assignment.name == name and assignment.title
    assert round(sum(exercise.points for exercise in chosen), 2) == 100


def test_no_task_is_graded_in_two_weeks():
    weeks = [name for name in PREPARED if name.startswith("week-")]
    tasks = [task for name in weeks for task in prepared(find_source(), name).points]
    assert len(tasks) == len(set(tasks))


@pytest.mark.slow
def test_the_pipeline_assignment_is_not_solved_by_calls_of_the_library(here):
    """Its own tasks refuse `Pipeline`, schedules and the search, which would do it."""
    points = prepared(find_source(), "pipeline-parallelism").points
    for exercise in worth(exercises_in(find_source()), points):
        names = {name for _, name in given_names(exercise.stub)}
        assert names <= {"Tensor", "Action", "ActionKind", "Schedule", "walk"}
    (here / "called").mkdir()
    (here / "called" / "17_pipeline_step.py").write_text(
        CALLED.format(stub=exercises_in(find_source())[16].stub)
    )
    report = grade("called", only="17_pipeline_step")
    assert report.points == 0
    assert any("minipipe.Pipeline" in flag for flag in report.tasks[0].flags)


CALLED = """{stub}

def make_pipeline(group, layers, loss, num_microbatches):
    from minipipe import Pipeline, nn

    model = nn.Sequential(*layers)
    return Pipeline(model, group, loss=loss, num_microbatches=num_microbatches)
"""


def test_a_total_scales_the_points_of_all_tasks(here, capsys):
    tasks = ["--task", "05_bubble=1", "--task", "06_warmup=2", "--task", "14_puzzle"]
    assert main(["assignment", "two", *tasks, "--total", "10", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["possible"] == 10
    assert data["tasks"] == {"05_bubble": 3.33, "06_warmup": 6.67, "14_puzzle": 0}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("quiz2", "There is no prepared assignment 'quiz2' ("),
        ("q --task nosuch", "There is no task 'nosuch'"),
        ("q --task 05_bubble --task 05_bubble=1", "names '05_bubble' twice"),
        slowly("q --task 05_bubble=-1", "expected points, from 0 to 1000000"),
        slowly("q --task 05_bubble=nan", "expected points, from 0 to 1000000"),
        ("q --task 05_bubble=", "expected TASK or TASK=POINTS"),
        ("q --task 05_bubble --total 0", "expected points, above 0"),
        ("q --task 14_puzzle=3", "which `minipipe search` solves"),
        ("class --task 05_bubble", "is not empty"),
    ],
)
def test_what_cannot_be_composed_is_refused_in_a_sentence(here, ask, words, said):
    status, out, err = ask("assignment", *words.split())
    assert (status, out) == (2, "") and said in err


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"points": []}', '{"points": {"a": "1"}}', "\udcff", "[" * 9999],
)
def test_a_damaged_assignment_is_refused(tmp_path, text):
    path = tmp_path / "assignment.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(MinipipeError, match=r"assignment\.json|not an assignment"):
        read_assignment(path)


def test_an_assignment_survives_its_file(tmp_path):
    assignment = Assignment("a", {"05_bubble": 2.5}, "A title")
    (tmp_path / "a.json").write_text(assignment.as_json())
    assert read_assignment(tmp_path / "a.json") == assignment


# -- gradebook and feedback ------------------------------------------------------------

BOOK = """\ufeffStudent,Email,quiz
Points Possible,,10
"Lovelace, Ada",a@x.edu,
Bob,b@x.edu,3
Eve,e@x.edu,9
"""
ROSTER = "submission,student\nada,a@x.edu\nbob,b@x.edu\n"


@pytest.fixture
def book(here):
    (here / "book.csv").write_text(BOOK)
    (here / "roster.csv").write_text(ROSTER)
    return here / "book.csv"


MERGE = ["--merge", "book.csv", "--key", "Email", "--roster", "roster.csv"]


@pytest.fixture
def refused(ask, monkeypatch):
    """Return a function that returns the error of a grading that does not begin."""
    monkeypatch.setattr("minipipe.cli.grade.grade_all", None)

    def error():
        status, out, err = ask(*GRADE, *MERGE)
        assert (status, out) == (2, "")
        return err

    return error


@pytest.mark.usefixtures("in_process")
def test_scores_go_to_the_cells_of_their_students_and_nothing_else_changes(book):
    assert main([*GRADE, *MERGE]) == 1
    assert book.read_text() == BOOK.replace("a@x.edu,\n", "a@x.edu,10\n").replace(
        "b@x.edu,3", "b@x.edu,6.67"
    )
    assert main([*GRADE, *MERGE, "--column", "second try"]) == 1
    first, _, ada, *_ = book.read_text().splitlines()
    assert first.endswith(",quiz,second try") and ada.endswith(",10,10")


@pytest.mark.usefixtures("in_process")
def test_feedback_is_a_file_per_student_without_hidden_tests(here, capsys):
    assert main([*GRADE, "--feedback", "feedback", "--json"]) == 1
    reports = json.loads(capsys.readouterr().out)["submissions"]
    assert not any("feedback" in report for report in reports)
    texts = {path.name: path.read_text() for path in here.glob("feedback/*")}
    assert texts.keys() == {"ada.txt", "bob.txt"}
    assert texts["ada.txt"].endswith("10 of 10 points, 1 of 1 task done\n")
    assert "6.67 of 10" in texts["bob.txt"] and "hidden_1 (hidden)" in texts["bob.txt"]
    assert "minus" not in texts["bob.txt"]


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("roster.csv", "ada,a@x.edu\nbob,a@x.edu\n", "two lines for 'a@x.edu'"),
        ("roster.csv", "ada,a@x.edu\nada,b@x.edu\n", "two students for 'ada'"),
        ("roster.csv", "ada,a@x.edu\n", "--roster has no line for 'bob'"),
        ("roster.csv", "ada;a@x.edu\n", "expected `submission,student`"),
        ("book.csv", "Student,Mail\n", "has 0 columns 'Email', expected one; its"),
        ("book.csv", "Email,Email\n", "has 2 columns 'Email'"),
        ("book.csv", "", "it has no row with the columns' names"),
        ("book.csv", "Email,quiz\na@x.edu,1,2\n", "row 2 has 3 cells, the first 2"),
        ("book.csv", "Email\na@x.edu\n", "no row for 'b@x.edu' in column 'Email'"),
        ("book.csv", "Email\na@x.edu\nb@x.edu\na@x.edu\n", "several rows for 'a@x"),
    ],
)
def test_a_gradebook_that_does_not_fit_is_refused_before_grading(
    book, refused, file, text, said
):
    (book.parent / file).write_text(text)
    assert said in refused()


# -- groups ----------------------------------------------------------------------------

GROUPS = """\
submission,student,group
ada,a@x.edu,red
bob,b@x.edu,
carl,c@x.edu,red
,d@x.edu,blue
,"dent, eve/adam",blue
,f@x.edu,
,g@x.edu,
"""
GROUP_BOOK = "Email,quiz\na@x.edu,\nb@x.edu,\nc@x.edu,\nd@x.edu,7\n"


@pytest.fixture
def teams(book):
    """Use a roster with groups; the submission of the first is ada's."""
    (book.parent / "roster.csv").write_text(GROUPS)
    book.write_text(GROUP_BOOK)
    return book


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("name", ["ada", "carl", "red"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_each_member_of_a_group_gets_its_score_and_its_feedback(teams, ask, name, mark):
    """The submission may have a member's name, or one for all."""
    here = teams.parent
    (here / "class" / "ada").rename(here / "class" / name)
    text = mark + GROUPS
    if name == "red":
        text = text.replace("ada,", "red,").replace("carl,", "red,")
    (here / "roster.csv").write_text(text)
    status, out, _ = ask(*GRADE, *MERGE, "--feedback", "feedback")
    assert status == 1
    filled = GROUP_BOOK.replace("a@x.edu,", "a@x.edu,10").replace(
        "c@x.edu,", "c@x.edu,10"
    )
    assert teams.read_text() == filled.replace("b@x.edu,", "b@x.edu,6.67")
    texts = {path.name: path.read_text() for path in here.glob("feedback/*")}
    assert texts.keys() == {f"{each}@x.edu.txt" for each in "abc"}
    assert texts["a@x.edu.txt"] == texts["c@x.edu.txt"] != texts["b@x.edu.txt"]
    assert out.endswith(
        "\n\nno submission: d@x.edu; dent, eve/adam; f@x.edu; g@x.edu\n"
    )


@pytest.mark.usefixtures("in_process")
def test_the_file_of_feedback_stays_in_its_directory(teams, ask):
    text = GROUPS.replace("c@x.edu", "../c@x.edu")
    (teams.parent / "roster.csv").write_text(text)
    teams.write_text(GROUP_BOOK.replace("c@x.edu", "../c@x.edu"))
    ask(*GRADE, *MERGE, "--feedback", "feedback", "--json")
    names = {path.name for path in teams.parent.rglob("*@x.edu.txt")}
    assert names == {"a@x.edu.txt", "b@x.edu.txt", ".._c@x.edu.txt"}
    assert all((teams.parent / "feedback" / name).exists() for name in names)


def test_students_whose_feedback_would_share_a_file_are_refused(teams, ask):
    text = GROUPS.replace("c@x.edu", "d/e@x.edu").replace("b@x.edu", "d_e@x.edu")
    (teams.parent / "roster.csv").write_text(text)
    book = GROUP_BOOK.replace("c@x.edu", "d/e@x.edu").replace("b@x.edu", "d_e@x.edu")
    teams.write_text(book)
    status, _, err = ask(*GRADE, *MERGE, "--feedback", "feedback")
    assert status == 2 and "one file for 'd/e@x.edu' and 'd_e@x.edu', 'd_e@x." in err
    assert teams.read_text() == book and not (teams.parent / "feedback").exists()


def test_the_missing_students_are_in_the_data(teams, ask, monkeypatch):
    monkeypatch.setattr("minipipe.cli.grade.grade_all", lambda *_, **options: [])
    monkeypatch.setattr("minipipe.cli.grade.ResultFiles.write", lambda *_: None)
    data = json.loads(ask(*GRADE, *MERGE, "--json")[1])
    assert data["missing"] == ["d@x.edu", "dent, eve/adam", "f@x.edu", "g@x.edu"]
    (teams.parent / "roster.csv").write_text(ROSTER)
    assert "missing" not in json.loads(ask(*GRADE, *MERGE, "--json")[1])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("bob,b@x.edu,\n", "bob,b@x.edu,red\n", "'red' has two submissions, 'ada' and"),
        ("bob,b@x.edu,", "bob,a@x.edu,blue", "'a@x.edu' in two groups, 'red' and 'blu"),
        ("bob,b@x.edu,", "bob,a@x.edu,", "'a@x.edu' in two groups, 'red' and ''"),
        ("bob,b@x.edu,", "bob,a@x.edu,red", "two lines for 'a@x.edu'"),
        ("bob,b@x.edu,", "ada,b@x.edu,", "two students for 'ada'; keep one line"),
        ("carl", "bob", "two students for 'bob'"),
        ("bob,b@x.edu,\n", "", "--roster has no line for 'bob'"),
        ("submission,student,group\n", "", "`submission,student`, and `group` if the"),
        ("bob,b@x.edu,\n", "bob,b@x.edu\n", "expected `submission,student,group`"),
        ("c@x.edu", "z@x.edu", "no row for 'z@x.edu' in column 'Email'"),
    ],
)
def test_groups_that_do_not_fit_are_refused_before_grading(
    teams, refused, old, new, said
):
    assert old in GROUPS
    (teams.parent / "roster.csv").write_text(GROUPS.replace(old, new))
    assert said in refused()


def test_a_directory_of_feedback_that_cannot_be_made_is_named(here, ask):
    (here / "taken").write_text("")
    status, _, err = ask(*GRADE, "--feedback", "taken")
    assert status == 2 and "'taken' cannot be written: File exists." in err


def test_options_of_a_gradebook_need_one(here, ask):
    status, _, err = ask(*GRADE, "--key", "Email")
    assert status == 2 and "--key needs a gradebook: add --merge" in err
