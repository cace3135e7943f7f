"""An exercise of one's own: each rule that it breaks is said, and a trial says whether
it does its work.
"""

import json

import pytest

from minipipe.cli import main
from minipipe.coursework.exercise import exercises_in
from minipipe.coursework.trial import wrong_answers
from minipipe.errors import CourseworkError, FileError
from tests.coursework.small_course import CHECKS, SOLUTION

WRONG = '[("it is the square, which agrees at two", "2 * number", "number * number")]'
RAISE = 'raise NotImplementedError("twice the number")'


def written(folder, solution=SOLUTION, checks=CHECKS):
    (folder / "checks").mkdir(parents=True, exist_ok=True)
    (folder / "01_double.py").write_bytes(
        solution if isinstance(solution, bytes) else solution.encode()
    )
    (folder / "checks" / "01_double.py").write_text(checks)
    return folder


def solution(old, new):
    assert old in SOLUTION
    return {"solution": SOLUTION.replace(old, new)}


def checks(old, new):
    assert old in CHECKS
    return {"checks": CHECKS.replace(old, new)}


def variants(text):
    return {"checks": f"{CHECKS}\nVARIANTS = {text}\n"}


BROKEN = {
    "a syntax error": (
        solution("double(number):", "double(number:"),
        "it is not valid Python: line 7",
    ),
    "one in the checks": (
        checks("test_two(task):", "test_two(task:"),
        "of checks is not valid Python: line 6",
    ),
    "one in the stub": (
        solution("# raise Not", "# raise raise Not"),
        "its stub is not valid Python: line 9",
    ),
    "no title": (
        solution("01 double: twice", "double twice"),
        "'double twice a number.'; expected '01 title:",
    ),
    "another number": (
        solution("01 double", "02 double"),
        "expected '01 title: its subject.'",
    ),
    "no lesson": (
        solution("Lesson 01", "lesson 1"),
        "names no lesson; begin a paragraph of it with 'Lesson 05'",
    ),
    "no end": (
        solution("# END", ""),
        "needs the lines # SOLUTION, # STUB and # END, each on a line of its own",
    ),
    "another order": (
        solution("# STUB", "# SOLUTION"),
        "needs the lines # SOLUTION, # STUB and # END",
    ),
    "a stub that runs": (
        solution(f"# {RAISE}", RAISE),
        "between # STUB and # END is 'raise Not",
    ),
    "nothing hidden": (
        checks("# HIDDEN", ""),
        "its checks need one line # HIDDEN; there are 0",
    ),
    "hidden twice": (
        checks("WRONG_ANSWERS = []", "# HIDDEN"),
        "its checks need one line # HIDDEN; there are 2",
    ),
    "no test": (
        checks("def test_", "def no_"),
        "its checks have no test; expected functions test_…(task)",
    ),
    "two of one name": (
        checks("test_nothing", "test_two"),
        "two tests test_two, of which Python keeps one",
    ),
    "no argument": (
        checks("test_two(task)", "test_two()"),
        "test_two() has the wrong arguments; expected task",
    ),
    "no docstring": (
        checks('"""Twice nothing is nothing."""', "pass"),
        "test_nothing has no docstring",
    ),
    "no number of points": (
        checks("is nothing.", "is nothing.\n\n    Points: a\n    "),
        "'Points: a'; expected",
    ),
    "remote below": (
        checks("# HIDDEN", "# HIDDEN\n@remote\ndef far(task): pass\n\n"),
        "far of its checks is marked",
    ),
    "variants that are computed": (
        variants("[[(str(3),), ('5',)]]"),
        "VARIANTS of its checks, line 27, are not lists",
    ),
    "one alternative": (
        variants("[[('-3',)]]"),
        "each a list of two or more tuples with equally many texts",
    ),
    "unequal ones": (variants("[[('-3', '-6'), ('-4',)]]"), "with equally many texts"),
    "numbers": (variants("[[(-3,), (-4,)]]"), "are not lists of tuples of texts"),
    "text instead of tuples": (variants("3"), "are not lists of tuples of texts"),
    "what is not there": (
        variants("[[('-99',), ('-4',)]]"),
        "VARIANTS have '-99', which does not occur in its files",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_rule_that_is_broken_is_said_by_every_verb(tmp_path, kind, capsys):
    change, words = BROKEN[kind]
    source = ["--source", str(written(tmp_path / "source", **change))]
    for verb in (
        ["coursework", str(tmp_path / "copy")],
        ["grade", str(tmp_path / "source")],
        ["grade", "--check"],
    ):
        assert main([*verb, *source]) == 2
        said = capsys.readouterr().err
        assert (
            words in said
            and ("01_double: " in said or "A test says" in said)
            and said.count("\n") == 1
        )
    assert not (tmp_path / "copy").exists()


def test_lines_may_end_as_on_windows_but_a_file_must_be_text(tmp_path):
    plain, other = (
        written(tmp_path / "a"),
        written(tmp_path / "b", SOLUTION.replace("\n", "\r\n")),
    )
    assert [each.stub for each in exercises_in(plain)] == [
        each.stub for each in exercises_in(other)
    ]
    with pytest.raises(FileError, match="is not UTF-8"):
        exercises_in(
            written(tmp_path / "c", SOLUTION.replace("twice", "zwö").encode("latin-1"))
        )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '[("why", "2 * numbers", "x")]',
            r"WRONG_ANSWERS\[0\]: the solution has no '2 \* numbers'; expected \(why",
        ),
        (
            '[("2 * number", "x")]',
            (
                r"WRONG_ANSWERS\[0\]: it is \('2 \* number', 'x'\); expected \(why "
                r"it is tempting"
            ),
        ),
        (
            '[("why", "2 * number", 3)]',
            r"WRONG_ANSWERS\[0\]: it is \('why', '2 \* number', 3\)",
        ),
        ("1 / 0", "its checks cannot be loaded: ZeroDivisionError: division by zero"),
    ],
)
def test_wrong_answers_replace_text_of_the_solution(tmp_path, text, words):
    source = written(
        tmp_path, **checks("WRONG_ANSWERS = []", f"WRONG_ANSWERS = {text}")
    )
    with pytest.raises(CourseworkError, match=words):
        wrong_answers(exercises_in(source)[0])


