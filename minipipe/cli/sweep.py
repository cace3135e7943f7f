"""``minipipe sweep``: the figures of schedules over many sizes and costs, as data."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from minipipe.cli.declaring import adder, file_path
from minipipe.cli.options import (
    NUM_RANKS,
    read_costs,
    whole_numbers,
)
from minipipe.cli.output import ExitStatus, csv_of, ending_of, write_file
from minipipe.cli.progress import Progress
from minipipe.cli.streams import put
from minipipe.errors import counted
from minipipe.schedules.registry import NUM_MICROBATCHES, REGISTRY
from minipipe.schedules.simulation.comparison import sweep


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = adder(parser, "sweep")
    add("--ranks", type=whole_numbers, default=[NUM_RANKS], usual=NUM_RANKS)
    batches = {"default": [NUM_MICROBATCHES], "usual": NUM_MICROBATCHES}
    add("--microbatches", type=whole_numbers, **batches)
    add("--schedules", type=_names, default=list(REGISTRY))
    add("--chunks", type=whole_numbers, default=[None])
    add("--costs", nargs="+", default=[""])
    add("--sends-block")
    add("-o", "--output", type=file_path)


def run(options: argparse.Namespace) -> ExitStatus:
    """Print the rows, or write them."""
    ending = ".json" if options.json else ".csv"
    if options.output is not None:
        ending = ending_of(options.output, _WRITTEN)
    costs = {text: read_costs(text, options.sends_block) for text in options.costs}
    with Progress("timing schedules", is_long=False) as progress:
        rows = sweep(
            options.ranks,
            options.microbatches,
            options.schedules,
            options.chunks,
            costs,
            progress.watch,
        )
    content = _WRITTEN[ending](rows)
    if options.output is None:
        put(content, end="")
        return ExitStatus.YES
    errors = sum(row["error"] is not None for row in rows)
    more = f": {counted(len(rows), 'row')}, {errors} with an error"
    facts = {"rows": len(rows), "errors": errors}
    return write_file(options.output, content, options, more, **facts)


def _names(text: str) -> list[str]:
    return text.split(",")


def _json(rows: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps(rows) + "\n"


_WRITTEN = {".csv": csv_of, ".json": _json}
