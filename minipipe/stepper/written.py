"""The moments of a walk written one after another: as text to read and compare, or as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from minipipe.errors import Problem, ScheduleError
from minipipe.render.moment import draw_moment
from minipipe.schedules.message import Message
from minipipe.schedules.moment import Moment, RankState
from minipipe.schedules.stepping import Walkthrough

__all__ = ["chosen_moments", "moment_as_data", "write_moments"]


def chosen_moments(
    walkthrough: Walkthrough, first: int | None = None, last: int | None = None, at: int | None = None
) -> range:
    """Return the numbers of the moments that were asked for.

    Parameters
    ----------
    walkthrough : Walkthrough
    first, last : int, optional
        By default the first and the last there are; the last is among them.
    at : int, optional
        Only that one. Negative numbers count from the end.

    Raises
    ------
    ScheduleError
        Code ``parameters``, for one that is not there.

    Examples
    --------
    >>> from minipipe import schedules
    >>> walkthrough = Walkthrough(schedules.gpipe(2, 1))
    >>> chosen_moments(walkthrough, first=2), chosen_moments(walkthrough, at=-1)
    (range(2, 6), range(5, 6))
    """
    if at is not None and (first, last) != (None, None):
        raise _refused("--at shows one step, --from and --to several; choose one of the two.")
    count, bounds = len(walkthrough), []
    for option, given, default in (
        ("--at" if at is not None else "--from", at if at is not None else first, 0),
        ("--to", at if at is not None else last, -1),
    ):
        number = default if given is None else given
        if not -count <= number < count:
            raise _refused(f"{option} is {number}; there are steps 0 to {count - 1}, or -1 to {-count} from the end.")
        bounds.append(number % count)
    return range(bounds[0], bounds[1] + 1)


def write_moments(walkthrough: Walkthrough, numbers: Iterable[int], as_json: bool) -> Iterator[str]:
    """Yield, for each moment, its text or its line of JSON."""
    for number in numbers:
        moment = walkthrough[number]
        yield json.dumps(moment_as_data(walkthrough, moment)) if as_json else draw_moment(walkthrough, moment)


def moment_as_data(walkthrough: Walkthrough, moment: Moment) -> dict[str, Any]:
    """Return a moment as what JSON can hold; the last one with the verdict."""
    step = moment.step
    data: dict[str, Any] = {
        "step": moment.number,
        "time": moment.time,
        "unit": walkthrough.timeline.unit,
        "event": step and {**step._asdict(), "action": str(step.action)},
        "ranks": [_state_as_data(state) for state in moment.ranks],
        "messages": [_message_as_data(message, moment.time) for message in moment.messages],
    }
    return {**data, "verdict": _verdict(walkthrough)} if moment.number == len(walkthrough) - 1 else data


def _state_as_data(state: RankState) -> dict[str, Any]:
    actions = {"action": state.action and str(state.action), "awaited": state.awaited and str(state.awaited)}
    return {**state._asdict(), **actions, "held": [list(pair) for pair in state.held]}


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
        "circle": list(walkthrough.circle),
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


def _refused(message: str) -> ScheduleError:
    return ScheduleError([Problem("parameters", message)])
