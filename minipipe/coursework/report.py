"""What grading found: points for each test, each task and all together, as a table or as JSON.

``Report.as_json()``, and ``minipipe grade DIR --json``, give one object::

    {"directory": "mine", "points": 41, "possible": 84, "passed": false,
     "containment": {              null where no code was run
       "layers": ["namespaces", "Landlock", "limits"], that kept every task apart
       "exposed": []},             what a task could reach all the same; see minipipe.coursework.containment
     "tasks": [
       {"task": "05_bubble", "title": "…", "lesson": "05",
        "points": 2, "possible": 6, "passed": false,
        "problem": "",            why no test could run: the file is missing, or does not load
        "flags": ["line 3: gc"],  names that the task does not give: read the file. The imports among them were refused
        "output": "",             what the student's code printed, cut after 2000 characters
        "tests": [
          {"test": "test_…", "meaning": "…", "hidden": false, "points": 0, "possible": 1, "passed": false,
           "reason": "…",         one sentence (all that follows is empty where the test passed)
           "expected": "…",       where two values were compared, otherwise empty
           "got": "…",
           "where": "line 12: …", of the student's file, where it raised
           "hint": "…"}]}]}
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import indent, wrap
from typing import Any

from minipipe.coursework.checking import Outcome
from minipipe.coursework.containment import Containment, weakest
from minipipe.coursework.exercise import Exercise, Test

_WIDTH = 76


@dataclass(frozen=True)
class TaskReport:
    """How the tests of one task ended.

    Attributes
    ----------
    exercise : Exercise
    outcomes : tuple of (Test, Outcome)
    problem : str
        Why no test could run, or nothing.
    output : str
        What the student's code printed.
    is_as_given : bool
        Whether the file is still the stub.
    containment : Containment, optional
        What kept the student's code apart; None where it was not run.
    flags : tuple of str
        What the file uses beyond what its task gives, each with its line; see :mod:`minipipe.coursework.imports`.

    Examples
    --------
    >>> from minipipe.coursework.exercise import exercises_in, find_source
    >>> exercise = exercises_in(find_source(None))[4]
    >>> print(TaskReport(exercise, tuple((test, Outcome(True)) for test in exercise.tests)))
    05_bubble               7 of  7  done
    """

    exercise: Exercise
    outcomes: tuple[tuple[Test, Outcome], ...]
    problem: str = ""
    output: str = ""
    is_as_given: bool = False
    containment: Containment | None = None
    flags: tuple[str, ...] = ()

    @property
    def points(self) -> int:
        """One for each test that passed."""
        return sum(outcome.passed for _, outcome in self.outcomes)

    @property
    def possible(self) -> int:
        """The number of tests."""
        return len(self.outcomes)

    @property
    def passed(self) -> bool:
        """Whether every test passed."""
        return self.points == self.possible

    @property
    def is_untouched(self) -> bool:
        """Whether the file is still the stub, or every test met a part that is not written yet."""
        return self.is_as_given or all(outcome.is_unwritten for _, outcome in self.outcomes)

    def as_json(self) -> dict[str, Any]:
        """Return the part of the report about a task."""
        tests = [
            {
                "test": test.name,
                "meaning": test.meaning,
                "hidden": test.is_hidden,
                "points": int(outcome.passed),
                "possible": 1,
                "passed": outcome.passed,
                "reason": outcome.reason,
                "expected": outcome.expected,
                "got": outcome.got,
                "where": outcome.where,
                "hint": "" if outcome.passed else test.hint,
            }
            for test, outcome in self.outcomes
        ]
        return {
            "task": self.exercise.name,
            "title": self.exercise.title,
            "lesson": self.exercise.lesson,
            "points": self.points,
            "possible": self.possible,
            "passed": self.passed,
            "problem": self.problem,
            "flags": list(self.flags),
            "output": self.output,
            "tests": tests,
        }

    def __str__(self) -> str:
        verdict = "done" if self.passed else "not started" if self.is_untouched else self.problem
        lines = [f"{self.exercise.name:22} {self.points:2} of {self.possible:2}  {verdict}".rstrip()]
        if self.flags:
            found = wrap(f"not given in this task: {'; '.join(self.flags)}", _WIDTH)
            lines += [indent(line, "    ") for line in found]
        if not (self.passed or self.is_untouched or self.problem):
            for test, outcome in self.outcomes:
                lines += [] if outcome.passed else [_failure(test, outcome)]
        if self.output and not self.passed:
            lines.append(indent(f"\nIt printed:\n{indent(self.output.rstrip(), '  ')}", "    "))
        return _printable("\n".join(lines))


def _printable(text: str) -> str:
    """Write what would steer a terminal, or could not be printed at all, as Python writes it in strings."""
    return "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text)


def _failure(test: Test, outcome: Outcome) -> str:
    """Write what a test means, what went wrong, and what to think of."""
    lines = [f"\n{test.name}{' (hidden)' if test.is_hidden else ''}", *wrap(test.meaning, _WIDTH)]
    lines += [indent(line, "  ") for line in _reason(outcome)]
    lines += [f"  {outcome.where}"] if outcome.where else []
    lines += [indent(line, "  ") for line in wrap(f"Hint: {test.hint}", _WIDTH)] if test.hint else []
    return indent("\n".join(lines), "    ")


def _reason(outcome: Outcome) -> list[str]:
    """Write the expected value above the actual one; or the sentence, where nothing was compared."""
    if outcome.compared:
        values = [*_aligned("expected", outcome.expected), *_aligned("got", outcome.got)]
        return [*outcome.compared.rstrip().splitlines(), *values, *outcome.drawing.splitlines()]
    return [line for part in outcome.reason.splitlines() for line in wrap(part, _WIDTH)]


def _aligned(word: str, text: str) -> list[str]:
    """Write a word and beside it a text."""
    first, *others = [line for part in text.rstrip().splitlines() for line in wrap(part, _WIDTH - 11) or [""]]
    return [f"  {word:8} {first}", *(f"{'':11}{line}" for line in others)]


@dataclass(frozen=True)
class Report:
    """How all tasks of a student's directory ended.

    Attributes
    ----------
    directory : str
    tasks : tuple of TaskReport

    Examples
    --------
    >>> print(Report("mine", ()))
    <BLANKLINE>
    0 of 0 points, 0 of 0 tasks done
    """

    directory: str
    tasks: tuple[TaskReport, ...]

    @property
    def points(self) -> int:
        """All points together."""
        return sum(task.points for task in self.tasks)

    @property
    def possible(self) -> int:
        """The most points there are."""
        return sum(task.possible for task in self.tasks)

    @property
    def containment(self) -> Containment | None:
        """What kept all tasks apart, and what any could reach; None where none was run."""
        return weakest(task.containment for task in self.tasks if task.containment is not None)

    @property
    def passed(self) -> bool:
        """Whether every task is done."""
        return self.points == self.possible

    def as_json(self) -> dict[str, Any]:
        """Return the object that the module's docstring describes."""
        return {
            "directory": self.directory,
            "points": self.points,
            "possible": self.possible,
            "passed": self.passed,
            "containment": self.containment and self.containment._asdict(),
            "tasks": [task.as_json() for task in self.tasks],
        }

    def __str__(self) -> str:
        done = sum(task.passed for task in self.tasks)
        lines = [*map(str, self.tasks), "", *filter(None, [str(self.containment or "")])]
        left = [task.exercise for task in self.tasks if not task.passed]
        if left:
            nearest = min(left, key=lambda exercise: exercise.lesson)
            lines.append(f"next: {nearest.name} (lesson {nearest.lesson}), {nearest.subject}")
        plural = "" if len(self.tasks) == 1 else "s"
        lines.append(f"{self.points} of {self.possible} points, {done} of {len(self.tasks)} task{plural} done")
        return "\n".join(lines)
