"""``minipipe schedules``: the table of named schedules, or a picture of time against
memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from minipipe.cli.declaring import adder, file_path
from minipipe.cli.numbers import SECONDS
from minipipe.cli.options import (
    NUM_RANKS,
    add_costs,
    amount,
    costs_of,
    sizes_of,
    whole_numbers,
)
from minipipe.cli.output import ExitStatus, answer, check_picture, help_text, write_file
from minipipe.cli.progress import Progress
from minipipe.core.specs import SCHEDULE_COUNT
from minipipe.errors import counted, misuse
from minipipe.io import printable, text_table
from minipipe.schedules.analysis.workload import Workload
from minipipe.schedules.registry import NUM_MICROBATCHES
from minipipe.schedules.simulation import comparison
from minipipe.schedules.simulation.comparison import (
    PLACEMENTS,
    Tradeoff,
    TradeoffPoint,
    searched_choice,
    tradeoff,
)
from minipipe.schedules.simulation.costs import Costs


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = adder(parser, "schedules")
    add("--ranks", spec=SCHEDULE_COUNT, usual=NUM_RANKS)
    add("--microbatches", type=whole_numbers, usual=NUM_MICROBATCHES)
    add_costs(parser)
    add("--memory-limit", type=amount)
    add("--plot", type=file_path)
    add("--search", spec=SECONDS)


def run(options: argparse.Namespace) -> ExitStatus:
    """Print the figures and the trade-off of each named schedule, or draw them."""
    batches = options.microbatches or [NUM_MICROBATCHES]
    if options.plot is not None:
        return _plot(batches, options)
    if len(batches) > 1 or options.search is not None:
        option = "a list of --microbatches"
        if options.search is not None:
            option = "--search"
        reason = f"{option} is for a picture, --plot FILE"
        raise misuse(f"{reason}; `minipipe sweep` has tables.")
    (options.microbatches,) = batches
    ranks, microbatches = sizes_of(options)
    limit = options.memory_limit
    rows = comparison.table(ranks, microbatches, costs_of(options), limit)
    sizes = [counted(ranks, "rank"), counted(microbatches, "microbatch")]
    head = f"{', '.join(sizes)}, {_costs_in_words(options)}"
    if limit is not None:
        head += f", at most {limit:g} held"
    if rows:
        body = f"{_table(rows)}\n\n{help_text('table_of_schedules')}"
    else:
        most = counted(limit, "microbatch")
        body = f"No named schedule holds at most {most} on each rank."
    return answer(options, rows, f"{head}\n\n{body}", ExitStatus(not rows))


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [["schedule", "v", "time", "bubble", "gap", "peak", "trade-off"]]
    for row in rows:
        if row["error"] is not None:
            cells.append([row["schedule"], *"-----", row["error"]])
            continue
        time = f"{row['makespan']:g}"
        bubble = f"{100 * row['bubble_fraction']:.1f}"
        gap = "-"
        if row["gap"] is not None:
            gap = f"{100 * row['gap']:.1f}"
        figures = (f"{row['chunks_per_rank']}", time, bubble, gap, f"{row['peak']:g}")
        cells.append([row["schedule"], *figures, row["trades"]])
    return text_table(cells, right=(1, 2, 3, 4, 5))


def _costs_in_words(options: argparse.Namespace) -> str:
    return printable(options.costs) or "F, I and W one unit each"


def _plot(batches: Sequence[int], options: argparse.Namespace) -> ExitStatus:
    """Draw a panel for each number of microbatches, with better schedules if there is
    time for a search.
    """
    from minipipe.render.files import converted
    from minipipe.render.svg.tradeoff import draw_tradeoff

    if options.memory_limit is not None:
        problem = "--memory-limit is for the table"
        raise misuse(f"{problem}; a picture has all limits. Leave it out.")
    seconds = options.search
    costs = costs_of(options)
    ending = check_picture(options.plot)
    ranks = options.ranks or NUM_RANKS
    drawn = [tradeoff(ranks, num_microbatches, costs) for num_microbatches in batches]
    if seconds is not None:
        count = sum(len(list(_questions(of_batch, costs))) for of_batch in drawn)
        limits = counted(count, "limit")
        work = f"searching for better schedules, for each of {limits} of memory"
        with Progress(work, seconds) as progress:
            for i, each in enumerate(drawn):
                batch = counted(each.num_microbatches, "microbatch")
                progress.tell(f"schedules of {batch}")
                choices = _searched(each, costs, seconds / max(1, count))
                drawn[i] = each._replace(choices=(*each.choices, *choices))
    picture = draw_tradeoff(*drawn, notes=[_costs_in_words(options)])
    return write_file(options.plot, converted(picture, ending), options)


def _searched(
    of_batch: Tradeoff, costs: Costs, seconds: float
) -> Iterator[TradeoffPoint]:
    """Yield the result of a search of ``seconds`` for each placement and memory
    limit.
    """
    from minipipe.tuning.weighing import searched_schedule

    for workload in _questions(of_batch, costs):
        certificate = searched_schedule(workload, seconds)
        if certificate is not None:
            yield searched_choice(certificate, costs)


def _questions(of_batch: Tradeoff, costs: Costs) -> Iterator[Workload]:
    """Yield a workload with memory for one microbatch, two, and so on, while more
    memory lowers the bound.
    """
    size = max(costs.memory(of_batch.num_ranks).activation)
    for name, corners in of_batch.bounds.items():
        placement = PLACEMENTS[name](of_batch.num_ranks)
        of_stages = costs.cut(len(placement) // of_batch.num_ranks)
        most = max((memory for memory, _ in corners), default=0.0)
        for count in range(1, 1 + ceil(most / size)):
            limit = count * size
            yield of_stages.workload(placement, of_batch.num_microbatches, limit)
