"""What the player should show of a timeline at a moment, told in Python, by looking at
everything there is.
"""

import re
from dataclasses import replace
from itertools import pairwise
from random import Random

from minipipe import Costs, Schedule, schedules, simulate
from minipipe.core.schedules.action import ActionKind
from minipipe.render.descriptions import (
    describe_action,
    describe_message,
    describe_wait,
    format_memory,
)
from minipipe.schedules.simulation.span import Message

F = ActionKind.FORWARD
GIVES_BACK = (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT)


def measured(timeline, seed):
    """Return a timeline as if it had happened: uneven times, and messages that were
    late.
    """
    random = Random(seed)
    late = [
        message._replace(arrived=message.arrived + random.random())
        for message in timeline.messages
    ]
    return replace(
        timeline,
        is_measured=True,
        measured_messages=tuple(Message(*m) for m in late),
        note="jittered",
    )


uneven = Costs(
    [1, 2, 1.5, 1],
    [1, 0.75, 2, 1],
    0.5,
    latency=0.25,
    activation=[1, 4, 2, 1],
    weight_activation=3,
)
in_bytes = Costs(
    0.010, 0.013, 0.007, latency=0.001, activation=3000, memory_unit="bytes", unit="s"
)
out_of_order = Schedule.from_text(
    "rank 0: 0F0 0F1 0F2 0F3 0B1 0B2 0B0 0B3", "out of order"
)
TIMELINES = {
    "out of order": simulate(out_of_order),
    "gpipe": simulate(schedules.gpipe(3, 4)),
    "1f1b, uneven, with latency": simulate(schedules.one_f_one_b(4, 8), uneven),
    "interleaved, with latency": simulate(
        schedules.interleaved_1f1b(2, 6, 3), Costs(latency=0.5)
    ),
    "zb-v": simulate(schedules.zb_v(3, 6)),
    "zb-h1 in bytes": simulate(schedules.zb_h1(4, 6), in_bytes),
    "blocking sends": simulate(
        schedules.one_f_one_b(4, 6), Costs(latency=0.5, sends_block=True)
    ),
    "forward-only": simulate(schedules.forward_only(3, 4, 1)),
    "joined actions": simulate(
        schedules.dualpipe(4, 8, joined=True), Costs(latency=0.25, overlap=0.5)
    ),
    "measured": measured(
        simulate(schedules.eager_1f1b(3, 5), Costs(1.3, 1.7, 0.9, latency=0.1)), seed=1
    ),
}


def is_exact(timeline):
    """Tell whether all its times are sums without rounding, so that a moment can be hit
    exactly.
    """
    return all(float(64 * time).is_integer() for time in events(timeline))


def events(timeline):
    """Return every time at which something begins or ends, from the start,
    ascending.
    """
    times = {timeline.start, timeline.end}
    times.update(
        time for row in timeline.spans for _, start, end in row for time in (start, end)
    )
    times.update(
        time
        for message in timeline.messages
        for time in (message.sent, message.arrived)
    )
    return sorted(time - timeline.start for time in times)


def moments(timeline, count, seed):
    """Return some moments between events and, where they can be hit, at events."""
    gaps = [
        (a + b) / 2
        for a, b in pairwise(events(timeline))
        if b - a > 1e-6 * timeline.makespan
    ]
    times = [*gaps, *events(timeline)] if is_exact(timeline) else gaps
    return sorted(Random(seed).sample(times, min(count, len(times))))


def told(timeline, time):
    """Return what should be shown at a time: for each rank a row, and the messages."""
    time += timeline.start
    messages = [
        m
        for m in timeline.messages
        if m.sent <= time < m.arrived or m.sent == time == m.arrived
    ]
    return {
        "rows": [row_of(timeline, rank, time) for rank in range(timeline.num_ranks)],
        "messages": sorted(map(describe_message, messages)),
    }


def row_of(timeline, rank, time):
    running = [
        action for action, start, end in timeline.spans[rank] if start <= time < end
    ]
    idle = [idle for idle in timeline.idle[rank] if idle.start <= time < idle.end]
    waiting = describe_wait(idle[0]) if idle else "has finished"
    holds = held(timeline, rank, time)
    joined = f", overlapped with {running[0]}" if len(running) > 1 else ""
    return {
        "doing": describe_action(running[-1]) + joined if running else waiting,
        "cause": str(idle[0].cause) if idle else "",
        "how_far": how_far(timeline, idle[0], time) if idle and idle[0].awaited else "",
        "count": len(holds) / (timeline.pairs_per_microbatch or 1),
        "holds": holds,
        "memory": memory(timeline, rank, time),
    }


def how_far(timeline, idle, time):
    for row in timeline.spans:
        for action, start, end in row:
            if action == idle.awaited:
                if time < start:
                    return f"rank {idle.source} has not reached it yet"
                return (
                    f"rank {idle.source} is running it"
                    if time < end
                    else "its message is on the way"
                )
    return ""


def held(timeline, rank, time):
    """Return the (stage, microbatch) pairs that a rank holds: from the start of F until
    the end of B or W.
    """
    row = timeline.spans[rank]
    trains = any(
        span.action.kind.is_backward for other in timeline.spans for span in other
    )
    begun = {
        (a.stage, a.microbatch): end
        for a, start, end in row
        if a.kind is F and start <= time
    }
    if not trains:
        return sorted(pair for pair, end in begun.items() if time < end)
    return sorted(
        set(begun)
        - {
            (a.stage, a.microbatch)
            for a, _, end in row
            if a.kind in GIVES_BACK and end <= time
        }
    )


def memory(timeline, rank, time):
    """Return what is held as text: during an action the more of before and after; None
    where it tells nothing.
    """
    if (
        timeline.memory in (None, timeline.held_activations)
        and timeline.peak_memory == timeline.peak_activations
    ):
        return None
    level = 0.0
    for (_, start, end), during, after in zip(
        timeline.spans[rank], timeline.memory_during[rank], timeline.memory[rank]
    ):
        if end <= time:
            level = after
        elif start <= time:
            level = during
    return format_memory(level, timeline.memory_unit)


def read_holds(text, row_stage):
    """Read what is listed as held, ``microbatches 0–3`` or ``stage 0: microbatch 4;
    stage 7: microbatches 7–9``.
    """
    pairs = []
    for part in filter(None, text.split("; ")):
        stage = re.match(r"stage (\d+): ", part)
        for run in re.sub(r"stage \d+: |microbatch(es)? ", "", part).split(", "):
            first, _, last = run.partition("\N{EN DASH}")
            numbers = range(int(first), int(last or first) + 1)
            pairs += [(int(stage[1]) if stage else row_stage, k) for k in numbers]
    return sorted(pairs)
