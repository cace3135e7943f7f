"""``minipipe simulate``: how long does a schedule take, and who waits?"""

from __future__ import annotations

import argparse
import json

from minipipe.schedules import Timeline, simulate, verify
from minipipe.verbs.asked import costs_of, schedule_of
from minipipe.verbs.told import described, figures, table

__all__ = ["run_simulate"]

_CAUSES = ("warm-up", "waiting", "sending", "drain", "overhead")


def run_simulate(options: argparse.Namespace) -> int:
    """Print the figures of a schedule under the costs."""
    schedule = schedule_of(options)
    verify(schedule)
    timeline = simulate(schedule, costs_of(options))
    if options.json:
        path = [str(span.action) for _, span in timeline.critical_path]
        details = {"busy": list(map(timeline.busy, range(timeline.num_ranks))), "idle": _idle_by_cause(timeline)}
        print(json.dumps({**figures(schedule, timeline), **details, "critical_path": path}))
        return 0
    idle_by_cause = _idle_by_cause(timeline)
    seldom = {"sending": options.sends_block, "overhead": any(idle["overhead"] for idle in idle_by_cause)}
    causes = [cause for cause in _CAUSES if seldom.get(cause, True)]
    cells = [["rank", "busy", *causes, "peak activations", "peak memory"]]
    for rank in range(timeline.num_ranks):
        idle = [idle_by_cause[rank][cause] for cause in causes]
        memory = timeline.peak_memory[rank] if timeline.peak_memory else 0.0
        numbers = [timeline.busy(rank), *idle]
        cells.append([str(rank), *(f"{x:g}" for x in numbers), str(timeline.peak_activations[rank]), f"{memory:g}"])
    print(f"{described(schedule)}\n\n{table(cells, right=range(len(cells[0])))}\n")
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
