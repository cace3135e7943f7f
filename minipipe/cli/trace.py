"""``minipipe trace``: read the profiler traces of a pipeline, explain its idle time, and
predict other schedules with its costs.
"""

from __future__ import annotations

import argparse
from typing import Any

from minipipe.cli.declaring import add_file, add_text
from minipipe.cli.numbers import FACTOR, add_number
from minipipe.cli.options import add_output
from minipipe.cli.output import ExitStatus, answer, figures
from minipipe.core.specs import SCHEDULE_COUNT, TEXT_WIDTH
from minipipe.errors import ScheduleError, counted, misuse, quoted
from minipipe.io import columns_of_terminal, printable, write_whole
from minipipe.render.files import check_ending, drawing
from minipipe.render.text import draw_text
from minipipe.schedules import Timeline, simulate
from minipipe.trace.forecast import WEIGHT_PART, costs_of, forecasts
from minipipe.trace.report import (
    OTHERS,
    about_idle,
    compared,
    costs_table,
    forecast_table,
    headline,
    idle_table,
)
from minipipe.trace.runs import RecordedRun, read_run

_MOST_COLUMNS = 10_000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    files = "traces of PyTorch's profiler or others, plain or gzip: one for each rank"
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help=f"{files}, or one for all")
    label = (
        "how other programs name actions: a regular expression with groups, see below"
    )
    add_text(parser, "--label", "PATTERN", label)
    least = SCHEDULE_COUNT._replace(minimum=0)
    step = "the step to explain and draw, from 0 (default: the median makespan)"
    add_number(parser, "--step", least, "N", step)
    part = "the part of W in a whole backward, if a schedule splits it (default: 0.5)"
    add_number(parser, "--weight-part", FACTOR, "X", part, default=WEIGHT_PART)
    bounds = f"{TEXT_WIDTH.minimum} to {_MOST_COLUMNS} columns"
    width = TEXT_WIDTH._replace(
        maximum=_MOST_COLUMNS, expected=bounds, error=ScheduleError.of
    )
    columns = "columns of the drawing as text (default: terminal width)"
    add_number(parser, "--width", width, "N", columns)
    add_file(
        parser,
        "--write-costs",
        "write the costs, for --costs of other verbs",
        "FILE.json",
    )
    add_file(
        parser, "--write-schedule", "write the schedule, for other verbs", "FILE.csv"
    )
    add_output(
        parser, "write the drawing: .svg, .png, .pdf, .html, .txt, or a trace as .json"
    )


def run(options: argparse.Namespace) -> ExitStatus:
    """Print the measured step, its costs, the simulated step and other schedules."""
    if options.output is not None:
        check_ending(options.output)
    recorded = read_run(*options.files, label=options.label)
    step = _step(options.step, recorded)
    costs = costs_of(recorded, options.weight_part)
    drawn = (recorded.timelines[step], simulate(recorded.schedule, costs))
    others = forecasts(recorded, costs)
    written = _write(options, recorded, drawn)
    if options.write_costs is not None:
        written.append(str(costs.save(options.write_costs)))
    data = {
        **_as_data(recorded, step),
        "latency": costs.latency,
        "overhead": costs.overhead,
        "predicted": drawn[1].summary(),
        "forecasts": [forecast._asdict() for forecast in others],
        "wrote": written,
    }
    width = options.width or max(40, columns_of_terminal(80))
    name = recorded.schedule.name
    parts = [
        f"{headline(recorded, step)}\n\n{idle_table(drawn[0])}\n",
        "\n".join(about_idle(recorded, step)),
        f"\n{costs_table(recorded, costs)}\n",
        compared(*drawn),
        f"\n{draw_text(*drawn, width=width)}\n",
        f"{OTHERS}:\n\n{forecast_table(others, name)}",
        *(f"wrote {printable(path)}" for path in written),
    ]
    return answer(options, data, "\n".join(parts))


def _as_data(recorded: RecordedRun, step: int) -> dict[str, Any]:
    measured = recorded.timelines[step]
    return {
        **figures(recorded.schedule, measured),
        "ranks": recorded.ranks,
        "steps": [timeline.makespan for timeline in recorded.timelines],
        "step": step,
        "busy": list(map(measured.busy, range(measured.num_ranks))),
        "idle": measured.idle_by_cause,
        "critical_path": [str(span.action) for _, span in measured.critical_path],
        "clock_offsets": recorded.offsets,
        "beside": recorded.beside,
        "times": [spread._asdict() for spread in recorded.spreads()],
    }


def _step(step: int | None, recorded: RecordedRun) -> int:
    if step is None:
        return recorded.usual
    count = len(recorded.timelines)
    if step >= count:
        steps = counted(count, "complete step")
        raise misuse(
            f"--step is {quoted(step, 40)}, and the traces have {steps}, from 0."
        )
    return step


def _write(
    options: argparse.Namespace, recorded: RecordedRun, drawn: tuple[Timeline, Timeline]
) -> list[str]:
    """Write the drawing and the schedule; return the names of the files."""
    contents: dict[Any, str | bytes] = {}
    if options.output is not None:
        contents[options.output] = drawing(check_ending(options.output), *drawn)
    if options.write_schedule is not None:
        contents[options.write_schedule] = recorded.schedule.to_csv()
    return [str(write_whole(path, content)) for path, content in contents.items()]
