"""``minipipe referee``: is the difference of two runs a bug?"""

from __future__ import annotations

import argparse

from minipipe.cli.declaring import adder, file_path
from minipipe.cli.output import ExitStatus, answer
from minipipe.core.specs import COUNT
from minipipe.referee import FORMATS, KINDS, OPTIMISERS, Verdict, referee
from minipipe.referee.bounds import TERMS


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = adder(parser, "referee")
    add("a", type=file_path)
    add("b", type=file_path)
    add("--kind", choices=KINDS, default="")
    add("--precision", choices=tuple(FORMATS))
    add("--terms", spec=COUNT._replace(maximum=10**15), default=TERMS)
    add("--optimiser", choices=OPTIMISERS, default="")


def run(options: argparse.Namespace) -> ExitStatus:
    """Print the verdict with its evidence; the status is 0 if nothing speaks for a
    bug.
    """
    names = ("kind", "precision", "terms", "optimiser")
    report = referee(
        options.a, options.b, **{name: getattr(options, name) for name in names}
    )
    status = ExitStatus.YES
    if report.verdict.rank >= Verdict.CANNOT_TELL.rank:
        status = ExitStatus.NO
    return answer(options, report.as_data(), report, status)
