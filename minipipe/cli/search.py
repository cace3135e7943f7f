"""``minipipe search``: find a good schedule, and a lower bound for all schedules."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from minipipe.cli.declaring import add_flag
from minipipe.cli.numbers import SECONDS, add_number
from minipipe.cli.options import (
    add_costs,
    add_memory_limit,
    add_output,
    add_sizes,
    costs_of,
    sizes_of,
)
from minipipe.cli.output import ExitStatus, answer, ending_of, fields, figures
from minipipe.cli.progress import Progress
from minipipe.core.schedules.placement import check_sizes, looped_placement
from minipipe.core.specs import SCHEDULE_COUNT
from minipipe.errors import counted
from minipipe.io import write_whole
from minipipe.schedules import Certificate, Objective, Timeline, find_schedule, simulate
from minipipe.schedules.analysis.workload import Workload
from minipipe.schedules.placements import v_placement
from minipipe.search.finding import usual_evaluations

# A search of a schedule with a few actions would take more than a year.
_EVALUATIONS = SCHEDULE_COUNT._replace(maximum=10**12)
_SECONDS = 60.0  # the default time limit of a search
PLACEMENTS = {"straight": looped_placement, "v": v_placement}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_sizes(parser)
    add_costs(parser)
    add_memory_limit(parser, "activation memory")
    add = parser.add_argument
    stages = "one stage per rank (default), or two in a V"
    add("--placement", choices=PLACEMENTS, default="straight", help=stages)
    span = "span, the longest time between the first start and last end on one rank"
    objective = f"time to minimise: {span} (default), or makespan, the same over all"
    objective += " ranks"
    names = list(map(str, Objective))
    add("--objective", choices=names, default=str(Objective.SPAN), help=objective)
    tries = "schedules to try (default: 10,000,000 actions in all)"
    add_number(parser, "--evaluations", _EVALUATIONS, "N", tries)
    limit = f"time limit (default: {_SECONDS:g}, or none with --evaluations)"
    add_number(parser, "--seconds", SECONDS, "N", limit)
    seed = "random seed of the search (default: 0)"
    add("--seed", type=int, default=0, metavar="N", help=seed)
    exact = "use the exact solver CP-SAT in the second half of the time"
    add_flag(parser, "--exact", exact)
    written = "write the schedule (.csv or .txt) or its certificate (.json) to FILE"
    add_output(parser, written)


def run(options: argparse.Namespace) -> ExitStatus:
    """Search, and print the figures of the result."""
    ranks, microbatches = sizes_of(options)
    ending = ""
    if options.output is not None:
        ending = ending_of(options.output, _WRITERS)
    costs = costs_of(options)
    check_sizes(ranks, microbatches)  # before a placement of this size is built
    placement = PLACEMENTS[options.placement](ranks)
    workload = costs.workload(placement, microbatches, options.memory_limit)
    seconds = options.seconds
    evaluations = options.evaluations
    if seconds is evaluations is None:
        seconds = _SECONDS
        evaluations = usual_evaluations(workload)
    objective = Objective(options.objective)
    with Progress(_work(workload, evaluations), seconds, is_at_most=True) as progress:
        how = (options.seed, options.exact, evaluations, progress.watch)
        result = find_schedule(workload, objective, seconds, *how)
        progress.tell("timing the schedule that was found")
        timeline = simulate(result.schedule, costs)
    if options.output is not None:
        write_whole(options.output, _WRITERS[ending](result))
    data = _data(result, timeline, options.output)
    return answer(options, data, _report(result, timeline, options.output))


def _work(workload: Workload, evaluations: int | None) -> str:
    ranks = counted(workload.num_ranks, "rank")
    sizes = f"{ranks} and {counted(workload.num_microbatches, 'microbatch')}"
    work = f"searching schedules of {sizes}"
    if evaluations is not None:
        work += f", trying at most {evaluations:,}"
    return work


_WRITERS = {
    ".csv": lambda result: result.schedule.to_csv(),
    ".txt": lambda result: result.schedule.to_text(),
    ".json": Certificate.to_json,
}  # by the ending of the file


def _data(result: Certificate, timeline: Timeline, file: Path | None) -> dict[str, Any]:
    about = fields(result, "objective", "value", "bound", "bound_by", "gap")
    about |= fields(result, "found_by", "seconds")
    if file is None:
        about["schedule"] = result.schedule.to_csv()
    else:
        about["file"] = str(file)
    return {**figures(result.schedule, timeline), **about}


def _report(result: Certificate, timeline: Timeline, file: Path | None) -> str:
    peaks = ", ".join(f"{peak:g}" for peak in timeline.peak_memory or ())
    unit = timeline.unit
    step = f"makespan {timeline.makespan:g} {unit}"
    idle = f"bubble {100 * timeline.bubble_fraction:.2f} % of all time"
    bound = f"{result.bound:.12g} {unit} ({result.bound_by})"
    by = f"found by {result.found_by}, in {result.seconds:.1f} s"
    span_idle = f"{100 * timeline.span_bubble_rate:.2f} %"
    schedule = str(result.schedule)
    if file is not None:
        schedule = f"written to {file}"
    gap = "optimal: equal to the bound"
    if result.gap:
        gap = f"{100 * result.gap:.3g} % above the bound"
    lines = [
        f"{result.schedule.describe(', ')}; {by}",
        f"{step}, longest span of a rank {timeline.cost:g} {unit}",
        f"{idle}, {span_idle} of the longest span of a rank",
        f"peak memory by rank {peaks}",
        f"lower bound of the {result.objective}: {bound}",
        schedule,
        gap,
    ]
    return "\n".join(lines)
