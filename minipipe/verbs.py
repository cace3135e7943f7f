"""The verbs of the command line: each reads its options, prints its answer last, and returns the exit status."""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from minipipe import backend
from minipipe.comm.describe import blas_library, gpu_messages, mpi_library, num_cores, package_version
from minipipe.errors import Problem, ScheduleError
from minipipe.render import draw_text
from minipipe.schedules import REGISTRY, TRADES, Costs, Schedule, Timeline, build, lower, simulate, verify
from minipipe.schedules.placement import check_counts
from minipipe.schedules.registry import expected_names
from minipipe.schedules.text import read_either
from minipipe.version import __version__

__all__ = ["MICROBATCHES", "RANKS", "run_check", "run_info", "run_schedules", "run_show", "run_simulate"]

RANKS, MICROBATCHES = 4, 8  # of a named schedule, unless told
_CAUSES = ("warm-up", "waiting", "sending", "drain")
_TABLE_NOTE = """
v: stages on each rank. time: with a rank's work divided among its stages.
bubble: idle time over all time. peak: the most microbatches that a rank holds,
each counted for all its layers. No idle inside: none between a rank's first
action and its last. A V: microbatches go over the ranks there and back, so that
rank 0 holds the first stage and the last."""


def run_schedules(options: argparse.Namespace) -> int:
    """Print the table of named schedules, with figures for one size."""
    ranks, microbatches = _given_sizes(options)
    check_counts(ranks, microbatches)
    costs, rows = _costs(options), []
    for name in REGISTRY:
        try:
            schedule = build(name, ranks, microbatches)
            figures = _figures(schedule, simulate(schedule, costs))
        except ScheduleError as error:
            if error.code not in ("parameters", "costs"):
                raise
            figures = {"error": error.problems[0].message}
        rows.append({"schedule": name, **figures, "trades": TRADES[name]})
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
    print(_table(cells, right=(1, 2, 3, 4)))
    print(_TABLE_NOTE)
    return 0


def run_show(options: argparse.Namespace) -> int:
    """Draw a schedule, or write it in a format that can be read again."""
    schedule, costs = _schedule(options), _costs(options)
    if options.json and options.format != "text":
        raise _wrong("parameters", f"--json and --format {options.format} are two formats; choose one.")
    if options.messages and options.format == "text" and not options.json:
        raise _wrong("parameters", "--messages is for --format rows or csv, or --json; a drawing shows computations.")
    if options.width < 40:
        raise _wrong("parameters", f"--width is {options.width}; expected at least 40 columns.")
    written = lower(schedule) if options.messages else schedule
    if options.json:
        rows = [[str(action) for action in row] for row in written.actions]
        text = json.dumps({**_sizes(schedule), "placement": schedule.placement, "actions": rows}) + "\n"
    elif options.format == "csv":
        text = written.to_csv()
    elif options.format == "rows":
        text = written.to_text()
    else:
        verify(schedule)
        text = draw_text(simulate(schedule, costs), options.width) + "\n"
    if options.output is None:
        print(text, end="")
    else:
        try:
            options.output.write_text(text)
        except OSError as error:
            raise _wrong("file", f"{options.output} cannot be written: {error.strerror}.") from None
        print(json.dumps({"wrote": str(options.output)}) if options.json else f"wrote {options.output}")
    return 0


def run_check(options: argparse.Namespace) -> int:
    """Print one line of figures for a legal schedule; main() prints what is wrong with an illegal one."""
    schedule = _schedule(options)
    verify(schedule, options.memory_limit)
    timeline = simulate(schedule)
    if options.json:
        print(json.dumps({"legal": True, **_figures(schedule, timeline)}))
        return 0
    remark = "" if schedule.is_reproducible else "; it adds gradients in another order than one process does"
    if schedule.is_forward_only:
        remark = "; forward only, so it does not train"
    print(f"legal: {_described(schedule)}; {_after_name(timeline)}{remark}")
    return 0


def run_simulate(options: argparse.Namespace) -> int:
    """Print the figures of a schedule under the costs."""
    schedule = _schedule(options)
    verify(schedule)
    timeline = simulate(schedule, _costs(options))
    if options.json:
        path = [str(span.action) for _, span in timeline.critical_path]
        details = {"busy": list(map(timeline.busy, range(timeline.num_ranks))), "idle": _idle_by_cause(timeline)}
        print(json.dumps({**_figures(schedule, timeline), **details, "critical_path": path}))
        return 0
    idle_by_cause = _idle_by_cause(timeline)
    causes = [cause for cause in _CAUSES if cause != "sending" or options.sends_block]
    cells = [["rank", "busy", *causes, "peak activations", "peak memory"]]
    for rank in range(timeline.num_ranks):
        idle = [idle_by_cause[rank][cause] for cause in causes]
        memory = timeline.peak_memory[rank] if timeline.peak_memory else 0.0
        numbers = [timeline.busy(rank), *idle]
        cells.append([str(rank), *(f"{x:g}" for x in numbers), str(timeline.peak_activations[rank]), f"{memory:g}"])
    print(f"{_described(schedule)}\n\n{_table(cells, right=range(len(cells[0])))}\n")
    print(f"busy and idle by cause in {timeline.unit}; activations in (stage, microbatch) pairs")
    if schedule.num_stages > schedule.num_ranks:
        print("costs are of one stage; a rank that holds several pays for each")
    print(f"critical path: {_path(timeline)}")
    print(
        f"bubble {100 * timeline.bubble_fraction:.1f} % of all time, "
        f"{100 * timeline.bubble_over_ideal:.1f} % over ideal, "
        f"{100 * timeline.span_bubble_rate:.1f} % within ranks' own spans"
    )
    print(f"makespan {timeline.makespan:g} {timeline.unit}")
    return 0


