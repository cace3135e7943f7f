"""``minipipe advise``: which choice suits the model of a training program."""

from __future__ import annotations

import argparse
import json
from math import inf
from typing import TYPE_CHECKING

from minipipe.cli.exit_status import ExitStatus
from minipipe.cli.options import NUM_RANKS
from minipipe.errors import ArgumentError, LaunchError
from minipipe.limits import MOST_STAGES

if TYPE_CHECKING:
    from minipipe.advice import Advice

EPILOG = """examples:
  minipipe advise tutorials/train.py
  minipipe advise --ranks 2 --memory-limit "500 MB" tutorials/train_lm.py --width 128
  minipipe advise --run tutorials/train.py --hidden 512

What stands behind PROGRAM belongs to the program. It runs on one rank until its first Pipeline.step; its model, loss,
batch and optimiser are measured, and messages between ranks that mpirun starts. Nothing in it has to be changed.

fill, wait, drain: percent of the ranks' time, and together the bubble. memory: of the largest rank. over bound: how far
the time is above what no schedule over these stages can be below.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options; those behind the program are the program's."""
    parser.add_argument("--ranks", type=int, default=NUM_RANKS, metavar="P", help="(default: %(default)s)")
    parser.add_argument("--memory-limit", metavar="SIZE", help='most that a rank may take: "500 MB", "2 GiB"')
    parser.add_argument("--microbatches", type=int, metavar="M", help="only this number (default: all worth weighing)")
    parser.add_argument("--run", action="store_true", help="run the best, and the program's own: predicted, measured")
    parser.add_argument("program", nargs="?", metavar="PROGRAM", help="a Python program that trains with a Pipeline")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="the program's own")


def run(options: argparse.Namespace) -> ExitStatus:
    """Measure, weigh, and print the table."""
    if options.program is None:
        raise LaunchError(
            "no-script", "There is no program; expected one behind the options, as in --ranks 4 train.py."
        )
    if not 1 <= options.ranks <= MOST_STAGES:
        raise ArgumentError("value", f"--ranks is {options.ranks}; expected 1 to {MOST_STAGES}.")
    from minipipe.advice.advising import advise_step
    from minipipe.advice.memory_size import memory_size
    from minipipe.advice.program import first_step_of

    limit = inf if options.memory_limit is None else memory_size(options.memory_limit)
    step = first_step_of(options.program, options.arguments)
    advice = advise_step(step, options.ranks, limit, options.microbatches)
    measured = _measured(options, advice) if options.run else {}
    if options.json:
        own = None if advice.own is None else advice.own.row()
        found = {"best": advice.best.row(), "own": own, "reason": advice.reason, "measured": measured}
        print(json.dumps({**found, "choices": advice.rows()}))
        return ExitStatus.YES
    print(advice)
    for name, choice in (("the best", advice.best), ("yours", advice.own)):
        if name in measured and choice is not None:
            error = choice.time / measured[name] - 1
            times = f"predicted {1e3 * choice.time:.3f} ms, measured {1e3 * measured[name]:.3f} ms"
            print(f"{name}: {times} ({100 * error:+.1f} %)")
    return ExitStatus.YES


def _measured(options: argparse.Namespace, advice: Advice) -> dict[str, float]:
    """Return the measured seconds of a step of the best choice, and of the program's own."""
    from minipipe.advice.running import measured_step

    job = options.program, options.arguments, options.ranks
    return {"the best": measured_step(*job, advice.best), "yours": measured_step(*job)}
