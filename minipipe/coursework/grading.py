"""Grading: the instructor's tests run in this process, and each task in its own
contained processes.

README.md describes the containment and its limits. Results are compared in the grader's
process. A student's process gets the student's file, the visible checks, and each call
as plain data (:mod:`minipipe.coursework.checking`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from itertools import chain
from pathlib import Path
from textwrap import indent, wrap
from typing import Any

from minipipe.core.specs import Spec
from minipipe.coursework.checking import (
    CheckResult,
    Ended,
    Failed,
    Late,
    Task,
    load_checks,
    run_test,
)
from minipipe.coursework.exercise import (
    Exercise,
    Test,
    chosen_of,
    exercises_in,
    find_source,
    total,
)
from minipipe.coursework.leaderboard import Entry, entries_of, levels_in
from minipipe.coursework.process import LONGEST_OUTPUT, StudentProcess, students
from minipipe.coursework.running import Running
from minipipe.coursework.sandbox import Containment, weakest
from minipipe.coursework.submission import Submission, directories_of, open_submission
from minipipe.errors import CourseworkError, FileError, counted
from minipipe.io import printable_lines

_TIME_LIMIT = Spec(
    float,
    above=0,
    expected="seconds, more than 0",
    error=CourseworkError,
    code="timeout",
)
TIME_LIMIT = 30.0
"""Seconds for all tests of one task together."""

OF_ANOTHER = (
    "the numbers of its statement are not the graded ones; --variants or --student "
    "selects them"
)
_LATE = "it was stopped after {:g} s; is there an endless loop, or far too much to try?"
_NOT_REACHED = "not reached: an earlier test used up the time"
_KEPT = "details of hidden tests are not shown"
_WIDTH = 76  # columns of the report


@dataclass(frozen=True)
class TaskReport:
    """The results of one task.

    Attributes
    ----------
    exercise : Exercise
    outcomes : tuple of (Test, CheckResult)
    problem : str
        The reason why no test could run, or empty.
    output : str
        The output of the student's code.
    is_as_given : bool
        Whether the file is still the stub.
    containment : Containment, optional
        None if the student's code was not run.
    flags : tuple of str
        Names that the task does not give, each with its line; see
        :mod:`minipipe.coursework.imports`.
    entries : tuple of Entry
        The legal schedules of a puzzle, for a leaderboard.
    is_of_another : bool
        Whether the file's statement has other numbers than are graded.

    Examples
    --------
    >>> exercise = exercises_in(find_source(None))[4]
    >>> print(
    ...     TaskReport(
    ...         exercise, tuple((test, CheckResult(True)) for test in exercise.tests)
    ...     )
    ... )
    05_bubble               7 of  7  done
    """

    exercise: Exercise
    outcomes: tuple[tuple[Test, CheckResult], ...]
    problem: str = ""
    output: str = ""
    is_as_given: bool = False
    containment: Containment | None = None
    flags: tuple[str, ...] = ()
    entries: tuple[Entry, ...] = ()
    is_of_another: bool = False

    @property
    def points(self) -> float:
        """The points of all tests that passed."""
        return total(test.weight for test, result in self.outcomes if result.passed)

    @property
    def possible(self) -> float:
        """The largest number of points."""
        return total(test.weight for test, _ in self.outcomes)

    @property
    def passed(self) -> bool:
        """Whether every test passed."""
        return all(result.passed for _, result in self.outcomes)

    @property
    def is_untouched(self) -> bool:
        """Whether the file is still the stub, or every test reached an unwritten
        part.
        """
        return self.is_as_given or all(
            result.is_unwritten for _, result in self.outcomes
        )

    def as_json(self) -> dict[str, Any]:
        """Return one of the ``tasks`` of :meth:`Report.as_json`."""
        tests = [
            {
                "test": test.name,
                "meaning": test.meaning,
                "hidden": test.is_hidden,
                "points": total([test.weight * result.passed]),
                "possible": total([test.weight]),
                "passed": result.passed,
                "reason": result.reason,
                "expected": result.expected,
                "got": result.got,
                "where": result.where,
                "hint": test.hint * (not result.passed),
            }
            for test, result in self.outcomes
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
            "is_of_another": self.is_of_another,
            "output": self.output,
            "leaderboard": [entry.as_json() for entry in self.entries],
            "tests": tests,
        }

    def without_hidden(self) -> TaskReport:
        """Return the report without texts that reveal hidden tests, such as the output
        of the student's code.
        """
        shown = [each for each in self.outcomes if not each[0].is_hidden]
        hidden = [each for each in self.outcomes if each[0].is_hidden]
        for number, (test, result) in enumerate(hidden, 1):
            kept = CheckResult(result.passed, _KEPT * (not result.passed))
            shown.append((Test(f"hidden_{number}", "", "", test.weight, True), kept))
        return replace(self, outcomes=tuple(shown), output="", flags=())

    def __str__(self) -> str:
        points = f"{self.exercise.name:22} {self.points:2} of {self.possible:2}"
        lines = [f"{points}  {self._state}".rstrip()]
        if self.is_of_another:
            lines.append(indent(OF_ANOTHER, "    "))
        if self.flags:
            names = f"names not allowed in this task: {'; '.join(self.flags)}"
            lines += _wrapped(names, "    ")
        if not (self.passed or self.is_untouched or self.problem):
            failed = [each for each in self.outcomes if not each[1].passed]
            lines += [_failure(test, result) for test, result in failed]
        if self.output and not self.passed:
            output = indent(self.output.rstrip(), "  ")
            lines.append(indent(f"\nIt printed:\n{output}", "    "))
        # control characters would steer a terminal
        return printable_lines("\n".join(lines).expandtabs())

    @property
    def _state(self) -> str:
        if self.passed:
            return "done"
        if self.is_untouched:
            return "not started"
        return self.problem


def _wrapped(text: str, margin: str) -> list[str]:
    return [indent(line, margin) for line in wrap(text, _WIDTH)]


def _failure(test: Test, result: CheckResult) -> str:
    """Return the meaning of a test, its failure, and the hint."""
    lines = [f"\n{test.name}{' (hidden)' * test.is_hidden}"]
    lines += wrap(test.meaning, _WIDTH)
    lines += [indent(line, "  ") for line in _reason(result)]
    if result.where:
        lines.append(f"  {result.where}")
    if test.hint:
        lines += _wrapped(f"Hint: {test.hint}", "  ")
    return indent("\n".join(lines), "    ")


def _reason(result: CheckResult) -> list[str]:
    """Return the expected value above the actual one; or the sentence, if nothing was
    compared.
    """
    if not result.compared:
        parts = [wrap(part, _WIDTH) for part in result.reason.splitlines()]
        return [*chain(*parts)]
    lines = result.compared.rstrip().splitlines()
    lines += _aligned("expected", result.expected)
    lines += _aligned("got", result.got)
    return lines + result.drawing.splitlines()


def _aligned(word: str, text: str) -> list[str]:
    parts = [wrap(part, _WIDTH - 11) or [""] for part in text.rstrip().splitlines()]
    first, *others = chain(*parts)
    margin = " " * 11
    return [f"  {word:8} {first}", *(margin + line for line in others)]


@dataclass(frozen=True)
class Report:
    """The results of all tasks of a student's directory.

    Attributes
    ----------
    directory : str
    tasks : tuple of TaskReport
    name : str
        The name of the student or group: the last part of the path, without .zip.
    days_late : int
        Days after the deadline; a started day counts whole.
    late_factor : float
        The factor on the points for each day of lateness.
    following : Exercise, optional
        The exercise after the graded ones, in the order of lessons.

    Examples
    --------
    >>> print(Report("mine", ()))
    <BLANKLINE>
    0 of 0 points, 0 of 0 tasks done
    """

    directory: str
    tasks: tuple[TaskReport, ...]
    name: str = ""
    days_late: int = 0
    late_factor: float = 1.0
    following: Exercise | None = None

    @property
    def points(self) -> float:
        """The sum over all tasks."""
        return total(task.points for task in self.tasks)

    @property
    def possible(self) -> float:
        """The largest number of points."""
        return total(task.possible for task in self.tasks)

    @property
    def score(self) -> float:
        """The points after the late factor."""
        return total([self.points * self.late_factor**self.days_late])

    @property
    def next(self) -> Exercise | None:
        """The task of the earliest lesson that is not done, or else the following
        one.
        """
        left = [task.exercise for task in self.tasks if not task.passed]
        return min(left, key=lambda exercise: exercise.lesson, default=self.following)

    @property
    def containment(self) -> Containment | None:
        """The layers common to all tasks, and everything that any task could reach;
        None if none was run.
        """
        return weakest(task.containment for task in self.tasks)

    @property
    def passed(self) -> bool:
        """Whether every task is done."""
        return all(task.passed for task in self.tasks)

    def without_hidden(self) -> Report:
        """Return the report for a student who must not see hidden tests: for each, only
        whether it passed.

        It omits the output of the code and the flags, because both can reveal the
        arguments of hidden tests.
        """
        return replace(self, tasks=tuple(task.without_hidden() for task in self.tasks))

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data, as ``minipipe grade DIR --json`` prints it.

        ::

            {"submission": "mine", "directory": "all/mine", "points": 41, "possible": 84, "passed": false,
             "days_late": 0, "score": 41,  points after the late factor
             "next": "06_warmup",          a task to begin, or null
             "containment": {              null if no code was run
               "layers": ["namespaces", "Landlock", "limits"], of every task
               "exposed": []},             what a task could still reach; see minipipe.coursework.sandbox
             "tasks": [
               {"task": "05_bubble", "title": "…", "lesson": "05",
                "points": 2, "possible": 6, "passed": false,
                "problem": "",            why no test could run: the file is missing, or does not load
                "flags": ["line 3: gc"],  names that the task does not give: read the file. Such imports were refused
                "is_of_another": false,   whether its statement has other numbers than are graded: see --variants
                "output": "",             what the student's code printed, cut after 2000 characters
                "leaderboard": [          of a puzzle: each legal schedule
                  {"level": "level_1", "asked": "3 ranks, …", "schedule": "0F0 …", "makespan": 28, "bound": 27,
                   "bound_by": "work", "gap": 0.037, "student": ""}],
                "tests": [
                  {"test": "test_…", "meaning": "…", "hidden": false, "points": 0, "possible": 1, "passed": false,
                   "reason": "…",         one sentence; this and the following are empty if the test passed
                   "expected": "…",       where two values were compared
                   "got": "…",
                   "where": "line 12: …", of the student's file, if it raised
                   "hint": "…"}]}]}
        """
        return {
            "submission": self.name,
            "directory": self.directory,
            "points": self.points,
            "possible": self.possible,
            "passed": self.passed,
            "days_late": self.days_late,
            "score": self.score,
            "next": self.next and self.next.name,
            "containment": self.containment and self.containment._asdict(),
            "tasks": [task.as_json() for task in self.tasks],
        }

    def __str__(self) -> str:
        done = sum(task.passed for task in self.tasks)
        lines = [*map(str, self.tasks), ""]
        if self.containment:
            lines.append(str(self.containment))
        if self.next:
            name = f"{self.next.name} (lesson {self.next.lesson})"
            lines.append(f"next: {name}, {self.next.subject}")
        if self.days_late:
            score = f"{self.late_factor:g} per day: {counted(self.score, 'point')}"
            lines.append(f"days late: {self.days_late}, times {score}")
        tasks = f"{done} of {counted(len(self.tasks), 'task')} done"
        lines.append(f"{self.points} of {counted(self.possible, 'point')}, {tasks}")
        return "\n".join(lines)