def run_info(options: argparse.Namespace) -> int:
    """Print what this machine computes and talks with."""
    missing = "not installed"
    facts = {
        "minipipe": __version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "numpy": package_version("numpy"),
        "blas": blas_library(),
        "cores": num_cores(),
        "mpi4py": package_version("mpi4py") or f"{missing}: pip install 'minipipe-mpi[mpi]', or thread ranks",
        "mpi": mpi_library() or missing,
        "gpu": backend.gpu_description(),
        "gpu messages": gpu_messages(),
    }
    if options.json:
        print(json.dumps(facts))
    else:
        print("\n".join(f"{name:12} {value}" for name, value in facts.items()))
        print("\nA rank computes with one BLAS thread while its group is open.")
    return 0


# -- what the verbs share --------------------------------------------------------------------------------------


def _schedule(options: argparse.Namespace) -> Schedule:
    """Return the schedule that was named, or read it from a file."""
    given = options.schedule
    if given in REGISTRY:
        return build(given, *_given_sizes(options), options.chunks)
    if given != "-" and (not Path(given).exists() or Path(given).is_dir()):
        raise _wrong("unknown", f"There is neither a schedule nor a file {given!r}; {expected_names(given)}.")
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
            raise _wrong("parameters", f"{option} is {wanted}, but {given} has {own:g}; leave {option} out.")
    return schedule


def _given_sizes(options: argparse.Namespace) -> tuple[int, int]:
    ranks = RANKS if options.ranks is None else options.ranks
    return ranks, MICROBATCHES if options.microbatches is None else options.microbatches


def _costs(options: argparse.Namespace) -> Costs:
    return dataclasses.replace(Costs.parse(options.costs), sends_block=options.sends_block)


def _sizes(schedule: Schedule) -> dict[str, Any]:
    return {
        "schedule": schedule.name,
        "num_ranks": schedule.num_ranks,
        "num_stages": schedule.num_stages,
        "num_microbatches": schedule.num_microbatches,
    }


def _figures(schedule: Schedule, timeline: Timeline) -> dict[str, Any]:
    return {
        **_sizes(schedule),
        "makespan": timeline.makespan,
        "bubble_fraction": timeline.bubble_fraction,
        "bubble_over_ideal": timeline.bubble_over_ideal,
        "span_bubble_rate": timeline.span_bubble_rate,
        "peak_activations": list(timeline.peak_activations),
        "peak_memory": list(timeline.peak_memory or ()),
        "is_reproducible": schedule.is_reproducible,
    }


def _described(schedule: Schedule) -> str:
    counts = (schedule.num_ranks, schedule.num_stages, schedule.num_microbatches)
    parts = [f"{n} {noun}{'' if n == 1 else 's'}" for n, noun in zip(counts, ("rank", "stage"))]
    m = schedule.num_microbatches
    return f"{schedule.name}, {', '.join(parts)}, {m} microbatch{'' if m == 1 else 'es'}"


def _after_name(timeline: Timeline) -> str:
    return str(timeline).removeprefix(f"{timeline.name}: ")


def _idle_by_cause(timeline: Timeline) -> list[dict[str, float]]:
    """Return, by rank, how long it is idle for each cause."""
    return [
        {cause: sum(slot.end - slot.start for slot in slots if slot.cause == cause) for cause in _CAUSES}
        for slots in timeline.idle
    ]


def _path(timeline: Timeline, shown: int = 6) -> str:
    """Write the critical path, the middle of a long one left out."""
    path = [str(span.action) for _, span in timeline.critical_path]
    if len(path) > 2 * shown:
        path = [*path[:shown], "…", *path[-shown:]]
    return " ".join(path)


def _table(rows: Sequence[Sequence[str]], right: Iterable[int]) -> str:
    """Align columns; those in ``right`` to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    sides = [">" if i in set(right) else "<" for i in range(len(widths))]
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths)).rstrip() for row in rows
    )


def _wrong(code: str, message: str) -> ScheduleError:
    return ScheduleError([Problem(code, message)])
