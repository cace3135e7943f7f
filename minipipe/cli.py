"""The command line: ``minipipe schedules | show | check | simulate | step | coursework | grade | info``.

Each verb prints its result last, with ``--json`` for machines. Exit status 0: yes; 1: the answer is "no"; 2: the
question was wrong.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minipipe.coursework.verbs import add_coursework_options, add_grade_options, run_coursework, run_grade
from minipipe.errors import ScheduleError
from minipipe.verbs.asked import MICROBATCHES, RANKS
from minipipe.verbs.check import run_check
from minipipe.verbs.info import run_info
from minipipe.verbs.schedules import run_schedules
from minipipe.verbs.show import FORMATS, run_show
from minipipe.verbs.simulate import run_simulate
from minipipe.verbs.step import run_step
from minipipe.version import __version__

__all__ = ["main"]

# What the person who typed the command got wrong, as opposed to what is wrong with a schedule.
_USAGE = ("unknown", "parameters", "costs", "file")

_VERBS = {
    "schedules": (run_schedules, "list the named schedules, with time, bubble, memory and what each one trades"),
    "show": (run_show, "draw a schedule, or write it so that it can be read again"),
    "check": (run_check, "say whether a schedule is legal, and if not, which action on which rank, and why"),
    "simulate": (run_simulate, "time a schedule: makespan, bubble, idle time by cause, peak memory of each rank"),
    "step": (run_step, "walk through a schedule, legal or not, action by action: who does, holds and awaits what"),
    "coursework": (run_coursework, "write the exercises, for a student, into a new directory"),
    "grade": (run_grade, "run the tests of a student's directory: points, what failed, and why"),
    "info": (run_info, "versions, MPI library, devices and BLAS threads of this machine"),
}
_EPILOGS = {
    "show": """in a drawing:
  F3    forward of microbatch 3; 2F3 on stage 2, where a rank holds several, or,
        for want of room, f3 on the second of two
  B3    backward; or in two halves, I for the inputs and W for the weights
  - = ~ go on with F, with B or I, with W;  + a send that blocks;  · idle

examples:
  minipipe show 1f1b
  minipipe show zb-v --ranks 2 --microbatches 6 -o mine.csv
  minipipe show zb-v -o zb-v.html""",
    "check": """examples:
  minipipe check mine.csv
  minipipe check gpipe --ranks 4 --microbatches 8 --memory-limit 4""",
    "simulate": """busy: computing. Idle by cause: warm-up, before the first action; waiting, for
another rank or its message; sending, where sends block; drain, after the last;
overhead, between two actions.

examples:
  minipipe simulate 1f1b --costs F=1,I=1,W=1,latency=0.5
  minipipe simulate mine.csv --costs F=1:2:1:1 --sends-block --json""",
    "step": """In a terminal: n next, p back, g go to a step or a time, r one rank, ? help,
q quit. Into a pipe or a file, and with --all: every step, one after another.
An illegal schedule goes up to where it sticks, each action taking one round.

examples:
  minipipe step 1f1b --microbatches 4
  minipipe step mine.csv --costs latency=0.5 --sends-block
  minipipe step mine.csv --at -1""",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default those of the process.
    """
    for stream in (sys.stdout, sys.stderr):  # a terminal that knows no "·" shows "?" in its place
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    options = _parser().parse_args(arguments)
    try:
        status = _answer(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # somebody reads only the beginning, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _answer(options: argparse.Namespace) -> int:
    try:
        return options.verb(options)
    except ScheduleError as error:
        is_misuse = error.code in _USAGE
        if options.json:
            verdict = {"legal": False} if options.verb is run_check and not is_misuse else {}
            problems = [problem._asdict() for problem in error.problems]
            print(json.dumps({**verdict, "error": error.code, "message": str(error), "problems": problems}))
        print(f"minipipe: {_complaint(error)}", file=sys.stderr)
        return 2 if is_misuse else 1


def _complaint(error: ScheduleError, shown: int = 5) -> str:
    """Return the first problem with its drawing, and the next ones by their sentence."""
    first, *others = error.problems
    lines = [f"[{first.code}] {first.message}", *([f"\n{error.grid}\n"] if error.grid else [])]
    lines += [f"also: [{problem.code}] {problem.message}" for problem in others[:shown]]
    if len(others) > shown:
        lines.append(f"and {len(others) - shown} more")
    return "\n".join(lines).rstrip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="minipipe", description="Pipeline schedules: drawn, proved, timed.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"minipipe {__version__}")
    added = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    parsers = {name: _add_verb(added, name) for name in _VERBS}
    for name in ("show", "check", "simulate", "step"):
        _add_schedule(parsers[name])
    for name in ("schedules", "show", "check", "simulate", "step"):
        _add_sizes(parsers[name])
    for name in ("schedules", "show", "simulate", "step"):
        _add_costs(parsers[name])
    _add_output(parsers["show"])
    add_coursework_options(parsers["coursework"])
    add_grade_options(parsers["grade"])
    _add_steps(parsers["step"])
    for name in ("check", "step"):
        parsers[name].add_argument(
            "--memory-limit", type=int, metavar="N", help="most (stage, microbatch) pairs a rank may hold"
        )
    return parser


def _add_verb(added: Any, name: str) -> argparse.ArgumentParser:
    verb, purpose = _VERBS[name]
    parser = added.add_parser(
        name,
        help=purpose,
        description=purpose[0].upper() + purpose[1:] + ".",
        epilog=_EPILOGS.get(name),
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(verb=verb)
    parser.add_argument("--json", action="store_true", help="print one line of JSON (step: one for each step)")
    return parser


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="a drawing: text, svg, html (a player), perfetto (a trace); or rows or csv, to read again (default: as "
        "FILE ends, .svg, .html, .json or .csv, otherwise text)",
    )
    parser.add_argument("--messages", action="store_true", help="with SEND and RECV, in rows and CSV; as arrows in SVG")
    columns = max(40, shutil.get_terminal_size((80, 24)).columns)
    parser.add_argument(
        "--width", type=int, default=columns, metavar="N", help="columns (default: as the terminal has)"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there instead")


def _add_steps(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="write every step, also in a terminal")
    parser.add_argument("--from", dest="first", type=int, metavar="N", help="write the steps from this one on")
    parser.add_argument("--to", dest="last", type=int, metavar="N", help="write the steps up to this one")
    parser.add_argument("--at", type=int, metavar="N", help="write this step; -1 is the end, with the verdict")


def _add_schedule(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("schedule", metavar="NAME|FILE", help="a name of `minipipe schedules`, a file, or - for stdin")
    parser.add_argument("--chunks", type=int, metavar="V", help="stages on each rank, for schedules that take several")
    parser.add_argument("--ignore-sharding", action="store_true", help="leave out UNSHARD, RESHARD and REDUCE_GRAD")


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, metavar="P", help=f"how many, for a named one (default: {RANKS})")
    parser.add_argument("--microbatches", type=int, metavar="M", help=f"how many (default: {MICROBATCHES})")


def _add_costs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--costs",
        default="",
        metavar="F=…,I=…",
        help="of one stage, such as F=1,I=1,W=1,latency=0; different ones F=1:2:1:1; also bandwidth, message_size, "
        "overhead, activation, weight_activation",
    )
    parser.add_argument("--sends-block", action="store_true", help="a send holds its rank until it is received")
