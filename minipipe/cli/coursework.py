"""``minipipe coursework``: the exercises, for a student."""

from __future__ import annotations

import argparse
from pathlib import Path

from minipipe.cli.output import ExitStatus, answer
from minipipe.coursework.exercise import write_coursework

SOURCE_HELP = "where solutions and tests are (default: minipipe's own)"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="a new or empty directory")
    parser.add_argument("--source", type=Path, metavar="DIR", help=SOURCE_HELP)
    parser.add_argument("--student", metavar="NAME", help="whose own numbers to draw, for `minipipe grade --variants`")


def run(options: argparse.Namespace) -> ExitStatus:
    """Write the student's copy of the exercises."""
    written = write_coursework(options.directory, source=options.source, student=options.student)
    tasks = sum(path.name.startswith("test_") for path in written)
    text = f"wrote {tasks} tasks to {options.directory}; begin with {options.directory / 'README.md'}"
    return answer(options, {"directory": str(options.directory), "files": [path.name for path in written]}, text)
