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
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from statistics import median

from minipipe.core.schedules.action import Action, ActionKind, Slice
from minipipe.core.schedules.analysis.dependencies import Transfer
from minipipe.errors import Code, ScheduleError
from minipipe.trace.recording import Lane, Range


@dataclass(slots=True)
class Ran:
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
    is_second : bool
        Whether it overlaps with the action before it.
    """

    action: Action
    awaited_from: float
    start: float
    end: float
    sent: float | None = None
    arrived: float | None = None
    is_second: bool = False

    def move(self, by: float) -> None:
        """Move all times by some seconds."""
        for name in ("awaited_from", "start", "end", "sent", "arrived"):
            time = getattr(self, name)
            if time is not None:
                setattr(self, name, time + by)


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
        Code ``missing``, if there is no complete step; ``order``, if the actions do not
        repeat.
    """
    ran = _actions(lane, rank)
    _take_apart(ran)
    length = len({it.action for it in ran})
    begin = _first_of_a_step([it.action for it in ran[:length]])
    ends = range(begin + length, len(ran) + 1, length)
    steps = [ran[end - length : end] for end in ends]
    if not steps:
        problem = f"Rank {lane.rank} has no complete training step in {lane.file}"
        raise ScheduleError.of(Code.MISSING, f"{problem}; record at least one.")
    for at, *same in zip(range(length), *steps):
        one, *others = dict.fromkeys(it.action for it in same)
        if others:
            problem = f"The steps of rank {lane.rank} differ: action {at} is {one}"
            hint = "record training steps of one schedule, without evaluation"
            message = f"{problem} in one and {others[0]} in another; {hint}."
            raise ScheduleError.of(Code.ORDER, message)
    return steps


def _first_of_a_step(actions: Sequence[Action]) -> int:
    """Return the index at which a repeating row begins: before each backward is its
    forward, and the first microbatch is the lowest.
    """
    begins = []
    for index in range(len(actions)):
        seen = set()
        for stage, kind, microbatch in (*actions[index:], *actions[:index]):
            if kind.is_backward and (stage, microbatch) not in seen:
                break
            seen.add((stage, microbatch))
        else:
            begins.append(index)
    return min(begins, key=lambda index: (_place(actions[index]), index), default=0)


def _place(action: Action) -> tuple[int, int]:
    """Return the microbatch of an action, and its slice of a sequence."""
    if isinstance(action.microbatch, Slice):
        return action.microbatch
    return action.microbatch, 0


def _actions(lane: Lane, rank: int) -> list[Ran]:
    """Return the computations of a rank, with the times of their messages."""
    ran: list[Ran] = []
    arrivals: dict[Transfer, float] = {}
    makers: dict[Transfer | None, Ran] = {}  # by value, its last producer
    for it in lane.ranges:
        if it.computes:
            for one in _computed(it, rank, arrivals):
                makers[Transfer.produced_by(one.action)] = one
                ran.append(one)
        elif it.label.actions:
            message = it.label.actions[0]
            value = Transfer.carried_by(message)
            if message == value.receive:
                arrivals[value] = it.end if it.arrived is None else it.arrived
            elif value in makers:
                makers[value].sent = it.start
    return ran


def _computed(it: Range, rank: int, arrivals: dict[Transfer, float]) -> Iterator[Ran]:
    """Yield the action of a range, or the two of a pair."""
    first: Ran | None = None
    for action in it.label.actions:
        if action.stage < 0:
            action = action._replace(stage=rank)
        one = Ran(action, it.start, it.start, it.end, it.sent)
        value = Transfer.consumed_by(action)
        if value is not None:
            one.arrived = arrivals.pop(value, it.arrived)
        if first is not None:
            one.start = first.start
            one.is_second = True
        elif one.arrived is not None:
            one.start = min(max(it.start, one.arrived), it.end)
        # a send inside has its own range in other schedules: its time is not computation
        if it.sent is not None and it.sent > one.start:
            one.end = it.sent
        first = one
        yield one


def _take_apart(ran: Sequence[Ran]) -> None:
    """Separate pairs whose second action took a message, because the wait for it is
    inside of the pair, and actions that overlap by rounding or a nested label.

    PyTorch runs one after the other, so the second action begins when the receive has
    ended. The first one takes as long as it does alone, and the rest is the wait::

        |=== F ===|......|===== B =====|
                  wait   arrived
    """
    alone: defaultdict[tuple[int, ActionKind], list[float]] = defaultdict(list)
    pairs = {id(it) for pair in pairwise(ran) if pair[1].is_second for it in pair}
    for it in ran:
        if id(it) not in pairs:
            alone[it.action.stage, it.action.kind].append(it.end - it.start)
    for first, second in pairwise(ran):
        times = alone[first.action.stage, first.action.kind]
        if second.is_second and second.arrived is not None:
            usual = median(times or [inf])
            arrived = min(max(second.arrived, first.start), first.end)
            # in a custom function for pairs, both may begin at once
            if not times or arrived - first.start >= usual / 2:
                first.end = min(arrived, first.start + usual)
                second.awaited_from = first.end
                second.start = arrived
        if not second.is_second and second.start < first.end:
            first.end = max(first.start, second.start)
