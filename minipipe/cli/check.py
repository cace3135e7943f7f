"""``minipipe check``: is a schedule legal?"""

from __future__ import annotations

import argparse
import json
from math import inf

from minipipe.cli.certificate import check_certificate
from minipipe.cli.exit_status import ExitStatus
from minipipe.cli.options import (
    PAIRS_OR_AMOUNT,
    add_costs,
    add_memory_limit,
    add_schedule,
    add_sizes,
    all_steps,
    costs_of,
    memory_of,
    misuse,
    schedule_of,
)
from minipipe.cli.output import figures
from minipipe.errors import ScheduleCode
from minipipe.schedules.analysis.verifier import verify
from minipipe.schedules.simulation.simulator import simulate

ANSWER = "legal"
EPILOG = """examples:
  minipipe check mine.csv
  minipipe check gpipe --ranks 4 --microbatches 8 --memory-limit 4
  minipipe check zb-h2 --costs activation=1,weight_activation=0.4 --memory-limit 6.5
  minipipe check --certificate found.json --prove 60"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_schedule(parser, is_optional=True)
    add_sizes(parser)
    add_costs(parser)
    add_memory_limit(parser, PAIRS_OR_AMOUNT)
    parser.add_argument("--certificate", metavar="FILE", help="check what a search has written, instead of a schedule")
    parser.add_argument("--prove", type=float, metavar="SECONDS", help="search again for the proof of its bound")


def run(options: argparse.Namespace) -> ExitStatus:
    """Print one line of figures for a legal schedule; an illegal one raises."""
    if (options.schedule is None) == (options.certificate is None):
        raise misuse(
            ScheduleCode.PARAMETERS, "Expected a schedule, NAME or FILE, or --certificate FILE; one of the two."
        )
    if options.prove is not None and (options.certificate is None or not 0 < options.prove < inf):
        raise misuse(ScheduleCode.PARAMETERS, "--prove takes seconds, more than 0, and needs --certificate FILE.")
    if options.certificate is not None:
        return check_certificate(options.certificate, options.prove, options.json)
    one_step, costs = schedule_of(options.schedule, options), costs_of(options)
    schedule = all_steps(one_step, options)
    verify(schedule, options.memory_limit, memory_of(costs, schedule))
    timeline = simulate(one_step, costs, options.steps)
    if options.json:
        print(json.dumps({ANSWER: True, **figures(schedule, timeline)}))
        return ExitStatus.YES
    remark = "" if schedule.is_reproducible else "; it adds gradients in another order than one process does"
    if schedule.is_forward_only:
        remark = "; forward only, so it does not train"
    print(f"legal: {schedule.describe(', ')}; {timeline.describe()}{remark}")
    return ExitStatus.YES
