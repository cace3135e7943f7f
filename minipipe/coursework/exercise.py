"""An exercise: one file with statement, solution and stub, and beside it one with tests
and wrong answers.

``tutorials/exercises/README.md`` has every rule; :meth:`Exercise.check` refuses a file
that breaks one.

``tutorials/exercises/05_bubble.py`` runs as the solution. Its docstring is the
statement: the first line is ``05 title: subject.``, and a paragraph begins with
``Lesson 05``, the lesson of the exercise. Markers enclose the part that the student
does not get, and its replacement::

    # SOLUTION
    return (num_ranks - 1) / (num_microbatches + num_ranks - 1)
    # STUB
    # raise NotImplementedError("the fraction of all time in which ranks are idle")
    # END

The student may import from minipipe only what the stub imports.

``tutorials/exercises/checks/05_bubble.py`` holds functions ``test_…(task)``, worth one
point each. They run in the grader; ``task`` calls the student's functions in another
process, with plain data (``checking.py``). Functions marked ``remote`` run in the
student's process, whose code can forge their results: compare lengths as well. The
first paragraph of a docstring is the meaning of the test, a paragraph ``Hint: …`` its
hint, and ``Points: 2`` its points, if not one. Only the instructor has the part after
the line ``# HIDDEN``: tests with other numbers; ``WRONG_ANSWERS``, tuples of (why it is
tempting, text of the solution, its replacement); and optionally ``VARIANTS``, groups of
alternatives, each a tuple of texts. The first alternative has texts of the two files;
another one replaces it for a student whose name draws it::

    VARIANTS = [
        [("random.Random(1)",), ("random.Random(7)",)],
        [("4 ranks and 8 microbatches", "3/11"), ("3 ranks and 6 microbatches", "2/8")],
    ]

A puzzle has, above ``# HIDDEN``, ``LEVELS``: by number n a
:class:`minipipe.coursework.Level`, whose schedule the student's function ``level_n()``
returns as text; see ``leaderboard.py``.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property, partial
from hashlib import blake2b
from itertools import chain, count
from math import inf
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

from minipipe.coursework.assignment import apportioned, assignment_of
from minipipe.errors import CourseworkError, quoted
from minipipe.io import read_text

_MARKED = re.compile(
    r"^ *# SOLUTION\n(.*?)^ *# STUB\n(.*?)^ *# END\n", re.DOTALL | re.MULTILINE
)
_MARKER = re.compile(r"^ *# (SOLUTION|STUB|END|HIDDEN)$", re.MULTILINE)
_HIDDEN = re.compile(r"^# HIDDEN\n", re.MULTILINE)
_COMMENT = re.compile(r"^( *)# ?", re.MULTILINE)
_LONGEST = 1 << 20  # bytes of a file
_HERE = Path(__file__).resolve().parent
# A wheel has the exercises beside this file (setup.py); a clone has them among the
# lessons.
_MINIPIPES = next(
    filter(Path.is_dir, [_HERE / "exercises"]),
    _HERE.parent.parent / "tutorials" / "exercises",
)


class Test(NamedTuple):
    """A test of an exercise, worth one point, or the number in a paragraph ``Points:
    2.5``.
    """

    name: str
    meaning: str
    hint: str
    weight: float
    is_hidden: bool


@dataclass(frozen=True)
class Exercise:
    """One task of the coursework.

    Attributes
    ----------
    name : str
        For example ``05_bubble``.
    solution : str
        The text of its file, markers included.
    checks : str
        The text of the file with its tests.
    checks_path : Path
    worth : float, optional
        The points in an assignment; by default each test counts its own.
    """

    name: str
    solution: str = field(repr=False)
    checks: str = field(repr=False)
    checks_path: Path
    worth: float | None = None

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
        """The number of its lesson."""
        match = re.search(r"^Lesson (\d\d)", self.statement, re.MULTILINE)
        if match is None:
            how = "begin a paragraph of it with 'Lesson 05', two digits"
            raise self._broken(f"its docstring names no lesson; {how}")
        return match[1]

    @cached_property
    def stub(self) -> str:
        """The student's file: the solution without the marked parts, with the
        uncommented stubs in their place.
        """
        text = _MARKED.sub(lambda match: _COMMENT.sub(r"\1", match[2]), self.solution)
        if text == self.solution or _MARKER.search(text):
            markers = "it needs the lines # SOLUTION, # STUB and # END"
            raise self._broken(f"{markers}, each on a line of its own, in turn")
        return text

    @property
    def answer(self) -> str:
        """The solution as a student would submit it, without markers."""
        return _MARKED.sub(lambda match: match[1], self.solution)

    @cached_property
    def visible_checks(self) -> str:
        """The tests that the student gets."""
        parts = _HIDDEN.split(self.checks)
        if len(parts) != 2:
            problem = "its checks need one line # HIDDEN"
            raise self._broken(f"{problem}; there are {len(parts) - 1}")
        return parts[0].rstrip() + "\n"

    @cached_property
    def variants(self) -> list[list[tuple[str, ...]]]:
        """Groups of alternative texts, the first of a group as in the files."""
        node = self._variants_node
        if node is None:
            return []
        try:
            groups = ast.literal_eval(node.value)
            are_right = all(map(_are_alternatives, groups))
        except (ValueError, TypeError, RecursionError):
            are_right = False
        if not are_right:
            problem = f"VARIANTS of its checks, line {node.lineno}"
            reason = f"{problem}, are not lists of tuples of texts"
            how = "each a list of two or more tuples with equally many texts"
            raise self._broken(f"{reason}; write groups, {how}: [[('3',), ('5',)]]")
        return groups

    @property
    def _variants_node(self) -> ast.Assign | None:
        return self._assigned("VARIANTS")

    @property
    def is_puzzle(self) -> bool:
        """Whether its checks have ``LEVELS``."""
        return self._assigned("LEVELS") is not None

    def _assigned(self, name: str) -> ast.Assign | None:
        for node in ast.parse(self.checks).body:
            match node:
                case ast.Assign(targets=[ast.Name(target)]) if target == name:
                    return node
        return None

    def drawn_by(self, student: str) -> list[int]:
        """Return, by group of ``VARIANTS``, the alternative that a name draws, in any
        case and encoding.
        """
        name = normalize("NFC", student.strip()).casefold()
        indices = []
        for number, group in enumerate(self.variants):
            seed = f"{name}\0{self.name}\0{number}".encode("utf-8", "replace")
            drawn = blake2b(seed, digest_size=8).digest()
            indices.append(int.from_bytes(drawn) % len(group))
        return indices

    def for_student(self, student: str) -> Exercise:
        """Return the exercise with the numbers that a name draws."""
        texts = dict[str, str]()
        for group, drawn in zip(self.variants, self.drawn_by(student)):
            texts |= zip(group[0], group[drawn], strict=True)
        if not texts:
            return self
        longest_first = sorted(texts, key=len, reverse=True)
        any_of = re.compile("|".join(map(re.escape, longest_first)))
        draw = partial(any_of.sub, lambda match: texts[match[0]])
        return replace(self, solution=draw(self.solution), checks=draw(self.checks))

    def all_drawn(self) -> Iterator[str]:
        """Yield names that together draw each alternative."""
        left: set[tuple[int, int]] = set()
        for number, group in enumerate(self.variants):
            left |= {(number, index) for index in range(len(group))}
        for student in map("student {}".format, count()):
            if not left:
                return
            drawn = set(enumerate(self.drawn_by(student)))
            if drawn & left:
                yield student
            left -= drawn

    @property
    def points(self) -> float:
        """The largest number of points."""
        return total(test.weight for test in self.tests)

    @cached_property
    def tests(self) -> tuple[Test, ...]:
        """Every test, the visible ones first."""
        last_visible = self.visible_checks.count("\n")
        tests = []
        for node in self._functions:
            if node.name.startswith("test_"):
                parts = _parts_of(ast.get_docstring(node) or "")
                tests.append(Test(node.name, *parts, node.lineno > last_visible))
        if self.worth is None:
            return tuple(tests)
        weights = apportioned([test.weight for test in tests], self.worth)
        return tuple(map(_with_weight, tests, weights))

    @property
    def _functions(self) -> list[ast.FunctionDef]:
        """The functions of the checks."""
        body = ast.parse(self.checks).body
        return [node for node in body if isinstance(node, ast.FunctionDef)]

    # -- rules -------------------------------------------------------------------------

    def _broken(self, what: str) -> CourseworkError:
        return CourseworkError("damaged", f"{self.name}: {what}.")

    def check(self) -> None:
        """Raise ``CourseworkError`` with code ``damaged`` for a rule that one of the
        files breaks.
        """
        self._check_syntax("it", self.solution)
        self._check_syntax("its stub", self.stub)
        self._check_syntax("its file of checks", self.checks)
        number = self.name.partition("_")[0]
        first = self.statement.partition("\n")[0]
        if not re.match(rf"{number} [^:]+: .", first):
            problem = f"its docstring begins with {quoted(first)}"
            raise self._broken(f"{problem}; expected '{number} title: its subject.'")
        _ = self.lesson
        for match in _MARKED.finditer(self.solution):
            for line in map(str.strip, match[2].splitlines()):
                if line and not line.startswith("#"):
                    problem = f"between # STUB and # END is {quoted(line)}"
                    how = "expected comments, which become the student's code"
                    raise self._broken(f"{problem}; {how}")
        self._check_tests()
        self._check_variants()

    def _check_syntax(self, what: str, text: str) -> None:
        try:
            ast.parse(text)
        except SyntaxError as error:
            problem = f"line {error.lineno}, {error.msg}"
        # ValueError: a NUL, before Python 3.12. The others: the parser's stack is full.
        except (ValueError, RecursionError, MemoryError):
            problem = "it has a NUL, or is nested too deeply"
        else:
            return
        raise self._broken(f"{what} is not valid Python: {problem}")

    def _check_tests(self) -> None:
        last_visible = self.visible_checks.count("\n")
        names = [test.name for test in self.tests]
        if not names:
            problem = "its checks have no test"
            raise self._broken(f"{problem}; expected functions test_…(task)")
        for node in self._functions:
            marks = map(ast.unparse, node.decorator_list)
            is_remote = any(mark.endswith("remote") for mark in marks)
            if is_remote and node.lineno > last_visible:
                problem = f"{node.name} of its checks is marked @remote below # HIDDEN"
                how = "which no student's process gets; move it above"
                raise self._broken(f"{problem}, {how}")
            if node.name not in names:
                continue
            if names.count(node.name) > 1:
                problem = f"its checks have two tests {node.name}"
                raise self._broken(f"{problem}, of which Python keeps one; rename one")
            if [each.arg for each in node.args.args] != ["task"]:
                test = f"{node.name}({ast.unparse(node.args)})"
                raise self._broken(f"{test} has the wrong arguments; expected task")
            if not ast.get_docstring(node):
                problem = f"{node.name} has no docstring"
                how = "its first paragraph says what the test means"
                raise self._broken(f"{problem}; {how}")

    def _check_variants(self) -> None:
        """Refuse variants whose first alternative is not in the files: another would
        change nothing.
        """
        if not self.variants or (node := self._variants_node) is None:
            return
        lines = self.checks.splitlines()
        del lines[node.lineno - 1 : node.end_lineno]
        files = "\n".join([self.solution, *lines])
        for wrong in chain(*(group[0] for group in self.variants)):
            if wrong not in files:
                problem = f"VARIANTS have {quoted(wrong)}"
                how = "the first alternative of a group has texts of the two files"
                reason = f"{problem}, which does not occur in its files; {how}"
                raise self._broken(f"{reason}, letter for letter")


def _with_weight(test: Test, weight: float) -> Test:
    return test._replace(weight=weight)


def _are_alternatives(group: Any) -> bool:
    """Whether a group of ``VARIANTS`` has two or more tuples with equally many texts;
    raises TypeError for what has no length.
    """
    texts = [*chain(*group)]
    is_text = all(isinstance(text, str) and text for text in texts)
    return is_text and len(group) > 1 and len(set(map(len, group))) == 1


def _parts_of(docstring: str) -> tuple[str, str, float]:
    """Return the first paragraph of a docstring, the hint, and the points."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in docstring.split("\n\n")]
    hints = [each[6:] for each in paragraphs if each.startswith("Hint: ")]
    points = [each[8:] for each in paragraphs if each.startswith("Points: ")]
    try:
        weight = float(next(iter(points), 1))
    except ValueError:
        weight = inf
    if not 0 < weight < inf:
        problem = f"A test says 'Points: {points[0]}'; expected a number above 0"
        raise CourseworkError("damaged", f"{problem}, such as 2.5.")
    return paragraphs[0], " ".join(hints), weight


