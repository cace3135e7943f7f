"""The verbs of coursework: ``minipipe coursework`` and ``minipipe grade``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from minipipe.coursework.grading import TIME_LIMIT, grade
from minipipe.coursework.student_copy import write_coursework
from minipipe.errors import CourseworkError

__all__ = ["add_coursework_options", "add_grade_options", "run_coursework", "run_grade"]

_SOURCE = "where solutions and tests are (default: tutorials/exercises of the clone)"


def add_coursework_options(parser: argparse.ArgumentParser) -> None:
    """Say what ``minipipe coursework`` takes."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="a new or empty directory")
    parser.add_argument("--source", type=Path, metavar="DIR", help=_SOURCE)


def add_grade_options(parser: argparse.ArgumentParser) -> None:
    """Say what ``minipipe grade`` takes."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="one that `minipipe coursework` wrote")
    parser.add_argument("--only", metavar="TASK", help="one task, such as 05_bubble")
    parser.add_argument(
        "--time-limit",
        type=float,
        default=TIME_LIMIT,
        metavar="SECONDS",
        help="for all tests of a task (default: %(default)g)",
    )
    parser.add_argument("--source", type=Path, metavar="DIR", help=_SOURCE)


def run_coursework(options: argparse.Namespace) -> int:
    """Write the student's copy of the exercises."""
    try:
        written = write_coursework(options.directory, source=options.source)
    except CourseworkError as error:
        return _refuse(error, options.json)
    if options.json:
        print(json.dumps({"directory": str(options.directory), "files": [path.name for path in written]}))
        return 0
    tasks = sum(path.name.startswith("test_") for path in written)
    print(f"wrote {tasks} tasks to {options.directory}; begin with {options.directory / 'README.md'}")
    return 0


def run_grade(options: argparse.Namespace) -> int:
    """Run the tests of a student's directory, and print points and what failed; 1 unless all passed."""
    try:
        report = grade(options.directory, source=options.source, only=options.only, time_limit=options.time_limit)
    except CourseworkError as error:
        return _refuse(error, options.json)
    print(json.dumps(report.as_json()) if options.json else report)
    return 0 if report.passed else 1


def _refuse(error: CourseworkError, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": error.code, "message": error.message}))
    print(f"minipipe: {error.message}", file=sys.stderr)
    return 2
