"""``minipipe grade``: points for a student's directory."""

from __future__ import annotations

import argparse
from pathlib import Path

from minipipe.cli.coursework import SOURCE_HELP
from minipipe.cli.output import ExitStatus, answer
from minipipe.coursework.grading import TIME_LIMIT, grade


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="one that `minipipe coursework` wrote")
    parser.add_argument("--only", metavar="TASK", help="one task, such as 05_bubble")
    limit = "for all tests of a task (default: %(default)g)"
    parser.add_argument("--time-limit", type=float, default=TIME_LIMIT, metavar="SECONDS", help=limit)
    parser.add_argument("--source", type=Path, metavar="DIR", help=SOURCE_HELP)


def run(options: argparse.Namespace) -> ExitStatus:
    """Run the tests of a student's directory, and print points and what failed; ``NO`` unless all passed."""
    report = grade(options.directory, source=options.source, only=options.only, time_limit=options.time_limit)
    return answer(options, report.as_json(), report, ExitStatus.YES if report.passed else ExitStatus.NO)
