"""``minipipe check``: is a schedule legal?"""

from __future__ import annotations

import argparse
import json

from minipipe.analysis.verifier import verify
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
    schedule_of,
)
from minipipe.cli.output import figures
from minipipe.simulation.simulator import simulate

ANSWER = "legal"
EPILOG = """examples:
  minipipe check mine.csv
  minipipe check gpipe --ranks 4 --microbatches 8 --memory-limit 4
  minipipe check zb-h2 --costs activation=1,weight_activation=0.4 --memory-limit 6.5"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_schedule(parser)
    add_sizes(parser)
    add_costs(parser)
    add_memory_limit(parser, PAIRS_OR_AMOUNT)


def run(options: argparse.Namespace) -> ExitStatus:
    """Print one line of figures for a legal schedule; an illegal one raises."""
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