def grade(
    directory: str | Path,
    *,
    source: str | Path | None = None,
    only: str | Iterable[str] | None = None,
    student: str | None = None,
    time_limit: float = TIME_LIMIT,
    workers: int = 2,
    days_late: int = 0,
    late_factor: float = 1.0,
    links: bool = True,
) -> Report:
    """Run all tests, including hidden ones, on a student's directory, and count points.

    Parameters
    ----------
    directory : str or Path
        A directory that :func:`minipipe.coursework.write_coursework` wrote, a zip
        archive of it, or the file of one task in it, to grade only that task. It is
        read and never written.
    source : str or Path, optional
        The directory with solutions and tests; by default minipipe's own.
    only : str or iterable of str, optional
        The names of tasks, by default all.
    student : str, optional
        The student whose numbers the tasks have; by default all students have the same.
    time_limit : float
        Seconds for each task.
    workers : int
        How many tasks run at once.
    days_late : int
    late_factor : float
        The factor on the points for each day of lateness, from 0 to 1.
    links : bool
        Whether the directory may be a symbolic link; False if students could have made
        it.

    Returns
    -------
    Report

    Raises
    ------
    CourseworkError
        Codes ``not-found``, ``name`` and ``timeout``.
    FileError
        For an archive that cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> from minipipe.coursework import write_coursework
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = write_coursework(folder)
    ...     report = grade(folder, only="05_bubble")
    >>> report.points, report.passed, report.tasks[0].is_untouched
    (0, False, True)
    """
    _TIME_LIMIT.check("The time limit", time_limit)
    exercises = exercises_in(find_source(source), student)
    (directory,), only = directories_of([directory], files_of(exercises), only)
    chosen = chosen_of(exercises, only)
    submission = open_submission(directory, files_of(exercises), links=links)
    with students(workers) as running:
        grade_one = partial(_grade_task, submission, time_limit, running)
        tasks = tuple(running.map(grade_one, chosen))
    by_lesson = sorted(exercises, key=lambda exercise: (exercise.lesson, exercise.name))
    last = max(map(by_lesson.index, chosen))
    following = next(iter(by_lesson[last + 1 :]), None)
    return Report(
        str(directory), tasks, submission.name, days_late, late_factor, following
    )


