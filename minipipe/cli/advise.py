"""``minipipe advise``: which choice suits the model of a training program."""

from __future__ import annotations

import argparse
from math import inf

from minipipe.cli.options import NUM_RANKS
from minipipe.cli.output import ExitStatus, answer
from minipipe.cli.progress import MOST_SECONDS
from minipipe.errors import LaunchError, misuse, whole_number
from minipipe.io import MOST_ACTIONS, MOST_STAGES

EPILOG = """examples:
  minipipe advise tutorials/train.py
  minipipe advise --ranks 2 --memory-limit "500 MB" tutorials/train_lm.py --width 128
  minipipe advise --seconds 90 tutorials/train.py --hidden 512

Arguments after PROGRAM are passed to the program. It runs under mpirun until its first Pipeline.step, where its ranks
measure messages and its model with its loss, batch and optimiser. Every choice is simulated; the best of them, and the
program's own, then run in turns. The program needs no change, and its parameters are not changed.

Of P ranks, R replicas of the pipeline have P / R each; the microbatches are those of all replicas together.

fill, wait, drain: idle time in percent of the ranks' time; together the bubble. memory: of the largest rank. over
bound: how far the time is above a lower bound for every schedule over these stages. Only "measured ms" was measured on
ranks; all other columns are predicted from the layers' measured times.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options; arguments after the program are passed to it."""
    parser.add_argument("--ranks", type=int, default=NUM_RANKS, metavar="P", help="(default: %(default)s)")
    parser.add_argument("--memory-limit", metavar="SIZE", help='memory of each rank, at most: "500 MB", "2 GiB"')
    parser.add_argument("--microbatches", type=int, metavar="M", help="only this number (default: all worth weighing)")
    parser.add_argument("--replicas", type=int, metavar="R", help="only this number (default: each that divides P)")
    parser.add_argument(
        "--seconds", type=float, metavar="S", help="how long to run the best in turns (default: 40; 0: only predict)"
    )
    parser.add_argument("program", nargs="?", metavar="PROGRAM", help="a Python program that trains with a Pipeline")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="the program's own")


def run(options: argparse.Namespace) -> ExitStatus:
    """Measure, weigh, and print the table."""
    if options.program is None:
        raise LaunchError("no-script", "There is no program; expected one after the options, as in --ranks 4 train.py.")
    from minipipe.cli.advise_program import program_report
    from minipipe.cli.ranks import check_room, warn_if_busy
    from minipipe.tuning.weighing import memory_size

    check_room(whole_number("--ranks", options.ranks, 1, MOST_STAGES))
    for option, given, most in (
        ("--microbatches", options.microbatches, MOST_ACTIONS),
        ("--replicas", options.replicas, options.ranks),
    ):
        if given is not None:
            whole_number(option, given, 1, most)
    if options.seconds is not None and not 0 <= options.seconds <= MOST_SECONDS:
        raise misuse(f"--seconds is {options.seconds:g}; expected 0 to {MOST_SECONDS:g}, a week.")
    limit = inf if options.memory_limit is None else memory_size(options.memory_limit)
    warn_if_busy()
    limits = {"memory_limit": limit, "num_microbatches": options.microbatches, "replicas": options.replicas}
    report = program_report(options.program, options.arguments, options.ranks, options.seconds, **limits)
    return answer(options, report.data, report.text)
