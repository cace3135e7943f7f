"""``minipipe schedules``: the table of named schedules."""

from __future__ import annotations

import argparse
import json

from minipipe.cli.exit_status import ExitStatus
from minipipe.cli.options import add_costs, add_memory_limit, add_sizes, costs_of, sizes_of
from minipipe.printable import printable
from minipipe.render.table import text_table
from minipipe.simulation import comparison

_NOTE = """
v: stages on each rank. time: with a rank's work divided among its stages.
bubble: idle time over all time. peak: the most microbatches that a rank holds,
each counted for all its layers. No idle inside: none between a rank's first
action and its last. A V: microbatches go up the ranks and back down, so that
rank 0 holds the first stage and the last."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_sizes(parser)
    add_costs(parser)
    add_memory_limit(parser, "microbatches, each counted for all layers of its rank, that")


def run(options: argparse.Namespace) -> ExitStatus:
    """Print what each named schedule costs and trades."""
    ranks, microbatches = sizes_of(options)
    rows = comparison.table(ranks, microbatches, costs_of(options), options.memory_limit)
    status = ExitStatus.YES if rows else ExitStatus.NO
    if options.json:
        print(json.dumps(rows))
        return status
    limit = "" if options.memory_limit is None else f", at most {options.memory_limit:g} held"
    print(
        f"{ranks} ranks, {microbatches} microbatches, {printable(options.costs) or 'F, I and W one unit each'}{limit}\n"
    )
    if not rows:
        print(f"No named schedule holds at most {options.memory_limit:g} microbatches on each rank.")
        return status
    cells = [["schedule", "v", "time", "bubble", "peak", "what it trades"]]
    for row in rows:
        if row["error"] is not None:
            cells.append([row["schedule"], "-", "-", "-", "-", row["error"]])
            continue
        time, bubble = f"{row['makespan']:g}", f"{100 * row['bubble_fraction']:.1f} %"
        cells.append([row["schedule"], str(row["chunks_per_rank"]), time, bubble, f"{row['peak']:g}", row["trades"]])
    print(text_table(cells, right=(1, 2, 3, 4)))
    print(_NOTE)
    return status