def files_of(exercises: Collection[Exercise]) -> list[str]:
    """Return the names of the files that a submission holds."""
    return [f"{exercise.name}.py" for exercise in exercises]


def not_graded(
    path: str | Path, name: str, exercises: Collection[Exercise], problem: str
) -> Report:
    """Return the report on a submission that could not be graded: no points, and
    why.
    """
    tasks = tuple(_untested(exercise, problem) for exercise in exercises)
    return Report(str(path), tasks, name)


def _untested(exercise: Exercise, problem: str) -> TaskReport:
    failed = CheckResult(False, problem)
    outcomes = tuple((test, failed) for test in exercise.tests)
    return TaskReport(exercise, outcomes, problem)


def _grade_task(
    submission: Submission, time_limit: float, running: Running, exercise: Exercise
) -> TaskReport:
    file = f"{exercise.name}.py"
    if file not in submission.files:
        renamed = _renamed(file, submission.files)
        return _untested(exercise, f"{file} is missing{renamed}")
    try:
        # The student chose the file's kind and target, and it is read with the grader's
        # rights.
        content = submission.read(file)
        return grade_text(exercise, content, time_limit, submission.path, running)
    except FileError as error:
        return _untested(exercise, error.message)


def grade_text(
    exercise: Exercise,
    content: bytes,
    time_limit: float,
    directory: Path,
    running: Running,
) -> TaskReport:
    """Run all tests of a task. A crash fails only the test in which it happened; after
    the time limit no test runs.

    Parameters
    ----------
    exercise : Exercise
    content : bytes
        The content of the student's file.
    time_limit : float
        In seconds.
    directory : Path
        The directory to hide from the file.
    running : Running
        The processes that an exception ends.
    """
    checks = load_checks(exercise.name, exercise.checks)
    results: dict[str, CheckResult] = {}
    answers: dict[str, str] = {}
    runs: list[StudentProcess] = []
    report = TaskReport(exercise, ())
    deadline = time.monotonic() + time_limit
    while len(results) < len(exercise.tests) and not report.problem:
        seconds = max(0.0, deadline - time.monotonic())
        student = StudentProcess(exercise, content, seconds, directory, running)
        runs.append(student)
        try:
            _run_tests(student, exercise, checks, answers, results)
        except (Failed, Ended) as error:
            reason = str(error)
            is_late = isinstance(error, Late)
            if is_late:
                reason = _LATE.format(time_limit)
            if results or student.is_loaded:
                _fail_next(exercise, reason, is_late, results)
            else:
                problem = f"{exercise.name}.py does not load: {reason}"
                report = _untested(exercise, problem)
    if not report.problem:
        outcomes = tuple((test, results[test.name]) for test in exercise.tests)
        report = TaskReport(exercise, outcomes)
    entries = tuple(entries_of("", levels_in(checks), answers))
    return replace(_with_runs(report, content, runs), entries=entries)


