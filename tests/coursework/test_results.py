"""Reports for other programs: what they read is what was graded, whatever students'
names and programs say.
"""

import csv
import io
import json
import xml.etree.ElementTree as ElementTree

import jsonschema
import pytest

from minipipe.cli import main
from minipipe.coursework import grade
from minipipe.coursework.exercise import exercises_in, find_source
from minipipe.coursework.results import as_csv, as_gradescope, as_junit, as_table
from tests.coursework.small_course import CHECKS, SOLUTION, double

pytestmark = pytest.mark.usefixtures("in_process")

_FORMATS = {"enum": ["text", "html", "simple_format", "md", "ansi"]}
_VISIBILITY = {"enum": ["hidden", "after_due_date", "after_published", "visible"]}
_TEST = {
    "score": {"type": "number"},
    "max_score": {"type": "number"},
    "status": {"enum": ["passed", "failed"]},
    "name": {"type": "string"},
    "name_format": _FORMATS,
    "number": {"type": "string"},
    "output": {"type": "string"},
    "output_format": _FORMATS,
    "tags": {"type": "array", "items": {"type": "string"}},
    "visibility": _VISIBILITY,
    "extra_data": {"type": "object"},
}
_RANKED = {
    "name": {"type": "string"},
    "value": {"type": ["number", "string"]},
    "order": {"enum": ["asc", "desc"]},
}
_RESULTS = {
    "score": {"type": "number"},
    "execution_time": {"type": "number"},
    "output": {"type": "string"},
    "output_format": _FORMATS,
    "test_output_format": _FORMATS,
    "test_name_format": _FORMATS,
    "visibility": _VISIBILITY,
    "stdout_visibility": _VISIBILITY,
    "extra_data": {"type": "object"},
    "tests": {
        "type": "array",
        "items": {"type": "object", "properties": _TEST, "additionalProperties": False},
    },
    "leaderboard": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": _RANKED,
            "additionalProperties": False,
        },
    },
}
# Gradescope, Autograder Specifications, "Output format" and "Leaderboards"; other
# members are not mentioned, so there are none.
SCHEMA = {
    "type": "object",
    "properties": _RESULTS,
    "additionalProperties": False,
    "anyOf": [{"required": ["score"]}, {"required": ["tests"]}],
}

WEIGHTED = CHECKS.replace(
    "Twice minus three is minus six.",
    "Twice minus three is minus six.\n\n    Points: 2.5\n    ",
)
TELLS = "print('I am asked for', number)\n"


@pytest.fixture
def graded(course, tmp_path):
    """Return a function that grades a text by weighted tests, and gives the report as
    data.
    """

    def report(text, hide=False):
        course.write(text)
        (tmp_path / "source" / "checks" / "01_double.py").write_text(WEIGHTED)
        whole = grade(tmp_path / "mine", source=tmp_path / "source")
        return (whole.without_hidden() if hide else whole).as_json()

    return report


def test_a_test_counts_as_many_points_as_it_says(graded, course):
    assert (
        graded(SOLUTION)["points"] == 4.5
        and graded(double("return 2 * abs(number)"))["points"] == 2
    )
    assert graded(double("return -6"))["tasks"][0]["tests"][2]["points"] == 2.5


@pytest.mark.parametrize("points", ["0", "-1", "nan", "inf", "many"])
def test_points_that_are_no_number_above_zero_are_refused(points, tmp_path, capsys):
    (tmp_path / "checks").mkdir()
    (tmp_path / "01_double.py").write_text(SOLUTION)
    (tmp_path / "checks" / "01_double.py").write_text(
        WEIGHTED.replace("Points: 2.5", f"Points: {points}")
    )
    assert main(["coursework", str(tmp_path / "mine"), "--source", str(tmp_path)]) == 2
    assert (
        f"A test says 'Points: {points}'; expected a number above 0"
        in capsys.readouterr().err
    )


def test_what_gradescope_reads_follows_its_documentation_and_hides_hidden_tests(graded):
    results = json.loads(
        as_gradescope(
            graded(double(f"int.__subclasses__\n{TELLS}return 2 * abs(number)"))
        )
    )
    jsonschema.validate(results, SCHEMA)
    assert results["score"] == sum(test["score"] for test in results["tests"]) == 2
    assert sum(test["max_score"] for test in results["tests"]) == 4.5
    visible = [test for test in results["tests"] if test["visibility"] == "visible"]
    hidden = [test for test in results["tests"] if test["visibility"] == "hidden"]
    assert [test["name"] for test in visible] == [
        "01_double test_two",
        "01_double test_nothing",
    ]
    assert [test["name"].removeprefix("01_double ") for test in hidden] == [
        "test_a_negative_number",
        "uses names that are not allowed",
        "printed",
    ]
    seen = json.dumps([results["output"], visible])
    assert (
        "-3" not in seen
        and "asked for" not in seen
        and "expected -6" in hidden[0]["output"]
    )


