"""``minipipe schedules``: the table of named schedules, or a picture of time against memory."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from math import inf
from pathlib import Path

from minipipe.cli.exit_status import ExitStatus
from minipipe.cli.options import NUM_RANKS, add_costs, add_memory_limit, add_sizes, costs_of, misuse, sizes_of
from minipipe.errors import ScheduleCode
from minipipe.io import printable, text_table
from minipipe.schedules.registry import NUM_MICROBATCHES
from minipipe.schedules.simulation import comparison

_NOTE = """
v: stages on each rank. time: with a rank's work divided among its stages.
bubble: idle time over all time, in %. gap: how far time is, at most, above the
best possible for the same stages and memory, in %. peak: the most microbatches
that a rank holds, each counted for all its layers. No idle inside: none between
a rank's first action and its last, from 2p-1 microbatches for p ranks on. A V:
microbatches go up the ranks and back down, so that rank 0 holds the first stage
and the last. Plus 1: v-half and v-min hold less than 1F1B from 3 ranks on, at
most 2/3 of it from 5 on, and v-min at most half of it from 6 on."""

EPILOG = """With --json, peak and peak_activations are microbatches, each counted for all
layers of its rank; those of `minipipe simulate --json` are pairs of stage and
microbatch, v times as many for v stages on each rank."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_sizes(parser, several_batches=True)
    add_costs(parser)
    add_memory_limit(parser, "microbatches, each counted for all layers of its rank, that")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw bubble over peak memory, as .svg, .png or .pdf; --microbatches M,…",
    )
    parser.add_argument(
        "--search",
        type=float,
        metavar="SECONDS",
        help="with --plot: look for better schedules, as many as a quiet core tries in so long altogether",
    )


def run(options: argparse.Namespace) -> ExitStatus:
    """Print what each named schedule costs and trades, or draw it."""
    batches = options.microbatches or [NUM_MICROBATCHES]
    if options.plot is not None:
        return _plot(batches, options)
    if len(batches) > 1 or options.search is not None:
        given = "--search" if options.search is not None else "a list of --microbatches"
        raise misuse(ScheduleCode.PARAMETERS, f"{given} is for a picture, --plot FILE; `minipipe sweep` has tables.")
    (options.microbatches,) = batches
    ranks, microbatches = sizes_of(options)
    rows = comparison.table(ranks, microbatches, costs_of(options), options.memory_limit)
    status = ExitStatus.YES if rows else ExitStatus.NO
    if options.json:
        print(json.dumps(rows))
        return status
    limit = "" if options.memory_limit is None else f", at most {options.memory_limit:g} held"
    print(f"{ranks} ranks, {microbatches} microbatches, {_costs_in_words(options)}{limit}\n")
    if not rows:
        print(f"No named schedule holds at most {options.memory_limit:g} microbatches on each rank.")
        return status
    cells = [["schedule", "v", "time", "bubble", "gap", "peak", "what it trades"]]
    for row in rows:
        if row["error"] is not None:
            cells.append([row["schedule"], *"-----", row["error"]])
            continue
        time, bubble = f"{row['makespan']:g}", f"{100 * row['bubble_fraction']:.1f}"
        gap = "-" if row["gap"] is None else f"{100 * row['gap']:.1f}"
        cells.append(
            [row["schedule"], f"{row['chunks_per_rank']}", time, bubble, gap, f"{row['peak']:g}", row["trades"]]
        )
    print(text_table(cells, right=(1, 2, 3, 4, 5)))
    print(_NOTE)
    return status


def _costs_in_words(options: argparse.Namespace) -> str:
    return printable(options.costs) or "F, I and W one unit each"


def _plot(batches: Sequence[int], options: argparse.Namespace) -> ExitStatus:
    """Draw the schedules."""
    from minipipe.cli.plot import check_plot, write_plot

    if options.memory_limit is not None:
        message = "--memory-limit is for the table; a picture has all limits. Leave it out."
        raise misuse(ScheduleCode.PARAMETERS, message)
    if options.search is not None and not 0 < options.search < inf:
        raise misuse(ScheduleCode.PARAMETERS, f"--search is {options.search:g}; expected seconds, above 0.")
    check_plot(options.plot)
    ranks = NUM_RANKS if options.ranks is None else options.ranks
    write_plot(options.plot, ranks, batches, costs_of(options), [_costs_in_words(options)], options.search)
    wrote = str(options.plot)
    print(json.dumps({"wrote": wrote}) if options.json else f"wrote {printable(wrote)}")
    return ExitStatus.YES
