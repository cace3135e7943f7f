"""``minipipe referee``: is the difference of two runs a bug?"""

from __future__ import annotations

import argparse

from minipipe.cli.declaring import add_file
from minipipe.cli.numbers import add_number
from minipipe.cli.output import ExitStatus, answer
from minipipe.core.specs import COUNT
from minipipe.referee import FORMATS, KINDS, OPTIMISERS, Verdict, referee
from minipipe.referee.bounds import TERMS


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    names = "losses, gradients or weights: .npz or .safetensors; see below"
    add_file(parser, "a", f"file of the run that is trusted more: {names}", "A")
    add_file(parser, "b", "file of the other run", "B")
    add = parser.add_argument
    kind = "kind of arrays whose names state none (gradients: of step 1)"
    add("--kind", choices=KINDS, default="", help=kind)
    precision = "arithmetic of the runs (default: the format of the arrays)"
    add("--precision", choices=tuple(FORMATS), help=precision)
    terms = "terms of a sum, such as the tokens of a batch (default: 4096)"
    count = COUNT._replace(maximum=10**15)
    add_number(parser, "--terms", count, "N", terms, default=TERMS)
    optimiser = "sgd, with momentum or not; adam: all that divide by gradients' size"
    add("--optimiser", choices=OPTIMISERS, default="", help=optimiser)


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
