"""The actions of one rank, step by step: each with the time since when its input was
awaited, and when its messages were sent and arrived.

A range of PyTorch begins with the wait for its input, so an action begins when its
message has arrived::

    PP:1RECV_F0  |==|                          the receive is posted
    gloo:recv      |- - - - - - - ->|          and ends when the rank takes the message
    PP:1F0          |...............|=====|    the range: a wait, and then the forward

A range may have all of this inside, as in PyTorch's GPipe::

    Forward 0  |...............|=====|- - |    a wait, the forward, and a send
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf
from statistics import median
from typing import NamedTuple

from minipipe.core.schedules.action import Action, ActionKind, Slice
from minipipe.core.schedules.analysis.dependencies import Transfer
from minipipe.errors import Code, ScheduleError
from minipipe.trace.recording import Lane, Range


class Ran(NamedTuple):
    """An action as it ran.

    Attributes
    ----------
    action : Action
    awaited_from : float
        When its rank began to wait for its input; the start of its range.
    start, end : float
        In seconds. Both actions of an overlapped pair have the same, unless the second
        one waited for a message.
    sent : float or None
        When the message with its result was sent, if there was one.
    arrived : float or None
        When the rank took the message with its input, if there was one.
    is_joined : bool
        Whether the next action of the row overlaps with this one.
    """

    action: Action
    awaited_from: float
    start: float
    end: float
    sent: float | None = None
    arrived: float | None = None
    is_joined: bool = False


def steps_of(lane: Lane, rank: int) -> list[list[Ran]]:
    """Return the actions of each complete training step of a rank.

    The actions of one step repeat in the same order. A step that began before the
    recording, or had not ended with it, is left out.

    Parameters
    ----------
    lane : Lane
    rank : int
        The stage of labels without one.

    Raises
    ------
    ScheduleError
        Code ``order``, if the actions do not repeat.
    """
    ran = _one_after_another(_apart(_actions(lane, rank)))
    length = len({it.action for it in ran})
    actions = [it.action for it in ran]
    begin = _first_of_a_step(actions[:length])
    ends = range(begin + length, len(ran) + 1, length)
    steps = [ran[end - length : end] for end in ends]
    for before, after in pairwise(steps):
        rows = [[it.action for it in step] for step in (before, after)]
        if rows[0] != rows[1]:
            pairs = enumerate(zip(*rows))
            at, (one, other) = next((i, it) for i, it in pairs if it[0] != it[1])
            problem = f"The steps of rank {lane.rank} differ: action {at} is {one}"
            hint = "record training steps of one schedule, without evaluation"
            message = f"{problem} in one and {other} in another; {hint}."
            raise ScheduleError.of(Code.ORDER, message)
    return steps


def _first_of_a_step(actions: Sequence[Action]) -> int:
    """Return the index at which a repeating row begins: before each backward is its
    forward, and the first microbatch is the lowest.
    """
    begins = []
    for index in range(len(actions)):
        seen = set()
        row = [*actions[index:], *actions[:index]]
        for action in row:
            if (
                action.kind.is_backward
                and (action.stage, action.microbatch) not in seen
            ):
                break
            seen.add((action.stage, action.microbatch))
        else:
            begins.append(index)
    return min(begins, key=lambda i: (_place(actions[i]), i), default=0)


def _place(action: Action) -> tuple[int, int]:
    """Return the microbatch of an action, and its slice of a sequence."""
    if isinstance(action.microbatch, Slice):
        return action.microbatch
    return action.microbatch, 0


def _actions(lane: Lane, rank: int) -> list[Ran]:
    """Return the computations of a rank, with the times of their messages."""
    ran: list[Ran] = []
    arrivals: dict[Transfer, float] = {}
    makers: dict[Transfer, int] = {}  # by value, the index of its last producer
    for it in lane.ranges:
        for action in it.label.actions[:1]:
            if not action.kind.is_communication:
                continue
            value = Transfer.carried_by(action)
            if action == value.receive:
                arrivals[value] = it.end if it.arrived is None else it.arrived
            elif value in makers:
                index = makers[value]
                ran[index] = ran[index]._replace(sent=it.start)
        for one in _computed(it, rank, arrivals):
            value_of_it = Transfer.produced_by(one.action)
            if value_of_it is not None:
                makers[value_of_it] = len(ran)
            ran.append(one)
    return ran


def _computed(it: Range, rank: int, arrivals: dict[Transfer, float]) -> Iterator[Ran]:
    """Yield the action of a range, or the two of a pair; none for a message."""
    start = it.start
    parts = []
    for action in it.label.actions:
        if action.kind.is_communication:
            return
        if action.stage < 0:
            action = action._replace(stage=rank)
        value = Transfer.consumed_by(action)
        arrived = it.arrived
        if value is not None and value in arrivals:
            arrived = arrivals.pop(value)
        if value is None:
            arrived = None
        parts.append((action, arrived))
    if parts and parts[0][1] is not None:
        start = min(max(start, parts[0][1]), it.end)
    # a send inside has its own range in other schedules: its time is not computation
    end = it.end
    if it.sent is not None and it.sent > start:
        end = it.sent
    for index, (action, arrived) in enumerate(parts):
        is_joined = index + 1 < len(parts)
        sent = it.sent
        yield Ran(action, it.start, start, end, sent, arrived, is_joined)


def overlapped(row: Sequence[Ran]) -> list[str]:
    """Return the cells of a row as PyTorch writes them."""
    cells = []
    actions = iter(row)
    for it in actions:
        cell = str(it.action)
        if it.is_joined:
            cell = f"({cell};{next(actions).action})OVERLAP_F_B"
        cells.append(cell)
    return cells


def _apart(ran: Sequence[Ran]) -> list[Ran]:
    """Return the actions of a rank with pairs taken apart if their second action took a
    message, because the wait for it is then inside of the pair.

    PyTorch runs one after the other, so the second action begins when the receive has
    ended. The first one takes as long as it does alone, and the rest is the wait::

        |=== F ===|......|===== B =====|
                  wait   arrived
    """
    alone: defaultdict[tuple[int, ActionKind], list[float]] = defaultdict(list)
    for before, it in pairwise([None, *ran]):
        if it is not None and not it.is_joined and not (before and before.is_joined):
            alone[it.action.stage, it.action.kind].append(it.end - it.start)
    result = list(ran)
    for index, (first, second) in enumerate(pairwise(ran)):
        if not first.is_joined or second.arrived is None:
            continue
        times = alone[first.action.stage, first.action.kind]
        usual = median(times or [inf])
        arrived = min(max(second.arrived, first.start), first.end)
        # in a custom function for pairs, both may begin at once
        if times and arrived - first.start < usual / 2:
            continue
        end = min(arrived, first.start + usual)
        result[index] = first._replace(end=end)
        result[index + 1] = second._replace(awaited_from=end, start=arrived)
    return result


def _one_after_another(ran: Sequence[Ran]) -> list[Ran]:
    """Return the actions of a rank without overlaps that rounding, or a nested label,
    has made.
    """
    result = list(ran)
    for index, (first, second) in enumerate(pairwise(ran)):
        if not first.is_joined and second.start < first.end:
            result[index] = first._replace(end=max(first.start, second.start))
    return result
