"""``minipipe trace``: read the profiler traces of a pipeline, explain its idle time, and
predict other schedules with its costs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from heapq import nlargest

from minipipe.cli.declaring import adder, file_path
from minipipe.cli.idle import idle_as_data, idle_table, path_text
from minipipe.cli.numbers import FACTOR
from minipipe.cli.options import text_width
from minipipe.cli.output import ExitStatus, answer, figures
from minipipe.core.specs import SCHEDULE_COUNT
from minipipe.errors import counted, misuse, quoted
from minipipe.io import printable, text_table, write_whole
from minipipe.render.descriptions import describe_wait
from minipipe.render.files import check_ending, drawing
from minipipe.render.text import draw_text
from minipipe.schedules import Costs, IdleCause, Timeline, simulate
from minipipe.schedules.simulation.timeline import by_rank, format_number, format_time
from minipipe.trace.forecast import WEIGHT_PART, Forecast, costs_of, forecasts
from minipipe.trace.runs import RecordedRun, Spread, read_run

_OTHERS = "other schedules, with the time of each rank divided equally among its stages"
_WAITS = 3
_FASTEST = 8
_AGREE = 1e-9  # seconds: a smaller difference of clocks is rounding


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = adder(parser, "trace")
    add("files", nargs="+")
    add("--label")
    add("--step", spec=SCHEDULE_COUNT._replace(minimum=0))
    add("--weight-part", spec=FACTOR, default=WEIGHT_PART)
    bounds = "40 to 10000 columns"
    width = SCHEDULE_COUNT._replace(minimum=40, maximum=10_000, expected=bounds)
    add("--width", spec=width)
    add("--write-costs", type=file_path)
    add("--write-schedule", type=file_path)
    add("-o", "--output", type=file_path)


def run(options: argparse.Namespace) -> ExitStatus:
    """Print the measured step, its costs, the simulated step and other schedules."""
    if options.output is not None:
        check_ending(options.output)
    recorded = read_run(*options.files, label=options.label)
    step = _step(options.step, recorded)
    costs = costs_of(recorded, options.weight_part)
    measured = recorded.timelines[step]
    predicted = simulate(recorded.schedule, costs)
    others = forecasts(recorded, costs)
    written = _write(options, recorded, costs, (measured, predicted))
    data = {
        **figures(recorded.schedule, measured),
        "ranks": recorded.ranks,
        "steps": [timeline.makespan for timeline in recorded.timelines],
        "step": step,
        **idle_as_data(measured),
        "clock_offsets": recorded.offsets,
        "times": [spread._asdict() for spread in recorded.spreads()],
        "latency": costs.latency,
        "overhead": costs.overhead,
        "predicted": predicted.summary(),
        "forecasts": [forecast._asdict() for forecast in others],
        "wrote": written,
    }
    error = _signed(predicted.makespan / measured.makespan - 1)
    parts = [
        *(_headline(recorded, step), f"measured: {_bubble(measured)}", ""),
        *(_idle(measured), "", *_about_idle(measured), ""),
        *(_times(recorded.spreads()), "", *_about_times(recorded, costs), ""),
        *(f"simulated with these costs ({error}): {_bubble(predicted)}", ""),
        *(draw_text(measured, predicted, width=text_width(options)), ""),
        *(f"{_OTHERS}:", "", _forecasts(others, recorded.schedule.name)),
        *(f"wrote {printable(path)}" for path in written),
    ]
    return answer(options, data, "\n".join(parts))


def _step(step: int | None, recorded: RecordedRun) -> int:
    count = len(recorded.timelines)
    if step is None:
        return recorded.usual
    if step >= count:
        steps = counted(count, "complete step")
        have = f"the traces have {steps}, from 0"
        raise misuse(f"--step is {quoted(step, 40)}, and {have}.")
    return step


def _write(
    options: argparse.Namespace,
    recorded: RecordedRun,
    costs: Costs,
    drawn: Sequence[Timeline],
) -> list[str]:
    """Write the drawing, the schedule and the costs; return the names of the files."""
    written = []
    if options.output is not None:
        picture = drawing(check_ending(options.output), *drawn)
        written.append(write_whole(options.output, picture))
    if options.write_schedule is not None:
        text = recorded.schedule.to_csv()
        written.append(write_whole(options.write_schedule, text))
    if options.write_costs is not None:
        written.append(costs.save(options.write_costs))
    return list(map(str, written))


# -- the text --------------------------------------------------------------------------

_ms = partial(format_number, unit="s")


def _headline(run: RecordedRun, step: int) -> str:
    times = [each.makespan for each in run.timelines]
    sizes = run.schedule.describe(", ")
    if run.ranks != tuple(range(len(run.ranks))):
        sizes += f" (ranks {by_rank(run.ranks)} of the job)"
    of_steps = counted(len(times), "step")
    if len(times) > 1:
        bounds = f"{_ms(min(times))} to {_ms(max(times))} ms"
        of_steps += f" of {bounds}, of which step {step} is shown"
    return f"{sizes}; {of_steps}"


def _idle(timeline: Timeline) -> str:
    times = timeline.idle_by_cause
    causes = [cause for cause in IdleCause if any(row[cause] for row in times)]
    parts = [sum(row.values()) / timeline.makespan for row in times]
    cells = [f"{100 * part:.1f} %" for part in parts]
    return idle_table(timeline, causes, _ms, {"idle": cells})


def _bubble(timeline: Timeline) -> str:
    bubble = f"bubble {100 * timeline.bubble_fraction:.1f} % of all time"
    ideal = f"{100 * timeline.bubble_over_ideal:.1f} % of the ideal time"
    return f"makespan {_ms(timeline.makespan)} ms, {bubble}, {ideal}"


def _about_idle(timeline: Timeline) -> list[str]:
    """Return sentences on the longest waits, and the critical path."""
    lines = ["busy and idle times in ms"]
    slots = [
        (slot.end - slot.start, rank, slot)
        for rank, row in enumerate(timeline.idle)
        for slot in row
        if slot.cause is IdleCause.WAITING
    ]
    for length, rank, slot in nlargest(_WAITS, slots, key=lambda it: it[0]):
        wait = f"rank {rank} {describe_wait(slot)}, {_ms(length)} ms"
        lines.append(f"long wait: {wait}")
    return [*lines, path_text(timeline)]


def _times(spreads: Sequence[Spread]) -> str:
    rows = [(*map(str, it[:3]), *map(_ms, it[3:])) for it in spreads]
    head = ("stage", "kind", "number", "mean", "deviation", "longest")
    return text_table([head, *rows], right=(0, *range(2, len(head))))


def _about_times(run: RecordedRun, costs: Costs) -> list[str]:
    """Return sentences on messages and clocks."""
    lines = ["times in ms, of actions that ran alone, in all steps"]
    aligned = "messages"
    if run.has_messages:
        overhead = f"overhead between two actions {format_time(costs.overhead, 's')}"
        lines.append(f"message {format_time(costs.latency, 's')}, {overhead}")
    else:
        lines.append("no sends and receives here: waits within an action count as busy")
        aligned = "the order of actions, as there are no messages"
    moved = [
        f"rank {rank} {1000 * offset:+.4g} ms"
        for rank, offset in enumerate(run.offsets)
        if abs(offset) > _AGREE
    ]
    if moved:
        return [*lines, f"clocks aligned by {aligned}: {', '.join(moved)}"]
    return [*lines, f"the clocks of all ranks agree with {aligned}"]


def _forecasts(forecasts: Sequence[Forecast], recorded: str) -> str:
    """Return the fastest schedules, and the recorded one, as a table."""
    rows = [("schedule", "ms", "change", "bubble", "held", "trades")]
    for number, it in enumerate(forecasts):
        if number < _FASTEST or it.schedule == recorded:
            bubble = f"{100 * it.bubble_fraction:.1f} %"
            cells = (_ms(it.makespan), _signed(it.change), bubble, f"{it.peak:g}")
            rows.append((it.schedule, *cells, it.trades))
    return text_table(rows, right=range(1, 5))


def _signed(part: float) -> str:
    """Return a part in percent, with its sign; zero is positive."""
    return f"{round(100 * part, 1) + 0.0:+.1f} %"
