"""DESIGN.md is short and current: the tests that it names exist, and its computed
figures are those of the package.
"""

import ast
import re

import pytest

from minipipe import schedules
from tests import design_figures
from tests.code_lines import parsed
from tests.faults import table
from tests.launch import ROOT

DESIGN = (ROOT / "DESIGN.md").read_text()
PROMISES = DESIGN.split("## Promises and their tests\n")[1].split("\n## ")[0]
MOST_LINES, MOST_COLUMNS = 400, 88
# In backquotes: a file of tests, or a test function in the file that was named before
# it.
NAMED = re.compile(r"`(tests/[\w/]+\.py)?(?:::(\w+))?`")


def named_tests(text):
    """Return (file, function) for each test function that a text names."""
    found, file = [], None
    for path, function in NAMED.findall(text):
        file = path or file
        if function:
            found.append((file, function))
    return found


def is_defined(file, function):
    """Return whether a file of tests exists and defines a function at module level."""
    path = ROOT / file
    return path.is_file() and function in {
        node.name for node in parsed(path).body if isinstance(node, ast.FunctionDef)
    }


def on_one_line(text):
    return " ".join(text.split())


def is_one_token(line):
    """Return whether a line is too long only because it holds one name that cannot be
    broken.
    """
    return len(line.split()) == 1


def test_it_is_short():
    lines = DESIGN.splitlines()
    assert len(lines) <= MOST_LINES
    assert [
        line for line in lines if len(line) > MOST_COLUMNS and not is_one_token(line)
    ] == []


def test_every_named_test_exists():
    named = named_tests(DESIGN)
    assert [
        f"{file}::{function}"
        for file, function in named
        if not is_defined(file, function)
    ] == []
    assert len(named) >= 25


@pytest.mark.parametrize("number", range(1, 6))
def test_every_promise_names_its_tests(number):
    begin = PROMISES.index(f"**{number}. ")
    end = PROMISES.find(f"**{number + 1}. ", begin)
    assert named_tests(PROMISES[begin : end if end > 0 else None])


def test_a_test_that_is_gone_is_noticed():
    text = (
        "`tests/test_design.py`: `::test_it_is_short`, `::test_gone`; "
        "`tests/test_gone.py::test_it_is_short`"
    )
    named = named_tests(text)
    assert [is_defined(*each) for each in named] == [True, False, False]


def test_the_table_of_schedules_is_the_computed_one():
    assert design_figures.schedule_table() in DESIGN


def test_every_computed_figure_is_the_one_in_the_text():
    text = on_one_line(DESIGN)
    assert [
        sentence for sentence in design_figures.sentences() if sentence not in text
    ] == []


@pytest.mark.slow
def test_the_error_of_published_times_is_the_one_in_the_text():
    assert design_figures.sentence_about_papers() in on_one_line(DESIGN)


def test_limits_of_faults_are_those_of_the_table():
    limits = (
        f"{table.SOON:g} s after the fault, {table.KILLED:g} s for a killed rank and "
        f"{table.ORPHANED:g} s"
    )
    assert limits in on_one_line(DESIGN)


def test_the_count_of_actions_is_the_length_of_a_lowered_schedule():
    for p, m in ((1, 3), (2, 1), (4, 8), (5, 3)):
        lowered = schedules.lower(schedules.one_f_one_b(p, m))
        assert sum(map(len, lowered.actions)) == design_figures.num_actions(p, m)
