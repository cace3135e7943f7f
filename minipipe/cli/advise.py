"""``minipipe advise``: which choice suits the model of a training program."""

from __future__ import annotations

import argparse
from math import inf

from minipipe.cli.declaring import NUM_RANKS, RANKS, adder
from minipipe.cli.numbers import MOST_SECONDS, SECONDS
from minipipe.cli.output import ExitStatus, answer
from minipipe.core.specs import COUNT
from minipipe.errors import LaunchError
from minipipe.io import MOST_ACTIONS

_SECONDS = SECONDS._replace(
    minimum=0, above=None, expected=f"0 to {MOST_SECONDS:g}, a week"
)

_MICROBATCHES = COUNT._replace(maximum=MOST_ACTIONS)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options; arguments after the program are passed to it."""
    add = adder(parser, "advise")
    add("--ranks", spec=RANKS, default=NUM_RANKS)
    add("--memory-limit")
    add("--microbatches", spec=_MICROBATCHES)
    add("--replicas", spec=COUNT)
    add("--seconds", spec=_SECONDS)
    add("program", nargs="?")
    add("arguments", nargs=argparse.REMAINDER)


def run(options: argparse.Namespace) -> ExitStatus:
    """Measure, weigh, and print the table."""
    if options.program is None:
        problem = "Expected a training program after the options, as in"
        example = "minipipe advise --ranks 4 train.py"
        raise LaunchError("not-found", f"{problem}: {example}.")
    from minipipe.cli.advise_program import program_report
    from minipipe.cli.programs import check_program
    from minipipe.cli.ranks import check_memory, warn_if_busy
    from minipipe.tuning.weighing import memory_size

    check_memory(options.ranks)
    COUNT._replace(maximum=options.ranks).check("--replicas", options.replicas or 1)
    limit = inf
    if options.memory_limit is not None:
        limit = memory_size(options.memory_limit)
    check_program(options.program)
    warn_if_busy()
    limits = {
        "memory_limit": limit,
        "num_microbatches": options.microbatches,
        "replicas": options.replicas,
    }
    report = program_report(
        options.program, options.arguments, options.ranks, options.seconds, **limits
    )
    return answer(options, report.data, report.text)
