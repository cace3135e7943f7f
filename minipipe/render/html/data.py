"""What the player knows: timelines as plain lists and numbers, and its sentences with gaps for the numbers.

The script of the player computes no schedule and words no sentence: it looks up what stands here. Times are counted
from the start of their timeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from operator import attrgetter
from typing import Any, NamedTuple

from minipipe.analysis.activations import held_over_time, lifetimes
from minipipe.render.descriptions import describe_action, describe_message, describe_wait, format_memory
from minipipe.render.palette import DARK, FILL, HATCH, LIGHT, shade
from minipipe.render.panel import Panel
from minipipe.schedules.action import Action, ActionKind
from minipipe.simulation.message import Message
from minipipe.simulation.span import Idle, IdleCause
from minipipe.simulation.timeline import Timeline

__all__ = ["Hold", "holds_of", "player_data"]

_SENT = attrgetter("sent")
# What only a player says: it knows the moment.
_SENTENCES = {
    "clock": "{time} of {duration} {unit}",
    "finished": "has finished",
    "next": "then {action}",
    "howFar": {
        "ahead": "rank {source} has not come to it yet",
        "running": "rank {source} is running it",
        "done": "its message is on the way",
    },
    "held": "microbatches {listed}",
    "heldOne": "microbatch {listed}",
    "heldOfStage": "stage {stage}: microbatches {listed}",
    "heldOneOfStage": "stage {stage}: microbatch {listed}",
    "times": "from {from} to {to} {unit}, length {length}",
    "none": "none",
    "instant": "none; messages take no time here, and arrive when they are sent",
}


class Hold(NamedTuple):
    """The activations of one microbatch on one stage, and from when until when its rank holds them.

    What F computes is there from its start; B, or W where the backward is split, gives it back at its end. Where
    nothing is kept for a backward, F gives it back. ``end`` is None for what is never given back.
    """

    stage: int
    microbatch: int
    start: float
    end: float | None


def holds_of(timeline: Timeline, rank: int) -> tuple[Hold, ...]:
    """Return what a rank holds, and when, in the order in which it begins.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> holds_of(simulate(schedules.gpipe(1, 2)), rank=0)
    (Hold(stage=0, microbatch=0, start=0.0, end=4.0), Hold(stage=0, microbatch=1, start=1.0, end=6.0))
    """
    row = timeline.spans[rank]
    return tuple(
        Hold(stage, k, row[first].start, None if last is None else row[last].end)
        for stage, k, first, last in lifetimes([span.action for span in row], timeline.is_forward_only)
    )


def player_data(panels: Sequence[Panel]) -> dict[str, Any]:
    """Return all that the script of the player needs, as lists, numbers and texts that JSON can hold.

    Parameters
    ----------
    panels : sequence of Panel
        At least one; their timelines share a unit.
    """
    timelines = [panel.timeline for panel in panels]
    return {
        "unit": timelines[0].unit,
        "duration": max(timeline.makespan for timeline in timelines),
        "themes": {"light": LIGHT._asdict(), "dark": DARK._asdict()},
        "colours": _colours(panels),
        "hatches": {cause: list(hatch) for cause, hatch in HATCH.items()},
        "sentences": _sentences(),
        "panels": list(map(_panel, panels)),
    }


def _panel(panel: Panel) -> dict[str, Any]:
    timeline = panel.timeline
    places = [{span: index for index, span in enumerate(row)} for row in timeline.spans]
    return {
        "name": timeline.name,
        "memoryUnit": timeline.memory_unit,
        "ranks": [_rank(panel, rank) for rank in range(timeline.num_ranks)],
        "messages": [_message(timeline, message) for message in sorted(timeline.messages, key=_SENT)],
        "criticalPath": [[rank, places[rank][span]] for rank, span in timeline.critical_path],
    }


def _rank(panel: Panel, rank: int) -> dict[str, Any]:
    timeline, begin = panel.timeline, panel.timeline.start
    return {
        "stages": list(panel.stages[rank]),
        "namesStage": panel.names_stage(rank),
        "actions": [[*action, start - begin, end - begin] for action, start, end in timeline.spans[rank]],
        "idle": [_idle(timeline, idle) for idle in timeline.idle[rank]],
        "holds": [
            [stage, k, start - begin, None if end is None else end - begin]
            for stage, k, start, end in holds_of(timeline, rank)
        ],
        "memory": None if timeline.memory is None else list(map(list, _memory_steps(timeline, rank))),
    }


def _idle(timeline: Timeline, idle: Idle) -> list:
    """Return start, end, cause, and stage, kind, microbatch and rank of what is awaited, if that is known."""
    awaited = [] if idle.awaited is None else [*idle.awaited, idle.source]
    return [idle.start - timeline.start, idle.end - timeline.start, idle.cause, *awaited]


def _message(timeline: Timeline, message: Message) -> list:
    times = message.sent - timeline.start, message.arrived - timeline.start
    return [str(message.value), str(message.used_by), message.source, message.destination, *times]


def _memory_steps(timeline: Timeline, rank: int) -> Iterator[tuple[float, float, str]]:
    """Yield (time, memory, the same as text) at the beginning and wherever it changes."""
    assert timeline.memory is not None
    held = 0.0
    yield 0.0, held, format_memory(held, timeline.memory_unit)
    for time, level in held_over_time(timeline.spans[rank], timeline.memory[rank], timeline.is_forward_only):
        if level != held:
            yield time - timeline.start, level, format_memory(level, timeline.memory_unit)
            held = level


def _colours(panels: Sequence[Panel]) -> dict[str, list[dict[str, str]]]:
    """Return, by kind of action, the fill of each chunk."""
    most_chunks = max((len(stages) for panel in panels for stages in panel.stages), default=1)
    fills = {kind: FILL.get(kind, FILL[ActionKind.SEND_F]) for kind in ActionKind}
    return {kind: [shade(fill, chunk)._asdict() for chunk in range(most_chunks)] for kind, fill in fills.items()}


def _sentences() -> dict[str, Any]:
    """Return the sentences of :mod:`minipipe.render.descriptions`, asked with a name in braces where a number belongs."""
    gap: Any = "{source}"
    actions = {kind: _with_gaps(kind) for kind in ActionKind}
    waits = {
        f"{cause} {kind}": describe_wait(Idle(0, 0, cause, gap, action))
        for cause, (kind, action) in product(IdleCause, actions.items())
    }
    return {
        **_SENTENCES,
        "actions": {kind: describe_action(action) for kind, action in actions.items()},
        "waits": {**waits, **{cause: describe_wait(Idle(0, 0, cause)) for cause in IdleCause}},
        "message": _message_sentence(),
    }


def _with_gaps(kind: ActionKind) -> Action:
    gaps: Any = ("{stage}", kind, "{microbatch}")
    return Action(*gaps)


def _message_sentence() -> str:
    gaps: Any = ("{value}", "{usedBy}", "{source}", "{destination}", 0.0, 0.0)
    return describe_message(Message(*gaps))
