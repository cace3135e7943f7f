"""``minipipe simulate``: predict the time of a schedule, and the idle time of each
rank.
"""

from __future__ import annotations

import argparse

from minipipe.cli.declaring import adder
from minipipe.cli.idle import idle_as_data, idle_table, path_text
from minipipe.cli.options import add_schedule, schedule_and_costs
from minipipe.cli.output import ExitStatus, answer, figures, gaps_as_data
from minipipe.core.schedules.action_table import ActionTable
from minipipe.schedules import ActionKind, IdleCause, Timeline, simulate, verify
from minipipe.schedules.analysis.workload import ROUNDING
from minipipe.schedules.simulation.comparison import Gap, gaps
from minipipe.schedules.simulation.timeline import ONE_UNIT
from minipipe.search.gallery import GALLERY, known_bound


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_schedule(parser)
    adder(parser)("--wait")


def run(options: argparse.Namespace) -> ExitStatus:
    """Print the figures of a schedule under the costs."""
    one_step, schedule, costs = schedule_and_costs(options)
    verify(schedule)
    timeline = simulate(one_step, costs, options.steps, options.wait)
    known = tuple(
        gap._replace(bound=known_bound(gap.workload, gap.objective))
        for gap in gaps(one_step, costs, timeline)
    )
    table = _table(timeline, options.sends_block)
    lines = [f"{schedule.describe(', ')}\n\n{table}\n", *_about(schedule, timeline)]
    lines += _compared(schedule, known)
    lines.append(f"makespan {timeline.makespan:g} {timeline.unit}")
    data = {**figures(schedule, timeline), **gaps_as_data(known)}
    return answer(options, data | idle_as_data(timeline), "\n".join(lines))


def _about(schedule: ActionTable, timeline: Timeline) -> list[str]:
    """Return the lines between the table and the bounds."""
    lines = []
    counted = "(stage, microbatch) pairs"
    if timeline.pairs_per_microbatch:
        counted = ONE_UNIT
    lines.append(f"busy and idle times in {timeline.unit}; activations in {counted}")
    if schedule.num_stages > schedule.num_ranks:
        lines.append("the costs apply to each stage of a rank")
    if timeline.num_steps > 1:
        time = f"{timeline.time_of_further_step:g} {timeline.unit}"
        lines.append(f"each step after the first takes {time}")
    lines.append(path_text(timeline))
    bubble = f"bubble {100 * timeline.bubble_fraction:.1f} % of all time"
    ideal = f"{100 * timeline.bubble_over_ideal:.1f} % of the ideal time"
    span = f"{100 * timeline.span_bubble_rate:.1f} % of the longest span of a rank"
    lines.append(f"{bubble}, {ideal}, {span}")
    return lines


def _table(timeline: Timeline, sends_block: bool) -> str:
    """Return a table with a row for each rank."""
    is_seen = {IdleCause.SENDING: sends_block}
    for cause in (IdleCause.OVERHEAD, IdleCause.UPDATE):
        is_seen[cause] = any(idle[cause] for idle in timeline.idle_by_cause)
    causes = [cause for cause in IdleCause if is_seen.get(cause, True)]
    pairs = timeline.pairs_per_microbatch or 1
    peaks = [peak / pairs for peak in timeline.peak_activations]
    memory = timeline.peak_memory or [0.0] * timeline.num_ranks
    write = "{:g}".format
    more = {"peak activations": peaks, "peak memory": memory}
    cells = {name: list(map(write, numbers)) for name, numbers in more.items()}
    return idle_table(timeline, causes, write, cells)


def _compared(schedule: ActionTable, known: tuple[Gap, ...]) -> list[str]:
    """Compare the makespan and the longest span of a rank with the best possible for
    the memory of the schedule.
    """
    if not known:
        return []
    makespan, span = known
    limited = f"with memory {makespan.workload.memory_limit[0]:g} per rank"
    if ActionKind.BACKWARD in schedule.kinds:
        limited += ", whether backwards are split or not,"
    below = f"{limited} no makespan is below {makespan.bound.value:.12g}"
    return [
        f"longest span of a rank: {_above(span)} the best possible for this memory",
        f"makespan: {_above(makespan)} the best possible for this memory",
        f"{below}: {makespan.bound.reason}",
    ]


def _above(gap: Gap) -> str:
    if gap.relative > ROUNDING:
        return f"at most {100 * gap.relative:.3g} % above"
    if gap.bound.name == GALLERY:
        return "recorded in the gallery as"
    return "proved to be"
