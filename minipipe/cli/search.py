"""``minipipe search``: find a good schedule, and a lower bound for all schedules."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minipipe.cli.declaring import adder, file_path
from minipipe.cli.numbers import SECONDS
from minipipe.cli.options import (
    add_costs,
    add_sizes,
    amount,
    costs_of,
    sizes_of,
    whole_numbers,
)
from minipipe.cli.output import ExitStatus, answer, ending_of, fields, figures
from minipipe.cli.progress import Progress
from minipipe.core.schedules.action import O
from minipipe.core.schedules.placement import (
    check_size,
    check_sizes,
    looped_placement,
)
from minipipe.core.specs import SCHEDULE_COUNT
from minipipe.errors import counted, misuse, quoted
from minipipe.io import write_whole
from minipipe.schedules import Certificate, Objective, Timeline, find_schedule, simulate
from minipipe.schedules.analysis.workload import Workload
from minipipe.schedules.placements import v_placement
from minipipe.schedules.registry import check_sizes_of
from minipipe.search.choices import Recompute
from minipipe.search.finding import usual_evaluations
from minipipe.search.joint import (
    COPIES,
    LAYERS,
    WEIGHT_COPIES,
    JointResult,
    find_joint,
)

if TYPE_CHECKING:
    from minipipe.schedules import Costs

# A search of a schedule with a few actions would take more than a year.
_EVALUATIONS = SCHEDULE_COUNT._replace(maximum=10**12)
_CHOSEN = 20_000  # schedules of all choices together
_SECONDS = 60.0  # the default time limit of a search
_ANY = ("straight", "v", "looped")
PLACEMENTS: dict[str, Callable[[int], tuple[int, ...]]] = {
    "straight": looped_placement,
    "v": v_placement,
    "looped": partial(looped_placement, chunks_per_rank=2),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_sizes(parser)
    add_costs(parser)
    add = adder(parser, "search")
    add("--memory-limit", type=amount)
    add("--placement", default="straight")
    add("--layers", spec=LAYERS)
    add("--offload")
    add("--recompute", choices=list(map(str, Recompute)), default=str(Recompute.NONE))
    add("--weight-copies", spec=COPIES, usual=f"{WEIGHT_COPIES:g}")
    add("--objective", choices=list(map(str, Objective)), default=str(Objective.SPAN))
    add("--evaluations", spec=_EVALUATIONS)
    add("--seconds", spec=SECONDS, usual=f"{_SECONDS:g}")
    add("--seed", type=int, default=0)
    add("--exact")
    add("-o", "--output", type=file_path)


def run(options: argparse.Namespace) -> ExitStatus:
    """Search, and print the figures of the result."""
    _, microbatches = sizes_of(options)
    ending = ""
    if options.output is not None:
        ending = ending_of(options.output, _WRITERS)
    costs = costs_of(options)
    placements = _placements(options)
    if options.layers is not None:
        return _search_jointly(options, costs, placements, ending)
    jointly = {"--offload": options.offload, "--placement any": len(placements) > 1}
    jointly["--recompute"] = options.recompute != Recompute.NONE
    jointly["--weight-copies"] = options.weight_copies is not None
    for option in (name for name, is_used in jointly.items() if is_used):
        raise misuse(f"{option} also weighs the layers of stages; add --layers N.")
    (placement,) = placements
    workload = costs.workload(placement, microbatches, options.memory_limit)
    seconds = options.seconds
    evaluations = options.evaluations
    if seconds is evaluations is None:
        seconds = _SECONDS
        evaluations = usual_evaluations(workload)
    objective = Objective(options.objective)
    with Progress(_work(workload, evaluations), seconds, is_at_most=True) as progress:
        result = find_schedule(
            workload,
            objective,
            seconds,
            options.seed,
            options.exact,
            evaluations,
            progress.watch,
        )
        progress.tell("timing the schedule that was found")
        timeline = simulate(result.schedule, costs)
    if options.output is not None:
        write_whole(options.output, _WRITERS[ending](result))
    data = _data(result, timeline, options.output)
    return answer(options, data, _report(result, timeline, options.output))


def _placements(options: argparse.Namespace) -> list[tuple[int, ...]]:
    """Return the placements of an option: the named one, the one given, or several."""
    text = options.placement
    ranks, microbatches = sizes_of(options)
    if text == "any" or text in PLACEMENTS:
        check_sizes(ranks, microbatches)  # before a placement of this size is built
        names = _ANY if text == "any" else [text]
        # a placement of one rank has several names
        return list(dict.fromkeys(PLACEMENTS[name](ranks) for name in names))
    expected = f"expected {', '.join(PLACEMENTS)} or any, or a rank for each stage"
    try:
        placement = tuple(whole_numbers(text))
    except argparse.ArgumentTypeError:
        problem = f"--placement is {quoted(text)}; {expected}"
        raise misuse(f"{problem}, such as 0,1,2,0,1,2.") from None
    num_ranks = 1 + max(placement)
    if set(placement) != set(range(num_ranks)):
        problem = f"--placement is {quoted(text)}"
        raise misuse(f"{problem}; expected ranks from 0 on, each with a stage.")
    check_size(len(placement), microbatches)
    check_sizes_of("--placement", ("--ranks", options.ranks, num_ranks))
    return [placement]


def _search_jointly(
    options: argparse.Namespace,
    costs: Costs,
    placements: list[tuple[int, ...]],
    ending: str,
) -> ExitStatus:
    """Search for partition, placement and schedule, and print the figures."""
    if options.exact:
        raise misuse("--exact has no model of --layers; leave one of them out.")
    if options.offload and ending in (".csv", ".json"):
        problem = f"A file {ending} has no O and L, the actions of --offload"
        raise misuse(f"{problem}; write .txt, or leave --offload out.")
    if options.placement == "any":
        # the straight one has the fewest stages
        others = [each for each in placements[1:] if len(each) <= options.layers]
        placements = [*placements[:1], *others]
    _, microbatches = sizes_of(options)
    seconds = options.seconds
    if seconds is options.evaluations is None:
        seconds = _SECONDS
    limits = fields(options, "memory_limit", "objective", "offload", "seed")
    limits["recompute"] = options.recompute
    if options.weight_copies is not None:
        limits["weight_copies"] = options.weight_copies
    limits["evaluations"] = options.evaluations or _CHOSEN
    limits["seconds"] = seconds or inf
    work = f"weighing partitions of {counted(options.layers, 'layer')}"
    with Progress(work, seconds, is_at_most=True) as progress:
        size = (options.layers, placements, microbatches)
        joint = find_joint(costs, *size, watch=progress.watch, **limits)
    result = joint.best
    timeline = simulate(result.schedule, joint.costs)
    if options.output is not None:
        write_whole(options.output, _WRITERS[ending](result))
    about = fields(joint, "sizes", "is_offloaded", "choices", "searched", "waiting")
    about |= fields(joint, "impossible", "is_complete", "recomputed", "weight_memory")
    about["placement"] = result.workload.placement
    data = {**_data(result, timeline, options.output), **about}
    text = f"{_about_choices(joint)}\n{_report(result, timeline, options.output)}"
    return answer(options, data, text)


def _about_choices(joint: JointResult) -> str:
    copies = "with offload" if joint.is_offloaded else "without offload"
    sizes = ",".join(map(str, joint.sizes))
    placement = ",".join(map(str, joint.best.workload.placement))
    numbers = f"{counted(joint.choices, 'choice')}: {joint.searched} searched"
    pruned = joint.choices - joint.searched - joint.waiting - joint.impossible
    numbers += f", {pruned} pruned by bounds, {joint.impossible} without memory"
    if joint.waiting:
        numbers += f", {joint.waiting} left"
    if not joint.is_complete:
        numbers += "; other partitions bounded by their work"
    text = f"layers by stage {sizes} on ranks {placement}, {copies}"
    again = [str(stage) for stage, is_so in enumerate(joint.recomputed) if is_so]
    if again:
        text += f", recomputed stages {','.join(again)}"
    if any(joint.weight_memory):
        held = ", ".join(f"{amount:g}" for amount in joint.weight_memory)
        text += f"\nweights by rank {held}, besides the peak memory below"
    return f"{text}\n{numbers}"


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
    if file is None and O in result.schedule.kinds:
        about["schedule"] = result.schedule.to_text()
    elif file is None:
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
