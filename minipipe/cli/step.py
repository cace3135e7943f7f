"""``minipipe step``: a walk through a schedule, action by action."""

from __future__ import annotations

import argparse

from minipipe.cli.declaring import adder
from minipipe.cli.options import (
    add_schedule,
    amount,
    memory_of,
    schedule_and_costs,
)
from minipipe.cli.output import ExitStatus
from minipipe.cli.streams import put
from minipipe.errors import misuse
from minipipe.render.stepper.description import chosen_snapshots, write_snapshots
from minipipe.render.stepper.loop import screen_of_this_terminal, step_with_keys
from minipipe.render.stepper.walkthrough import Walkthrough
from minipipe.render.terminal import has_colour


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_schedule(parser)
    add = adder(parser, "step")
    add("--all")
    add("--from", dest="first", type=int)
    add("--to", dest="last", type=int)
    add("--at", type=int)
    add("--memory-limit", type=amount)


def run(options: argparse.Namespace) -> ExitStatus:
    """Walk through a schedule, legal or not: with keys in a terminal, otherwise one
    step after another.
    """
    _, schedule, costs = schedule_and_costs(options)
    if options.steps > 1 and costs.update != 0:
        problem = "step does not model the time between training steps"
        raise misuse(f"{problem}: leave update out of --costs, or use simulate.")
    walkthrough = Walkthrough(
        schedule, costs, options.memory_limit, memory_of(costs, schedule)
    )
    chosen = (options.first, options.last, options.at)
    numbers = chosen_snapshots(walkthrough, *chosen)
    is_chosen = options.all or options.json or chosen != (None, None, None)
    status = ExitStatus(not walkthrough.is_legal)
    if not is_chosen:
        screen = screen_of_this_terminal()
        if screen is not None:
            if step_with_keys(walkthrough, screen, has_colour()):
                return status
            return ExitStatus.INTERRUPTED
    for text in write_snapshots(walkthrough, numbers, options.json):
        if not put(text):
            break
    return status