def test_the_schema_refuses_what_gradescope_would(graded):
    results = json.loads(as_gradescope(graded(SOLUTION)))
    for wrong in (
        {"visibility": "secret"},
        {"score": "2"},
        {"status": "ok"},
        {"points": 1},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(
                {**results, "tests": [{**results["tests"][0], **wrong}]}, SCHEMA
            )


def test_hidden_tests_are_kept_from_every_form_of_the_report(graded):
    """Neither by their names, nor by messages, nor by what the student's code says of
    their arguments.
    """
    flags = "try: __import__(f'minipipe.x{number}')\nexcept ImportError: pass\n"
    text = double(
        f"{flags}{TELLS}if number < 0: raise ValueError(number)\nreturn 2 * number"
    )
    whole, kept = (
        {**graded(text, hide), "directory": "mine"} for hide in (False, True)
    )
    assert (
        (whole["points"], whole["possible"])
        == (kept["points"], kept["possible"])
        == (2, 4.5)
    )
    forms = {json.dumps: json.dumps, as_table: lambda report: as_table([report])}
    forms |= {as_gradescope: as_gradescope} | {
        form: lambda report, form=form: form([report]) for form in (as_csv, as_junit)
    }
    for form in forms.values():
        assert not [
            secret
            for secret in ("negative", "-3", "-6", "minus", "asked for")
            if secret in form(kept)
        ]
    assert all(
        secret in json.dumps(whole)
        for secret in ("negative", "minipipe.x-3", "asked for -3")
    )
    assert [test["test"] for test in kept["tasks"][0]["tests"]] == [
        "test_two",
        "test_nothing",
        "hidden_1",
    ]


def test_the_command_keeps_hidden_tests_from_its_text(course, tmp_path, capsys):
    course.write(double(f"{TELLS}return 2 * abs(number)"))
    words = ["grade", str(tmp_path / "mine"), "--source", str(tmp_path / "source")]
    assert main([*words, "--hide-hidden"]) == 1
    out = capsys.readouterr().out
    assert (
        "hidden_1 (hidden)" in out
        and "details of hidden tests are not shown" in out
        and "2 of 3 points" in out
    )
    assert "-3" not in out and "asked for" not in out


NAMES = [
    "=HYPERLINK('x')",
    "+1",
    "@x",
    "-2",
    'a"b,c',
    "two\nlines",
    "\x1b[2J",
    "<b>&amp;",
    "Zoë",
    "\udce9",
    "\ufffe]]>",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_a_name_is_text_in_a_spreadsheet_in_xml_and_in_a_terminal(graded, name):
    """A spreadsheet computes a cell that begins with = + - or @; XML has no escape
    character at all.
    """
    report = {
        **graded(double(f"print({name!r})\nraise ValueError({name!r})")),
        "submission": name,
    }
    head, row = csv.reader(io.StringIO(as_csv([report])))
    assert (
        head[:2] == ["submission", "01_double"]
        and not row[0].startswith(("=", "+", "-", "@"))
        and len(row) == 7
    )
    suites = ElementTree.fromstring(as_junit([report]).encode())
    assert len(suites) == 1 and len(suites[0]) == 3 and suites[0].get("failures") == "3"
    assert len(
        as_table([report]).split("\n\n")[0].splitlines()
    ) == 2 and "\x1b" not in as_table([report])
    assert suites[0].get("name") == row[0].removeprefix("'") or name.startswith("'")
    json.loads(as_gradescope(report).encode())


def test_junit_has_a_case_for_each_test_and_the_reason_of_each_failure(graded):
    suites = ElementTree.fromstring(
        as_junit([graded(double("return 2 * abs(number)"))]).encode()
    )
    assert [
        (case.get("classname"), case.get("name"), len(case)) for case in suites[0]
    ] == [
        ("01_double", "test_two", 0),
        ("01_double", "test_nothing", 0),
        ("01_double", "test_a_negative_number", 1),
    ]
    failure = suites[0][2][0]
    assert failure.get(
        "message"
    ) == "double(-3): expected -6, got 6" and failure.text.startswith(
        "Twice minus three is"
    )


def test_gradescope_gets_a_report_of_one_submission_and_of_one_alone(
    course, tmp_path, capsys
):
    course.write(SOLUTION)
    words = [
        "--source",
        str(tmp_path / "source"),
        "--gradescope",
        str(tmp_path / "results.json"),
    ]
    assert main(["grade", str(tmp_path / "mine"), *words]) == 0
    assert json.loads((tmp_path / "results.json").read_text())["score"] == 3
    (tmp_path / "empty").mkdir()
    (tmp_path / "results.json").unlink()
    assert main(["grade", str(tmp_path / "mine"), str(tmp_path / "empty"), *words]) == 2
    assert (
        "--gradescope writes the results of one submission, and there are 2"
        in capsys.readouterr().err
    )
    # a student who handed in nothing has a result, too
    assert main(["grade", str(tmp_path / "empty"), *words]) == 1
    assert json.loads((tmp_path / "results.json").read_text())["score"] == 0


@pytest.mark.slow
def test_when_a_task_is_done_the_next_one_in_the_order_of_lessons_is_named(
    tmp_path, capsys
):
    exercises = {exercise.name: exercise for exercise in exercises_in(find_source())}
    for done, following in {
        "05_bubble": "15_gpipe_time",
        "15_gpipe_time": "06_warmup",
    }.items():
        (tmp_path / f"{done}.py").write_text(exercises[done].solution)
        assert main(["grade", str(tmp_path), "--only", done]) == 0
        lesson, subject = exercises[following].lesson, exercises[following].subject
        assert (
            f"\nnext: {following} (lesson {lesson}), {subject}\n"
            in capsys.readouterr().out
        )
