"""The snapshots of a walk as output: as text for people, or as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.render.stepper.description import draw_snapshot
from minipipe.render.stepper.snapshot import RankState, Snapshot
from minipipe.render.stepper.walkthrough import Walkthrough
from minipipe.schedules.simulation.timeline import Message


def chosen_snapshots(
    walkthrough: Walkthrough, first: int | None = None, last: int | None = None, at: int | None = None
) -> range:
    """Return the numbers of the requested snapshots.

    Parameters
    ----------
    walkthrough : Walkthrough
    first, last : int, optional
        By default the first and the last snapshot. Both are included.
    at : int, optional
        A single snapshot. Negative numbers count from the end.

    Raises
    ------
    ScheduleError
        Code ``parameters``, if a number is out of range, or if ``at`` is combined with ``first`` or ``last``.

    Examples
    --------
    >>> from minipipe import schedules
    >>> walkthrough = Walkthrough(schedules.gpipe(2, 1))
    >>> chosen_snapshots(walkthrough, first=2), chosen_snapshots(walkthrough, at=-1)
    (range(2, 6), range(5, 6))
    """
    if at is not None and (first, last) != (None, None):
        raise ScheduleError.of(
            ScheduleCode.PARAMETERS, "--at shows one step, --from and --to several; choose one of the two."
        )
    count, bounds = len(walkthrough), []
    for option, given, default in (
        ("--at" if at is not None else "--from", at if at is not None else first, 0),
        ("--to", at if at is not None else last, -1),
    ):
        number = default if given is None else given
        if not -count <= number < count:
            raise ScheduleError.of(
                ScheduleCode.PARAMETERS,
                f"{option} is {number}; there are steps 0 to {count - 1}, or -1 to {-count} from the end.",
            )
        bounds.append(number % count)
    return range(bounds[0], bounds[1] + 1)


def write_snapshots(walkthrough: Walkthrough, numbers: Iterable[int], as_json: bool) -> Iterator[str]:
    """Yield, for each snapshot, its text or its line of JSON."""
    for number in numbers:
        snapshot = walkthrough[number]
        yield json.dumps(snapshot_as_data(walkthrough, snapshot)) if as_json else draw_snapshot(walkthrough, snapshot)


def snapshot_as_data(walkthrough: Walkthrough, snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot as data for JSON; the last one has the verdict."""
    event = snapshot.event
    data: dict[str, Any] = {
        "step": snapshot.number,
        "time": snapshot.time,
        "unit": walkthrough.timeline.unit,
        "event": event and {**event._asdict(), "action": str(event.action)},
        "ranks": [_state_as_data(state) for state in snapshot.ranks],
        "messages": [_message_as_data(message, snapshot.time) for message in snapshot.messages],
    }
    return {**data, "verdict": _verdict(walkthrough)} if snapshot.number == len(walkthrough) - 1 else data


def _state_as_data(state: RankState) -> dict[str, Any]:
    return {
        "doing": state.activity,
        "action": state.action and str(state.action),
        "position": state.position,
        "until": state.until,
        "cause": state.cause,
        "source": state.source,
        "awaited": state.awaited and str(state.awaited),
        "held": [list(pair) for pair in state.held],
        "memory": state.memory,
    }


def _message_as_data(message: Message, time: float) -> dict[str, Any]:
    return {
        "value": str(message.value),
        "used_by": str(message.used_by),
        "source": message.source,
        "destination": message.destination,
        "sent": message.sent,
        "arrived": message.arrived,
        "has_arrived": message.arrived <= time,
    }


def _verdict(walkthrough: Walkthrough) -> dict[str, Any]:
    verdict: dict[str, Any] = {
        "legal": walkthrough.is_legal,
        "problems": [problem._asdict() for problem in walkthrough.problems],
        "stuck": list(walkthrough.stuck),
        "cycle": list(walkthrough.cycle),
    }
    if walkthrough.is_timed:
        timeline = walkthrough.timeline
        verdict |= {
            "makespan": timeline.makespan,
            "bubble_fraction": timeline.bubble_fraction,
            "peak_activations": list(timeline.peak_activations),
            "peak_memory": list(timeline.peak_memory or ()),
        }
    return verdict
