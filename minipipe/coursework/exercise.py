"""An exercise: one file with statement, solution and stub, and beside it one with tests and wrong answers.

``tutorials/exercises/05_bubble.py`` runs as the solution. Its docstring is the statement: the first line is ``05 title:
subject.``, and a paragraph begins with ``Lesson 05``, the lesson that it belongs to. Between markers stands what the
student does not get, and what stands there instead::

    # SOLUTION
    return (num_ranks - 1) / (num_microbatches + num_ranks - 1)
    # STUB
    # raise NotImplementedError("the fraction of all time in which ranks are idle")
    # END

What the stub imports of minipipe is all that the student may import of it.

``tutorials/exercises/checks/05_bubble.py`` holds functions ``test_…(task)``, each worth one point. They run in the
grader; ``task`` calls the student's functions in another process, with plain data (:mod:`minipipe.coursework.task`).
Functions marked ``remote`` run beside the student's code; whatever comes back is his word, so compare lengths, too. The
first paragraph of a docstring says what the test means, a paragraph ``Hint: …`` what to think of. What follows the line
``# HIDDEN`` only the instructor has: variants with other numbers, and ``WRONG_ANSWERS``, tuples of (why it is tempting,
text of the solution, what to put there instead).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from minipipe.errors import CourseworkError

_MARKED = re.compile(r"^ *# SOLUTION\n(.*?)^ *# STUB\n(.*?)^ *# END\n", re.DOTALL | re.MULTILINE)
_MARKER = re.compile(r"^ *# (SOLUTION|STUB|END|HIDDEN)$", re.MULTILINE)
_HIDDEN = re.compile(r"^# HIDDEN\n", re.MULTILINE)
_BESIDE = Path(__file__).resolve().parent.parent.parent / "tutorials" / "exercises"


class Test(NamedTuple):
    """A test of an exercise, worth one point: its name, what it means, a hint, and whether students have it."""

    name: str
    meaning: str
    hint: str
    is_hidden: bool


@dataclass(frozen=True)
class Exercise:
    """One task of the coursework.

    Attributes
    ----------
    name : str
        Such as ``05_bubble``.
    solution : str
        The text of its file, markers included.
    checks : str
        The text of the file beside it.
    checks_path : Path
        Where that file is.
    """

    name: str
    solution: str = field(repr=False)
    checks: str = field(repr=False)
    checks_path: Path

    @cached_property
    def statement(self) -> str:
        """The docstring of the file."""
        return ast.get_docstring(ast.parse(self.solution)) or ""

    @property
    def title(self) -> str:
        """The first line of the statement."""
        return self.statement.partition("\n")[0].rstrip(".")

    @property
    def subject(self) -> str:
        """The title without its number."""
        return self.title.partition(": ")[2]

    @property
    def lesson(self) -> str:
        """The number of the lesson that it belongs to."""
        found = re.search(r"^Lesson (\d\d)", self.statement, re.MULTILINE)
        if found is None:
            how = "begin a paragraph of its docstring with 'Lesson 05', two digits"
            raise CourseworkError("markers", f"The statement of {self.name} names no lesson; {how}.")
        return found[1]

    @cached_property
    def stub(self) -> str:
        """What the student begins with: each solution left out, and what stands after STUB without its ``#``."""
        text = _MARKED.sub(lambda found: re.sub(r"^( *)# ?", r"\1", found[2], flags=re.MULTILINE), self.solution)
        if text == self.solution or _MARKER.search(text):
            raise CourseworkError("markers", f"{self.name} needs # SOLUTION, # STUB and # END, in turn.")
        return text

    @cached_property
    def visible_checks(self) -> str:
        """The tests that the student gets."""
        parts = _HIDDEN.split(self.checks)
        if len(parts) != 2:
            raise CourseworkError("markers", f"The checks of {self.name} need one line # HIDDEN.")
        return parts[0].rstrip() + "\n"

    @cached_property
    def tests(self) -> tuple[Test, ...]:
        """Every test, those that the student has first."""
        last_visible = self.visible_checks.count("\n")
        functions = [node for node in ast.parse(self.checks).body if isinstance(node, ast.FunctionDef)]
        return tuple(
            Test(node.name, *_said(ast.get_docstring(node) or ""), is_hidden=node.lineno > last_visible)
            for node in functions
            if node.name.startswith("test_")
        )


def _said(docstring: str) -> tuple[str, str]:
    """Return the first paragraph of a docstring, and the hint."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in docstring.split("\n\n")]
    hints = [paragraph.removeprefix("Hint: ") for paragraph in paragraphs if paragraph.startswith("Hint: ")]
    return paragraphs[0], " ".join(hints)


def find_source(given: str | Path | None = None) -> Path:
    """Return the directory that holds the exercises: the given one, or that of the clone which minipipe lies in.

    Raises
    ------
    CourseworkError
        Code ``no-source``.
    """
    source = _BESIDE if given is None else Path(given)
    if not any(source.glob("[0-9][0-9]_*.py")):
        raise CourseworkError(
            "no-source",
            f"There are no exercises in '{source}'. They are not part of an installed package: clone the project and "
            "`pip install -e .` there, or name the directory by --source DIR (tutorials/exercises of a clone).",
        )
    return source


def exercises_in(source: Path) -> list[Exercise]:
    """Read all exercises of a directory, in order.

    Raises
    ------
    CourseworkError
        Code ``no-source``, where the checks of one are missing.
    """
    exercises = []
    for path in sorted(source.glob("[0-9][0-9]_*.py")):
        checks = source / "checks" / path.name
        if not checks.is_file():
            raise CourseworkError("no-source", f"'{path}' has no tests: '{checks}' is missing.")
        exercises.append(Exercise(path.stem, path.read_text("utf-8"), checks.read_text("utf-8"), checks))
    return exercises


def named(exercises: Iterable[Exercise], name: str) -> Exercise:
    """Return the exercise of a name.

    Raises
    ------
    CourseworkError
        Code ``unknown-task``, with the nearest name.
    """
    by_name = {exercise.name: exercise for exercise in exercises}
    if name in by_name:
        return by_name[name]
    near = [known for known in by_name if name and name in known] or get_close_matches(name, by_name, 1)
    guess = f" Did you mean {near[0]}?" if near else ""
    raise CourseworkError("unknown-task", f"There is no task {name!r}.{guess} The tasks are {', '.join(by_name)}.")
