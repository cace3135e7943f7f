"""``minipipe step``: a walk through a schedule, action by action."""

from __future__ import annotations

import argparse

from minipipe.render import has_colour
from minipipe.schedules.stepping import Walkthrough
from minipipe.stepper.keys import screen_of_this_terminal
from minipipe.stepper.loop import step_with_keys
from minipipe.stepper.written import chosen_moments, write_moments
from minipipe.verbs.asked import costs_of, schedule_of

__all__ = ["run_step"]


def run_step(options: argparse.Namespace) -> int:
    """Walk through a schedule, legal or not: with keys in a terminal, otherwise one step after another."""
    walkthrough = Walkthrough(schedule_of(options), costs_of(options), options.memory_limit)
    numbers = chosen_moments(walkthrough, options.first, options.last, options.at)
    is_chosen = options.all or options.json or (options.first, options.last, options.at) != (None, None, None)
    screen = None if is_chosen else screen_of_this_terminal()
    if screen is not None:
        return step_with_keys(walkthrough, screen, has_colour())
    for text in write_moments(walkthrough, numbers, options.json):
        print(text)
    return 0 if walkthrough.is_legal else 1