def _with_runs(
    report: TaskReport, content: bytes, runs: Sequence[StudentProcess]
) -> TaskReport:
    """Return the report with all that is known about a file and its processes."""
    exercise = report.exercise
    text = content.decode("utf-8-sig", "replace").replace("\r\n", "\n")
    is_of_another = exercise.title in text and exercise.statement not in text
    return replace(
        report,
        output="".join(run.output for run in runs)[:LONGEST_OUTPUT],
        is_as_given=text == exercise.stub,
        containment=weakest(run.containment for run in runs),
        flags=tuple(dict.fromkeys(chain(*(run.flags for run in runs)))),
        is_of_another=bool(exercise.variants) and is_of_another,
    )


def _run_tests(
    student: StudentProcess,
    exercise: Exercise,
    checks: Any,
    answers: dict[str, str],
    results: dict[str, CheckResult],
) -> None:
    """Run the tests without a result, in turn, in one process."""
    left = [test.name for test in exercise.tests if test.name not in results]
    with student:
        student.load()
        for name in left:
            task = Task(_noting(answers, student.ask))
            results[name] = run_test(getattr(checks, name), task)


def _fail_next(
    exercise: Exercise, reason: str, is_late: bool, results: dict[str, CheckResult]
) -> None:
    """Blame the next test for the end of its process, and the time limit on all."""
    left = [test.name for test in exercise.tests if test.name not in results]
    results[left[0]] = CheckResult(False, reason)
    if is_late:
        results |= dict.fromkeys(left[1:], CheckResult(False, _NOT_REACHED))


def _noting(answers: dict[str, str], ask: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``ask`` wrapped to record, by name, the texts that functions without
    arguments return.
    """

    def wrapper(function: str | Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        value = ask(function, arguments)
        if isinstance(function, str) and not arguments and isinstance(value, str):
            answers[function] = value
        return value

    return wrapper


def _renamed(missing: str, files: Collection[str]) -> str:
    """Return a guess at the new name of a missing file."""
    files = [file for file in files if not file.startswith("test_")]
    subject = missing[:-3].partition("_")[2]
    near = [name for name in files if subject in name]
    near = near or get_close_matches(missing, files, 1, cutoff=0.8)
    if near:
        return f"; is it {near[0]}? Name it {missing} again"
    return "; each task stays in the file it came in"
