"""``minipipe schedules``: the table of named schedules."""

from __future__ import annotations

import argparse
import json

from minipipe.errors import ScheduleError
from minipipe.schedules import REGISTRY, TRADES, build, simulate
from minipipe.schedules.placement import check_counts
from minipipe.verbs.asked import costs_of, sizes_of
from minipipe.verbs.told import figures, table

__all__ = ["run_schedules"]

_TABLE_NOTE = """
v: stages on each rank. time: with a rank's work divided among its stages.
bubble: idle time over all time. peak: the most microbatches that a rank holds,
each counted for all its layers. No idle inside: none between a rank's first
action and its last. A V: microbatches go over the ranks there and back, so that
rank 0 holds the first stage and the last."""


def run_schedules(options: argparse.Namespace) -> int:
    """Print the table of named schedules, with figures for one size."""
    ranks, microbatches = sizes_of(options)
    check_counts(ranks, microbatches)
    costs, rows = costs_of(options), []
    for name in REGISTRY:
        try:
            schedule = build(name, ranks, microbatches)
            found = figures(schedule, simulate(schedule, costs))
        except ScheduleError as error:
            if error.code not in ("parameters", "costs"):
                raise
            found = {"error": error.problems[0].message}
        rows.append({"schedule": name, **found, "trades": TRADES[name]})
    if options.json:
        print(json.dumps(rows))
        return 0
    print(f"{ranks} ranks, {microbatches} microbatches, {options.costs or 'F, I and W one unit each'}\n")
    cells = [["schedule", "v", "time", "bubble", "peak", "what it trades"]]
    for row in rows:
        if "error" in row:
            cells.append([row["schedule"], "-", "-", "-", "-", row["error"]])
            continue
        # In stages of a rank's whole share, so that schedules with several chunks compare.
        chunks = row["num_stages"] // ranks
        peak = f"{max(row['peak_activations']) / chunks:g}"
        time, bubble = f"{row['makespan'] / chunks:g}", f"{100 * row['bubble_fraction']:.1f} %"
        cells.append([row["schedule"], str(chunks), time, bubble, peak, row["trades"]])
    print(table(cells, right=(1, 2, 3, 4)))
    print(_TABLE_NOTE)
    return 0
