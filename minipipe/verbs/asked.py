"""What the options of a command ask for: which schedule, which sizes, which costs."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from minipipe.errors import Problem, ScheduleError
from minipipe.schedules import REGISTRY, Costs, Schedule, build
from minipipe.schedules.registry import expected_names
from minipipe.schedules.text import read_either

__all__ = ["MICROBATCHES", "RANKS", "costs_of", "schedule_of", "sizes_of", "wrong"]

RANKS, MICROBATCHES = 4, 8  # of a named schedule, unless told


def schedule_of(options: argparse.Namespace) -> Schedule:
    """Return the schedule that was named, or read it from a file."""
    given = options.schedule
    if given in REGISTRY:
        return build(given, *sizes_of(options), options.chunks)
    if given != "-" and (not Path(given).exists() or Path(given).is_dir()):
        raise wrong("unknown", f"There is neither a schedule nor a file {given!r}; {expected_names(given)}.")
    if given == "-":
        schedule = Schedule("stdin", *read_either(sys.stdin.read(), options.ignore_sharding))
    else:
        schedule = Schedule.from_file(given, options.ignore_sharding)
    for option, wanted, own in (
        ("--ranks", options.ranks, schedule.num_ranks),
        ("--microbatches", options.microbatches, schedule.num_microbatches),
        ("--chunks", options.chunks, schedule.num_stages / schedule.num_ranks),
    ):
        if wanted not in (None, own):
            raise wrong("parameters", f"{option} is {wanted}, but {given} has {own:g}; leave {option} out.")
    return schedule


def sizes_of(options: argparse.Namespace) -> tuple[int, int]:
    """Return the numbers of ranks and microbatches."""
    ranks = RANKS if options.ranks is None else options.ranks
    return ranks, MICROBATCHES if options.microbatches is None else options.microbatches


def costs_of(options: argparse.Namespace) -> Costs:
    """Return the costs that were given."""
    return dataclasses.replace(Costs.parse(options.costs), sends_block=options.sends_block)


def wrong(code: str, message: str) -> ScheduleError:
    """Return the error of a question that is wrong."""
    return ScheduleError([Problem(code, message)])
