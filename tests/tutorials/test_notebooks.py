"""The lessons as notebooks: nothing is lost, what only asserts is folded, as in the
site, which runs them.
"""

import ast
import json
import sys

import pytest

from tests.launch import ROOT, run
from tutorials.notebooks import notebook, without_checks

LESSONS = sorted((ROOT / "tutorials").glob("[0-9][0-9]_*.py"))


def code_cells(path):
    """Return the code cells of a lesson's notebook: (is folded, text)."""
    cells = [
        cell
        for cell in notebook(path.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]
    return [
        ("hide-input" in cell["metadata"].get("tags", ()), "".join(cell["source"]))
        for cell in cells
    ]


@pytest.mark.slow
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_notebook_runs_what_its_lesson_runs_and_folds_what_only_asserts(path):
    cells = code_cells(path)
    assert ast.dump(ast.parse("\n".join(text for _, text in cells))) == ast.dump(
        ast.parse(path.read_text())
    )
    for is_folded, text in cells:
        kinds = {type(statement).__name__ for statement in ast.parse(text).body}
        assert (
            kinds <= {"Assert", "For"}
            if is_folded
            else not isinstance(ast.parse(text).body[-1], ast.Assert)
        )
        assert not (is_folded and "print(" in text)


@pytest.mark.parametrize(
    ("code", "shown", "checks"),
    [
        ("x = 1\nprint(x)\nassert x == 1", "x = 1\nprint(x)", "assert x == 1"),
        ("x = 1\n\n# why\nassert x == 1", "x = 1", "# why\nassert x == 1"),
        ("assert x\ny = 2", "assert x\ny = 2", ""),
        ("f()\nfor x in y:\n    assert x", "f()", "for x in y:\n    assert x"),
        (
            "for x in y:\n    print(x)\n    assert x",
            "for x in y:\n    print(x)\n    assert x",
            "",
        ),
        ("assert x", "", "assert x"),
    ],
)
def test_only_what_follows_the_last_deed_of_a_cell_is_a_check(code, shown, checks):
    assert without_checks(code) == (shown, checks)


def test_the_command_writes_the_lessons_that_are_named(tmp_path):
    done = run(
        [
            sys.executable,
            "tutorials/notebooks.py",
            tmp_path / "mine",
            "tutorials/01_tape.py",
        ]
    )
    (path,) = (tmp_path / "mine").iterdir()
    assert (done.code, done.out) == (0, f"wrote {path}\n")
    assert (
        json.loads(path.read_text())["cells"][0]["source"][0]
        == "# 01 · A tape, and why gradients add\n"
    )
    assert run([sys.executable, "tutorials/notebooks.py"]).code == 1