def total(points: Iterable[float]) -> float:
    """Return a sum of points, without binary rounding errors; a whole number as an int.

    Examples
    --------
    >>> total([0.1, 0.2, 2]), total([1.0, 2.0])
    (2.3, 3)
    """
    result = round(sum(points), 6)
    if result == int(result):
        return int(result)
    return result


def find_source(path: str | Path | None = None) -> Path:
    """Return the directory with the exercises, by default minipipe's.

    Raises
    ------
    CourseworkError
        Code ``not-found``.
    """
    source = _MINIPIPES
    if path is not None:
        source = Path(path)
    # isdir comes first, because glob raises for names that are too long.
    if not (os.path.isdir(source) and any(source.glob("[0-9][0-9]_*.py"))):
        raise CourseworkError(
            "not-found",
            f"There are no exercises in {quoted(str(source), 200)}; expected files "
            "such as 05_bubble.py. Without --source, minipipe's exercises are used.",
        )
    return source


def _text_of(path: Path) -> str:
    return read_text(path, _LONGEST).replace("\r\n", "\n")


def exercises_in(source: Path, student: str | None = None) -> list[Exercise]:
    """Read all exercises of a directory, in order; with a student, they have the
    numbers that the name draws.

    Raises
    ------
    CourseworkError
        Codes ``not-found``, if the checks of an exercise are missing, and ``damaged``,
        if a file breaks a rule.
    FileError
    """
    exercises = []
    for path in sorted(source.glob("[0-9][0-9]_*.py")):
        checks = source / "checks" / path.name
        if not checks.is_file():
            problem = f"'{path}' has no tests"
            raise CourseworkError("not-found", f"{problem}: '{checks}' is missing.")
        exercise = Exercise(path.stem, _text_of(path), _text_of(checks), checks)
        exercise.check()
        exercises.append(exercise)
    if assignment := assignment_of(source):
        exercises = worth(exercises, assignment.points)
    if student is None:
        return exercises
    return [exercise.for_student(student) for exercise in exercises]


