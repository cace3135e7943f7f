"""The data of the player: timelines as plain lists and numbers, and sentences with gaps for the numbers.

The script of the player computes no schedule and composes no sentence; it looks both up here. Times are relative to the
start of their timeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from operator import attrgetter
from typing import Any, NamedTuple

from minipipe.render.descriptions import describe_action, describe_message, describe_wait, format_memory
from minipipe.render.palette import DARK, FILL, HATCH, LIGHT, shade
from minipipe.render.panel import Panel
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.analysis.activations import lifetimes
from minipipe.schedules.simulation.timeline import Idle, IdleCause, Message, Timeline

_SENT = attrgetter("sent")
# Sentences about a moment, which only the player has.
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
    """The interval in which a rank holds the activations of one microbatch on one stage.

    It begins with the start of F. It ends with the end of B, or of W where the backward is split; in a forward-only
    schedule with the end of F. ``end`` is None for activations that are never released.
    """

    stage: int
    microbatch: int
    start: float
    end: float | None


def holds_of(timeline: Timeline, rank: int) -> tuple[Hold, ...]:
    """Return the holds of a rank, ordered by their start.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> holds_of(simulate(schedules.gpipe(1, 2)), rank=0)
    (Hold(stage=0, microbatch=0, start=0.0, end=4.0), Hold(stage=0, microbatch=1, start=1.0, end=6.0))
    """
    row = timeline.spans[rank]
    return tuple(
        Hold(stage, k, row[first].start, None if last is None else row[last].end)
        for stage, k, first, last in lifetimes([span.action for span in row])
    )


def player_data(panels: Sequence[Panel]) -> dict[str, Any]:
    """Return the data of the player as lists, numbers and texts for JSON.

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
        "pairs": panel.pairs or 1,
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
    """Return start, end and cause; if the awaited action is known, also its stage, kind, microbatch and rank."""
    awaited = [] if idle.awaited is None else [*idle.awaited, idle.source]
    return [idle.start - timeline.start, idle.end - timeline.start, idle.cause, *awaited]


def _message(timeline: Timeline, message: Message) -> list:
    times = message.sent - timeline.start, message.arrived - timeline.start
    return [str(message.value), str(message.used_by), message.source, message.destination, *times]


def _memory_steps(timeline: Timeline, rank: int) -> Iterator[tuple[float, float, str]]:
    """Yield (time, memory, memory as text) at the start and at each change."""
    assert timeline.memory is not None
    held = 0.0
    yield 0.0, held, format_memory(held, timeline.memory_unit)
    for time, level in timeline.memory_over_time(rank):
        if level != held:
            yield time - timeline.start, level, format_memory(level, timeline.memory_unit)
            held = level


def _colours(panels: Sequence[Panel]) -> dict[str, list[dict[str, str]]]:
    """Return the fills of each kind of action, by chunk."""
    most_chunks = max((len(stages) for panel in panels for stages in panel.stages), default=1)
    fills = {kind: FILL.get(kind, FILL[ActionKind.SEND_F]) for kind in ActionKind}
    return {kind: [shade(fill, chunk)._asdict() for chunk in range(most_chunks)] for kind, fill in fills.items()}


def _sentences() -> dict[str, Any]:
    """Return the sentences of :mod:`minipipe.render.descriptions` with names in braces instead of numbers."""
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
