"""``minipipe grade``: points for one submission, or for a class."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from minipipe.cli.declaring import adder, file_path
from minipipe.cli.grade_files import ResultFiles, add_file_options, wants_files
from minipipe.cli.numbers import FACTOR
from minipipe.cli.output import ExitStatus, answer, fields
from minipipe.cli.progress import Progress
from minipipe.core.specs import COUNT
from minipipe.coursework.deadline import moment, read_times
from minipipe.coursework.exercise import Exercise, chosen_of, exercises_in, find_source
from minipipe.coursework.grading import TIME_LIMIT, Report, files_of, grade
from minipipe.coursework.leaderboard import (
    Leaderboard,
    as_text,
    schedules_in,
    standings_as_json,
)
from minipipe.coursework.results import as_table
from minipipe.coursework.several import grade_all
from minipipe.coursework.similarity import similarities
from minipipe.coursework.submission import directories_of, name_of, submissions_in
from minipipe.coursework.trial import as_text as trial_as_text
from minipipe.coursework.trial import try_exercises
from minipipe.errors import counted, misuse
from minipipe.io import printable, write_whole


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = adder(parser, "grade")
    add("submissions", type=file_path, nargs="*")
    add("--only", action="append")
    add("--time-limit", type=float, default=TIME_LIMIT, usual=f"{TIME_LIMIT:g}")
    add("--source", type=file_path)
    add("--jobs", spec=COUNT)
    add("--leaderboard", type=file_path)
    add("--check")
    add("--hide-hidden")
    add("--variants")
    add("--student")
    add("--late-factor", spec=FACTOR)
    add("--deadline")
    add("--times", type=file_path)
    add_file_options(parser)


def run(options: argparse.Namespace) -> ExitStatus:
    """Run the tests, and print points and what failed; ``NO`` unless all passed."""
    of_each = _of_each(options)
    exercises = exercises_in(find_source(options.source))
    options.submissions, options.only = directories_of(
        options.submissions, files_of(exercises), options.only
    )
    board: Leaderboard | None = None
    if options.leaderboard:
        board = _leaderboard(options, exercises)
    if options.check:
        return _try(options, exercises)
    if not options.submissions:
        return _show(options, board)
    submissions = submissions_in(options.submissions, files_of(exercises))
    common = fields(options, "source", "only", "time_limit")
    count = counted(len(submissions), "submission")
    work = Progress(f"grading {count}", is_long=False)
    if len(submissions) == 1 and board is None and not wants_files(options):
        of_student = of_each(name_of(submissions[0]))
        with work:
            report = grade(submissions[0], **common, **of_student)
        return _one(report, options)
    files = ResultFiles(options, submissions)
    _check(options, len(submissions))
    common |= fields(options, "jobs", "hide_hidden")
    common["feedback"] = bool(options.feedback)
    with work:
        reports = grade_all(options.submissions, of_each=of_each, **common)
    files.write(reports)
    data: dict[str, Any] = {"submissions": reports}
    if files.missing:
        data["missing"] = files.missing
    if options.similarity:
        chosen = chosen_of(exercises, options.only)
        similar = similarities(submissions, chosen, options.against)
        write_whole(options.similarity, str(similar))
        data["similarity"] = similar.as_data()
    return _all(data, options, of_each, board)


def _one(report: Report, options: argparse.Namespace) -> ExitStatus:
    """Answer with the report on the only submission."""
    if options.hide_hidden:
        report = report.without_hidden()
    return answer(options, report.as_json(), report, ExitStatus(not report.passed))


def _all(
    data: dict[str, Any],
    options: argparse.Namespace,
    of_each: Callable[[str], dict[str, Any]],
    board: Leaderboard | None,
) -> ExitStatus:
    """Answer with the table of a class, after adding its schedules to a leaderboard."""
    reports = data["submissions"]
    text = as_table(reports)
    if "missing" in data:
        text += f"\n\nno submission: {printable('; '.join(data['missing']))}"
    if board:
        students = ((_student_of(each, of_each), each["tasks"]) for each in reports)
        entries = board.add((name, schedules_in(tasks)) for name, tasks in students)
        data["leaderboard"] = standings_as_json(entries)
        text = f"{text}\n\n{as_text(entries)}"
    passed = all(report["passed"] for report in reports)
    return answer(options, data, text, ExitStatus(not passed))


def _student_of(
    report: dict[str, Any], of_each: Callable[[str], dict[str, Any]]
) -> str:
    """Return the student of a submission, by default its name."""
    name = report["submission"]
    return of_each(name).get("student") or name


def _check(options: argparse.Namespace, count: int) -> None:
    """Refuse options that do not fit together, or a number of submissions."""
    if options.gradescope and count != 1:
        problem = "--gradescope writes the results of one submission"
        raise misuse(f"{problem}, and there are {count}.")
    if options.student and count != 1:
        problem = "--student names the student of one submission"
        number = f"and there are {count}; --variants uses the name of each"
        raise misuse(f"{problem}, {number}.")


def _leaderboard(options: argparse.Namespace, exercises: list[Exercise]) -> Leaderboard:
    chosen = chosen_of(exercises, options.only)
    is_drawn = options.variants or bool(options.student)
    board = Leaderboard(options.leaderboard, chosen, is_drawn)
    if os.path.exists(options.leaderboard):
        board.read()  # its errors should be reported before a class is graded
    return board


def _try(options: argparse.Namespace, exercises: list[Exercise]) -> ExitStatus:
    if options.submissions or options.student or options.leaderboard:
        problem = "--check tests the exercises with all numbers"
        raise misuse(f"{problem}; leave out submissions, --student and --leaderboard.")
    with Progress("trying the exercises", is_long=False):
        tried = try_exercises(chosen_of(exercises, options.only), options.time_limit)
    has_failed = any(each.problem for each in tried)
    data = {"passed": not has_failed, "tried": [each._asdict() for each in tried]}
    return answer(options, data, trial_as_text(tried), ExitStatus(has_failed))


def _show(options: argparse.Namespace, board: Leaderboard | None) -> ExitStatus:
    if board is None or wants_files(options):
        problem = "Expected a submission, such as `minipipe grade mine`"
        raise misuse(f"{problem}; --leaderboard FILE alone prints that file.")
    entries = board.read()
    data = {"leaderboard": standings_as_json(entries)}
    return answer(options, data, as_text(entries))


def _of_each(options: argparse.Namespace) -> Callable[[str], dict[str, Any]]:
    """Return a function that maps the name of a submission to options of its grading:
    its student and its lateness.
    """
    times = read_times(options.times) if options.times else None
    deadline = moment(options.deadline) if options.deadline else None
    factor = options.late_factor
    student = options.student or (times and times.student)
    if factor is not None and times is None:
        raise misuse("--late-factor needs the times of submissions: add --times FILE.")
    if factor is None and deadline is not None:
        problem = "--deadline changes no points without --late-factor"
        raise misuse(f"{problem}: add --late-factor F, such as 0.9.")

    def of_each(name: str) -> dict[str, Any]:
        of_student: dict[str, Any] = {}
        if options.variants or options.student:
            of_student["student"] = student or name
        if times is not None and factor is not None:
            of_student["days_late"] = times.days_late(name, deadline)
            of_student["late_factor"] = factor
        return of_student

    return of_each
