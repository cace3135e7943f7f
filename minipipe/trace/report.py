"""The text of a recorded run: idle times by cause, waits, costs, and other schedules."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest

from minipipe.errors import counted
from minipipe.io import text_table
from minipipe.render.descriptions import describe_wait
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.span import Idle, IdleCause
from minipipe.schedules.simulation.timeline import (
    Timeline,
    by_rank,
    format_number,
    format_time,
)
from minipipe.trace.forecast import Forecast
from minipipe.trace.runs import RecordedRun

OTHERS = "other schedules, with the time of each rank divided equally among its stages"
_WAITS = 3
_SHOWN = 6  # actions at either end of a critical path
_FASTEST = 8
_DECIMALS = 4  # of milliseconds
_AGREE = 1e-9  # seconds: a smaller difference of clocks is rounding


def idle_table(timeline: Timeline) -> str:
    """Return the busy time and the idle times by cause, a row for each rank."""
    by_rank = timeline.idle_by_cause
    causes = [cause for cause in IdleCause if any(row[cause] for row in by_rank)]
    rows = [["rank", "busy", *causes, "idle"]]
    for rank, idle in enumerate(by_rank):
        total = sum(idle.values())
        times = [timeline.busy(rank), *(idle[cause] for cause in causes)]
        cells = [format_number(time, timeline.unit) for time in times]
        part = f"{100 * total / timeline.makespan:.1f} %"
        rows.append([str(rank), *cells, part])
    return text_table(rows, right=range(len(rows[0])))


def about_idle(run: RecordedRun, step: int) -> list[str]:
    """Return sentences about the idle times of a step."""
    timeline = run.timelines[step]
    lines = ["busy and idle times in ms"]
    slots = [(rank, it) for rank, row in enumerate(timeline.idle) for it in row]
    waits = [(rank, it) for rank, it in slots if it.cause is IdleCause.WAITING]
    for rank, slot in nlargest(_WAITS, waits, key=_length):
        length = format_time(_length((rank, slot)), timeline.unit)
        lines.append(f"long wait: rank {rank} {describe_wait(slot)}, {length}")
    path = [str(span.action) for _, span in timeline.critical_path]
    if len(path) > 2 * _SHOWN:
        path = [*path[:_SHOWN], "…", *path[-_SHOWN:]]
    lines.append(f"critical path: {' '.join(path)}")
    if not run.has_messages:
        lines.append("no sends and receives here: waits within an action count as busy")
    for rank, times in enumerate(run.beside):
        if times:
            parts = [f"{name} {format_time(it, 's')}" for name, it in times.items()]
            lines.append(f"rank {rank} also spent in each step: {', '.join(parts)}")
    return lines


def _length(waiting: tuple[int, Idle]) -> float:
    return waiting[1].end - waiting[1].start


def costs_table(run: RecordedRun, costs: Costs) -> str:
    """Return the times of actions, a row for each stage, and sentences about messages
    and clocks.
    """
    spreads = run.spreads()
    kinds = sorted({it.kind for it in spreads}, key="FBIW".index)
    cells: dict[int, dict[str, str]] = {}
    for it in spreads:
        times = format_number(it.mean, "s")
        if it.number > 1:
            times += f" ± {round(1000 * it.spread, _DECIMALS):.3g}"
        cells.setdefault(it.stage, {})[it.kind] = times
    head = ["stage", "rank", *kinds]
    rows = []
    for stage in range(run.schedule.num_stages):
        ranks = "+".join(map(str, run.schedule.ranks_of(stage)))
        times_of = cells.get(stage, {})
        rows.append([str(stage), ranks, *(times_of.get(kind, "-") for kind in kinds)])
    counts = sorted({it.number for it in spreads})
    number = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    lines = [
        text_table([head, *rows], right=range(len(head))),
        "",
        f"times in ms: mean ± standard deviation of {number} of each kind, all steps",
    ]
    latency = format_time(costs.latency, "s")
    overhead = format_time(costs.overhead, "s")
    if run.has_messages:
        lines.append(f"message {latency}, overhead between two actions {overhead}")
    return "\n".join([*lines, _about_clocks(run)])


def _about_clocks(run: RecordedRun) -> str:
    moved = [
        f"rank {rank} {1000 * offset:+.4g} ms"
        for rank, offset in enumerate(run.offsets)
        if abs(offset) > _AGREE
    ]
    means = "messages"
    if not run.has_messages:
        means = "the order of actions, as there are no messages"
    if moved:
        return f"clocks aligned by {means}: {', '.join(moved)}"
    return f"the clocks of all ranks agree with {means}"


def forecast_table(forecasts: Sequence[Forecast], recorded: str) -> str:
    """Return the fastest schedules and the recorded one as a table."""
    shown = list(forecasts[:_FASTEST])
    shown += [it for it in forecasts[_FASTEST:] if it.schedule == recorded]
    rows = [["schedule", "ms", "change", "bubble", "held", "trades"]]
    for it in shown:
        name = it.schedule
        change = _signed(it.change)
        makespan = format_number(it.makespan, "s")
        bubble = f"{100 * it.bubble_fraction:.1f} %"
        rows.append([name, makespan, change, bubble, f"{it.peak:g}", it.trades])
    return text_table(rows, right=range(1, 5))


def headline(run: RecordedRun, step: int) -> str:
    """Return sizes and the bubble of a step."""
    timeline = run.timelines[step]
    times = [each.makespan for each in run.timelines]
    of_steps = counted(len(times), "step")
    if len(times) > 1:
        bounds = (format_number(it, "s") for it in (min(times), max(times)))
        of_steps += f" of {' to '.join(bounds)} ms, of which step {step} is shown"
    sizes = run.schedule.describe(", ")
    if run.ranks != tuple(range(len(run.ranks))):
        sizes += f" (ranks {by_rank(run.ranks)} of the job)"
    real = f"bubble {100 * timeline.bubble_fraction:.1f} % of all time"
    ideal = f"{100 * timeline.bubble_over_ideal:.1f} % of the ideal time"
    makespan = format_time(timeline.makespan, timeline.unit)
    return f"{sizes}; {of_steps}\nmeasured: makespan {makespan}, {real}, {ideal}"


def compared(measured: Timeline, predicted: Timeline) -> str:
    """Return the prediction for the recorded schedule, and its error."""
    error = predicted.makespan / measured.makespan - 1
    makespan = format_time(predicted.makespan, predicted.unit)
    bubble = f"bubble {100 * predicted.bubble_fraction:.1f} %"
    return (
        f"simulated with these costs: makespan {makespan} ({_signed(error)}), {bubble}"
    )


def _signed(part: float) -> str:
    """Return a part in percent, with its sign; zero is positive."""
    return f"{round(100 * part, 1) + 0.0:+.1f} %"
