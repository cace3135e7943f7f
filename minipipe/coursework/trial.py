"""A trial of exercises: whether solutions pass, and stubs and wrong answers fail, with
any drawn numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from minipipe.coursework.checking import load_checks
from minipipe.coursework.exercise import Exercise
from minipipe.coursework.grading import TaskReport, grade_text
from minipipe.coursework.process import students
from minipipe.errors import CourseworkError, counted, quoted
from minipipe.io import printable


class Tried(NamedTuple):
    """A file that was graded.

    Attributes
    ----------
    task : str
    what : str
        The file.
    problem : str
        The unexpected result, or empty.
    """

    task: str
    what: str
    problem: str


def wrong_answers(exercise: Exercise) -> list[tuple[str, str, str]]:
    """Return the wrong answers of an exercise.

    Raises
    ------
    CourseworkError
        Code ``damaged``, if one has another form, or replaces a text that the solution
        does not have.
    """
    answers = getattr(load_checks(exercise.name, exercise.checks), "WRONG_ANSWERS", [])
    for number, answer in enumerate(answers):
        problem = f"it is {quoted(answer, 120)}"
        is_tuple = isinstance(answer, tuple) and len(answer) == 3
        if is_tuple and all(isinstance(text, str) for text in answer):
            if answer[1] in exercise.solution:
                continue
            problem = f"the solution has no {quoted(answer[1], 120)}"
        which = f"{exercise.name}: WRONG_ANSWERS[{number}]"
        how = "expected (why it is tempting, text of the solution, its replacement)"
        raise CourseworkError("damaged", f"{which}: {problem}; {how}.")
    return answers


def _texts(exercise: Exercise) -> Iterator[tuple[str, str, bool | None]]:
    """Yield each file with its description, and whether all tests must pass, or none;
    None for some.
    """
    yield "its solution", exercise.answer, True
    yield "its stub", exercise.stub, False
    for why, old, new in wrong_answers(exercise):
        yield (
            f"the wrong answer {quoted(why, 120)}",
            exercise.solution.replace(old, new),
            None,
        )


def _problem(report: TaskReport, passes: bool | None) -> str:
    passed = [test.name for test, result in report.outcomes if result.passed]
    if passes and not report.passed:
        failed = next(
            (test, result) for test, result in report.outcomes if not result.passed
        )
        return f"fails {failed[0].name}: {failed[1].reason}"
    if passes is False and passed:
        return f"passes {passed[0]}"
    if passes is None and report.passed:
        return "passes all tests"
    return ""


def try_exercises(exercises: Iterable[Exercise], time_limit: float) -> list[Tried]:
    """Grade each solution, stub and wrong answer, with numbers of enough students that
    each alternative is drawn.
    """
    files = []
    for exercise in exercises:
        drawn = {
            f", as {name!r} draws it": exercise.for_student(name)
            for name in exercise.all_drawn()
        }
        for by, variant in (drawn or {"": exercise}).items():
            for what, text, passes in _texts(variant):
                files.append((variant, f"{what}{by}", text, passes))

    def tried(exercise: Exercise, what: str, text: str, passes: bool | None) -> Tried:
        report = grade_text(exercise, text.encode(), time_limit, Path(nowhere), running)
        return Tried(exercise.name, what, _problem(report, passes))

    with TemporaryDirectory() as nowhere, students() as running:
        return running.map(tried, *zip(*files))


def as_text(tried: Iterable[Tried]) -> str:
    """Return a line for each task, and one for each problem.

    Examples
    --------
    >>> print(
    ...     as_text(
    ...         [
    ...             Tried("05_bubble", "its solution", ""),
    ...             Tried("05_bubble", "its stub", "passes test_two"),
    ...         ]
    ...     )
    ... )
    05_bubble  2 files tried
        its stub passes test_two
    unexpected results: 1 of 2 files
    """
    tried = list(tried)
    lines = []
    wrong = [each for each in tried if each.problem]
    for task in dict.fromkeys(each.task for each in tried):
        files = [each for each in tried if each.task == task]
        lines.append(f"{task}  {counted(len(files), 'file')} tried")
        lines += [f"    {each.what} {each.problem}" for each in files if each.problem]
    summary = "solutions pass all tests, stubs none, and each wrong answer fails"
    if wrong:
        total = counted(len(tried), "file")
        summary = f"unexpected results: {len(wrong)} of {total}"
    return "\n".join([*map(printable, lines), summary])