def worth(exercises: Iterable[Exercise], points: Mapping[str, float]) -> list[Exercise]:
    """Return the exercises of an assignment, with its points.

    Raises
    ------
    CourseworkError
        Code ``name``, if a task does not exist, and ``value``, if a puzzle is graded: a
        search solves it.
    """
    known = list(exercises)
    chosen = []
    for name, number in points.items():
        exercise = named(known, name)
        if exercise.is_puzzle and number:
            problem = f"{name} is a puzzle, which `minipipe search` solves"
            how = f"count no points for it: {name}=0"
            raise CourseworkError("value", f"{problem}; {how}.")
        chosen.append(replace(exercise, worth=number))
    return sorted(chosen, key=lambda exercise: exercise.name)


def named(exercises: Iterable[Exercise], name: str) -> Exercise:
    """Return the exercise with a name.

    Raises
    ------
    CourseworkError
        Code ``name``, with the nearest name.
    """
    by_name = {exercise.name: exercise for exercise in exercises}
    if name in by_name:
        return by_name[name]
    near = [known for known in by_name if name and name in known]
    near = near or get_close_matches(name, by_name, 1)
    problem = f"There is no task {name!r}."
    if near:
        problem += f" Did you mean {near[0]}?"
    tasks = f"The tasks are {', '.join(by_name)}."
    raise CourseworkError("name", f"{problem} {tasks}")


def chosen_of(
    exercises: Sequence[Exercise], only: str | Iterable[str] | None
) -> list[Exercise]:
    """Return the exercises with one or several names, each once, in their own order;
    all if none is named.

    Raises
    ------
    CourseworkError
        Code ``name``, as :func:`named`.

    Examples
    --------
    >>> [
    ...     exercise.name
    ...     for exercise in chosen_of(
    ...         exercises_in(find_source()), ["05_bubble", "01_multiply"]
    ...     )
    ... ]
    ['01_multiply', '05_bubble']
    """
    if only is None:
        return list(exercises)
    if isinstance(only, str):
        only = [only]
    names = {named(exercises, name).name for name in only}
    return [exercise for exercise in exercises if exercise.name in names]
