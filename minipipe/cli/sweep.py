"""``minipipe sweep``: the figures of schedules over many sizes and costs, as data."""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minipipe.cli.exit_status import ExitStatus
from minipipe.cli.options import NUM_RANKS, counts, misuse, read_costs
from minipipe.errors import ScheduleCode, quoted
from minipipe.io import printable, write_whole
from minipipe.schedules.registry import NUM_MICROBATCHES, REGISTRY
from minipipe.schedules.simulation.comparison import sweep

EPILOG = """one row for each combination of costs, ranks, microbatches, chunks and schedule, with
the figures of `minipipe schedules`; times and peaks are of a rank's whole share.
Where a combination does not fit, its error says why.

examples:
  minipipe sweep --ranks 2,4,8 --microbatches 8,16,32 -o sweep.csv
  minipipe sweep --schedules 1f1b,zb-h1 --costs latency=0 latency=0.5 latency=1"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--ranks", type=counts, default=[NUM_RANKS], metavar="P,…", help=f"numbers of them (default: {NUM_RANKS})"
    )
    parser.add_argument(
        "--microbatches",
        type=counts,
        default=[NUM_MICROBATCHES],
        metavar="M,…",
        help=f"numbers of them (default: {NUM_MICROBATCHES})",
    )
    parser.add_argument(
        "--schedules", type=_names, default=list(REGISTRY), metavar="NAME,…", help="which ones (default: all named)"
    )
    parser.add_argument(
        "--chunks", type=counts, default=[None], metavar="V,…", help="stages on each rank (default: of each schedule)"
    )
    parser.add_argument(
        "--costs",
        nargs="+",
        default=[""],
        metavar="F=…,I=…|FILE.json",
        help="of a rank's whole share, as for `minipipe simulate`",
    )
    parser.add_argument("--sends-block", action="store_true", help="a send holds its rank until it is received")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write there, .csv or .json (default: print CSV)"
    )


def run(options: argparse.Namespace) -> ExitStatus:
    """Print the rows, or write them."""
    written = _csv if options.output is None else _format(options.output)
    costs = {text: read_costs(text, options.sends_block) for text in options.costs}
    rows = sweep(options.ranks, options.microbatches, options.schedules, options.chunks, costs)
    if options.output is None:
        print(_json(rows) if options.json else written(rows), end="")
        return ExitStatus.YES
    write_whole(options.output, written(rows))
    wrote, errors = str(options.output), sum(row["error"] is not None for row in rows)
    if options.json:
        print(json.dumps({"wrote": wrote, "rows": len(rows), "errors": errors}))
    else:
        print(f"wrote {printable(wrote)}: {len(rows)} rows, {errors} of them with an error")
    return ExitStatus.YES


def _names(text: str) -> list[str]:
    return text.split(",")


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV; the values by rank are lists, which JSON reads."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _json(rows: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps(rows) + "\n"


_WRITTEN = {".csv": _csv, ".json": _json}


def _format(path: Path) -> Any:
    ending = path.suffix.lower()
    if ending not in _WRITTEN:
        message = f"{quoted(str(path), 200)} ends in {printable(ending[:20]) or 'nothing'}; expected .csv or .json."
        raise misuse(ScheduleCode.PARAMETERS, message)
    return _WRITTEN[ending]