def test_checks_that_cannot_be_loaded_cost_no_submission_its_points(tmp_path, capsys):
    """The story: a class had no points, and a remark each, where the instructor's own
    file was at fault.
    """
    source = written(
        tmp_path / "source",
        **checks("WRONG_ANSWERS", "import no_such_module\nWRONG_ANSWERS"),
    )
    for name in ("ada", "bob"):
        written(tmp_path / "class" / name)
    assert main(["grade", str(tmp_path / "class"), "--source", str(source)]) == 2
    assert (
        "01_double: its checks cannot be loaded: ModuleNotFoundError: No module"
        in capsys.readouterr().err
    )


def tried(folder, capsys, **change):
    status = main(
        ["grade", "--check", "--source", str(written(folder, **change)), "--json"]
    )
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] == (status == 0)
    return {each["what"]: each["problem"] for each in found["tried"]}


@pytest.mark.usefixtures("in_process")
def test_a_trial_finds_nothing_wrong_where_all_is_well(tmp_path, capsys):
    found = tried(
        tmp_path, capsys, **checks("WRONG_ANSWERS = []", f"WRONG_ANSWERS = {WRONG}")
    )
    assert len(found) == 3 and not any(found.values())
    assert main(["grade", "--check", "--source", str(tmp_path)]) == 0
    said = (
        "01_double  3 files tried\nsolutions pass all tests, stubs none, and each "
        "wrong answer fails\n"
    )
    assert capsys.readouterr().out == said


@pytest.mark.usefixtures("in_process")
def test_a_trial_finds_a_wrong_solution_a_stub_with_points_and_a_wrong_answer_that_passes(
    tmp_path, capsys
):
    found = tried(
        tmp_path, capsys, **solution("return 2 * number", "return 3 * number")
    )
    assert (
        found["its solution"] == "fails test_two: double(2): expected 4, got 6"
        and not found["its stub"]
    )
    found = tried(tmp_path, capsys, **solution(f"# {RAISE}", "# return 0"))
    assert found == {"its solution": "", "its stub": "passes test_nothing"}
    same = '[("it is the same by another name", "2 * number", "number + number")]'
    found = tried(
        tmp_path, capsys, **checks("WRONG_ANSWERS = []", f"WRONG_ANSWERS = {same}")
    )
    assert (
        found["the wrong answer 'it is the same by another name'"] == "passes all tests"
    )


@pytest.mark.slow
def test_a_trial_draws_every_alternative(tmp_path, capsys):
    """The third alternative is wrong: the expected value is not twice the number."""
    text = "[[('double(-3)', '-6, '), ('double(-4)', '-8, '), ('double(-5)', '-9, ')]]"
    found = tried(
        tmp_path,
        capsys,
        checks=(
            f"{CHECKS.replace('task.double(-3)', 'task.double(-3)')}\nVARIANTS = "
            f"{text}\n"
        ),
    )
    assert (
        sum("double(-5): expected -9, got -10" in problem for problem in found.values())
        == 1
    )
    assert len(found) == 6 and all(", as 'student " in what for what in found)


def test_a_trial_takes_no_submission(tmp_path, capsys):
    assert main(["grade", str(tmp_path), "--check"]) == 2
    assert "--check tests the exercises with all numbers" in capsys.readouterr().err
