"""``minipipe compare``: one model under every combination of parallelism, measured and
compared with theory.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from math import inf
from typing import Any

from minipipe.cli.declaring import NUM_RANKS, RANKS, adder, file_path
from minipipe.cli.output import ExitStatus, csv_of, ending_of, write_file
from minipipe.cli.progress import Progress, duration
from minipipe.cli.ranks import (
    answer_of_ranks,
    errors_left,
    leave_answer,
    question_of_ranks,
    warn_if_busy,
)
from minipipe.cli.streams import put
from minipipe.comm import ProcessGroup, init_process_group, spawn
from minipipe.comm.job.host import launcher_of_ranks, memory_of_this_host
from minipipe.core.comm.host import cores
from minipipe.core.comm.host import num_ranks as ranks_of_launcher
from minipipe.core.specs import COUNT, divisor
from minipipe.errors import counted, misuse, quoted
from minipipe.pipeline import Pipeline
from minipipe.render.descriptions import format_memory
from minipipe.schedules.simulation.paper_scale import Link
from minipipe.tuning.grid_report import ETHERNET, GridReport
from minipipe.tuning.grids import CLOSE, GridSizes, Task, compare_on_ranks
from minipipe.tuning.race import silent, teller
from minipipe.tuning.task_size import expected_seconds, least_bytes

_MODEL = ("layers", "width", "heads", "symbols", "length", "batch", "microbatches")
# The limit of each number; their memory and time together are also checked.
_MOST = 10**9
_COUNT = COUNT._replace(maximum=_MOST)
_MOST_SECONDS = 24 * 3600.0
_ENDINGS = {".txt": "text", ".csv": "csv", ".json": "json", ".svg": "svg"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = adder(parser, "compare")
    add("--ranks", spec=RANKS, default=NUM_RANKS)
    for name in _MODEL:
        add(f"--{name}", spec=_COUNT, default=getattr(Task, name))
    add("--dtype", choices=CLOSE, default=Task.dtype)
    add("--rounds", spec=_COUNT, default=5)
    add("--hosts", type=int)
    add("--links")
    add("--format", choices=_ENDINGS.values())
    add("-o", "--output", type=file_path)


def run(options: argparse.Namespace) -> ExitStatus:
    """Measure and print."""
    form = _form_of(options)
    task = _task_of(options)
    num_ranks = options.ranks
    grids, left_out = task.grids(num_ranks)
    if not grids:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        problem = f"No mesh of {counted(num_ranks, 'rank')} fits this model"
        raise misuse(f"{problem}. {reasons}.")
    hosts, link = _hosts_of(options)
    seconds = _checked_seconds(task, grids, num_ranks, options.rounds)
    if ranks_of_launcher(os.environ) != 1:
        problem = "minipipe compare starts its ranks itself; run it without mpirun"
        raise misuse(f"{problem}, as minipipe compare --ranks {num_ranks}.")
    launcher = launcher_of_ranks()
    where = counted(num_ranks, "thread rank")
    on = where
    if launcher is not None:
        where = f"{counted(num_ranks, 'MPI rank')} on {counted(len(cores()), 'core')}"
        on = f"{counted(num_ranks, 'rank')} under mpirun"
    turns = f"{counted(options.rounds, 'round')} of steps in turns"
    work = f"comparing {counted(len(grids), 'mesh')} on {on}, {turns}"
    warn_if_busy()
    with Progress(work, seconds) as progress:
        rows = _compared(task, num_ranks, options.rounds, launcher, progress)
    is_shared = num_ranks > len(cores())
    return _print(
        GridReport(
            task, rows, left_out, where, hosts, link, is_shared, launcher is None
        ),
        form,
        options,
    )


def _compared(
    task: Task, num_ranks: int, rounds: int, launcher: str | None, progress: Progress
) -> list[dict[str, Any]]:
    """Compare on ranks under a launcher, or else on thread ranks."""

    def compare(group: ProcessGroup) -> list[dict[str, Any]]:
        tell = silent if group.rank else progress.tell
        return compare_on_ranks(task, group, Pipeline, rounds, tell)

    if launcher is None:
        return spawn(compare, num_ranks)[0]
    settings = {"task": asdict(task), "rounds": rounds}
    failed = "The comparison failed"
    return answer_of_ranks(launcher, num_ranks, [__name__], settings, failed, progress)


def _checked_seconds(
    task: Task, grids: Sequence[GridSizes], num_ranks: int, rounds: int
) -> float:
    """Return the approximate time of the comparison; refuse one that exceeds the
    memory, or takes days.
    """
    model = f"--layers {task.layers}, --width {task.width}"
    sizes = f"{model}, --batch {task.batch}, --length {task.length}"
    needed = least_bytes(task, grids, num_ranks)
    here = memory_of_this_host()
    if needed > here:
        need = format_memory(needed, "bytes")
        held = f"the meshes of {counted(num_ranks, 'rank')} need at least {need}"
        memory = format_memory(here, "bytes")
        reason = f"With {sizes}, {held}, and this machine has {memory}"
        raise misuse(f"{reason}; choose a smaller model, batch or --ranks.")
    seconds = expected_seconds(task, len(grids), rounds, num_ranks, len(cores()))
    if seconds > _MOST_SECONDS:
        time = duration(seconds)
        work = f"With {sizes} and --rounds {rounds}, the comparison takes about {time}"
        reason = f"{work}; expected at most {duration(_MOST_SECONDS)}"
        raise misuse(f"{reason}: choose a smaller model, batch or --rounds.")
    return seconds


def _print(report: GridReport, form: str, options: argparse.Namespace) -> ExitStatus:
    """Print the report, or write it; the answer is "no" if losses differ."""
    if form == "svg":
        content = report.picture()
    elif form == "csv":
        content = csv_of(report.flat())
    elif form == "json":
        content = f"{json.dumps(report.data)}\n"
    else:
        content = f"{report}\n"
    if options.output is not None:
        lines = report.sentences
        write_file(options.output, content, options, f": {lines[0]}", sentences=lines)
    else:
        put(content, end="")
    return ExitStatus(bool(report.differing))


def _form_of(options: argparse.Namespace) -> str:
    """Return the requested format, by name or by the ending of the file, whose folder
    must exist.
    """
    # Check this before the measurement, which takes a minute.
    if options.output is not None and not options.output.parent.is_dir():
        problem = f"{quoted(str(options.output), 200)} cannot be written"
        raise misuse(f"{problem}: its folder does not exist.")
    if options.format is not None:
        return options.format
    if options.output is not None:
        return _ENDINGS[ending_of(options.output, _ENDINGS)]
    return "json" if options.json else "text"


def _task_of(options: argparse.Namespace) -> Task:
    """Return the requested model and batch."""
    numbers = {name: getattr(options, name) for name in _MODEL}
    for whole, part in (("width", "heads"), ("batch", "microbatches")):
        whole_words = f"--{whole}, {numbers[whole]}"
        divisor(f"--{part}", numbers[part], numbers[whole], of=whole_words)
    return Task(**numbers, dtype=options.dtype)


def _hosts_of(options: argparse.Namespace) -> tuple[int | None, Link]:
    """Return the number of hosts to simulate, and the link between them."""
    link = ETHERNET
    if options.links is not None:
        try:
            link = Link(*map(float, options.links.split(",")))
            is_right = 0 <= link.latency < inf and 0 < link.bandwidth < inf
        except (TypeError, ValueError):
            is_right = False
        if not is_right:
            expected = "seconds and bytes per second, such as 5e-5,1.25e9"
            raise misuse(f"--links is {quoted(options.links)}; expected {expected}.")
    hosts = options.hosts
    if hosts is None and options.links is not None:
        hosts = 2
    if hosts is not None:
        ranks = f"the {counted(options.ranks, 'rank')}"
        divisor("--hosts", hosts, options.ranks, of=ranks)
    return hosts, link


def main() -> None:
    """Run the device meshes as one rank of a job."""
    settings = question_of_ranks()
    with init_process_group() as group:
        with errors_left(group):
            task = Task(**settings["task"])
            tell = teller(group, progress=True)
            rows = compare_on_ranks(task, group, Pipeline, settings["rounds"], tell)
        if group.rank == 0:
            leave_answer(rows)


if __name__ == "__main__":
    main()
