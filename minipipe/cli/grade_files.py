"""The files that ``minipipe grade`` writes about a class: tables, feedback, scores in a
gradebook.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from minipipe.cli.declaring import adder, file_path
from minipipe.coursework.assignment import assignment_of
from minipipe.coursework.exercise import find_source
from minipipe.coursework.gradebook import Gradebook, Roster
from minipipe.coursework.results import as_csv, as_gradescope, as_junit
from minipipe.coursework.submission import name_of
from minipipe.errors import misuse, quoted
from minipipe.io import write_whole

_FILES = ("csv", "junit", "gradescope", "merge", "feedback", "similarity", "against")
_OF_MERGE = ("roster", "key", "column")


def add_file_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that name files of results, and the gradebook."""
    add = adder(parser, "grade")
    for name in ("csv", "junit", "gradescope", "feedback", "merge", "roster"):
        add(f"--{name}", type=file_path)
    add("--key")
    add("--column")
    add("--similarity", type=file_path)
    add("--against", type=file_path)


def wants_files(options: argparse.Namespace) -> bool:
    """Return whether any file of results is asked for."""
    return any(getattr(options, name) for name in (*_FILES, *_OF_MERGE))


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        name = quoted(str(path), 200)
        raise misuse(f"{name} cannot be written: {error.strerror}.") from None


def _files_of(students: Iterable[str]) -> dict[str, str]:
    """Return the name of each student's file, which stays in its directory."""
    files: dict[str, str] = {}
    for name in students:
        file = f"{name.replace(os.sep, '_')}.txt"
        for other in files:
            if files[other] == file and other != name:
                both = f"{quoted(other)} and {quoted(name)}"
                problem = f"--feedback would write one file for {both}, {quoted(file)}"
                raise misuse(f"{problem}; rename one in the roster and the gradebook.")
        files[name] = file
    return files


class ResultFiles:
    """The files of one grading; what does not fit is refused before it begins.

    Parameters
    ----------
    options : argparse.Namespace
    submissions : list of Path

    Attributes
    ----------
    missing : list of str
        The students of the roster without a submission.

    Raises
    ------
    ArgumentError, FileError
        Codes of :class:`minipipe.coursework.gradebook.Roster` and ``Gradebook``.
    ScheduleError
        Code ``value``: a student has no row in the gradebook, or two students would
        have the same file of feedback.
    """

    def __init__(self, options: argparse.Namespace, submissions: list[Path]) -> None:
        self._options = options
        names = [*map(name_of, submissions)]
        self._students = {name: [name] for name in names}
        self._recipients = self._students
        self.missing: list[str] = []
        self._book: Gradebook | None = None
        if options.merge:
            self._open_gradebook()
        elif others := [name for name in _OF_MERGE if getattr(options, name)]:
            raise misuse(f"--{others[0]} needs a gradebook: add --merge FILE.csv.")
        if options.similarity and len(names) < 2 and not options.against:
            problem = "--similarity compares submissions, and there is 1"
            raise misuse(f"{problem}; name more, or solutions with --against DIR.")
        if options.against and not (options.similarity and options.against.is_dir()):
            problem = "--against DIR is a folder of solutions, for --similarity FILE"
            raise misuse(f"{problem}; got {quoted(str(options.against), 200)}.")
        if options.feedback:
            self._files = _files_of(chain(*self._recipients.values()))
            _make_directory(options.feedback)

    def _open_gradebook(self) -> None:
        options = self._options
        if options.roster:
            roster = Roster(options.roster)
            self._students = roster.students_of(self._students)
            self.missing = roster.missing(self._students)
            if roster.has_groups:
                self._recipients = self._students  # each member gets a file
        self._book = Gradebook(options.merge, options.key)
        self._book.check([*chain(*self._students.values())])

    def write(self, reports: list[dict[str, Any]]) -> None:
        """Write the files; the feedback is taken out of the reports."""
        options = self._options
        if options.csv:
            write_whole(options.csv, as_csv(reports))
        if options.junit:
            write_whole(options.junit, as_junit(reports))
        if options.gradescope:
            write_whole(options.gradescope, as_gradescope(reports[0]))
        if options.feedback:
            for report in reports:
                text = report.pop("feedback")
                for name in self._recipients[report["submission"]]:
                    write_whole(options.feedback / self._files[name], text)
        if self._book:
            assignment = assignment_of(find_source(options.source))
            column = options.column or (assignment and assignment.name) or "minipipe"
            by_name = {each["submission"]: each["score"] for each in reports}
            scores: dict[str, float] = {}
            for name, students in self._students.items():
                scores |= dict.fromkeys(students, by_name[name])
            write_whole(options.merge, self._book.with_column(column, scores))
