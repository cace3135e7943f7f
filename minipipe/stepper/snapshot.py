"""What is seen at one moment of a walk through a schedule."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from minipipe.schedules.action import Action
from minipipe.simulation.message import Message
from minipipe.simulation.span import IdleCause

__all__ = ["Activity", "Event", "RankState", "Snapshot"]


class Event(NamedTuple):
    """One action that runs: on which rank, at which place of its list, and when."""

    rank: int
    position: int
    action: Action
    start: float
    end: float


class Activity(StrEnum):
    """What a rank is about."""

    RUNS = "runs"
    BEGINS = "begins"  # at this very time, but a later step
    WAITS = "waits"
    STUCK = "stuck"  # it waits, and nothing will come any more
    DONE = "done"


class RankState(NamedTuple):
    """What one rank is about at one moment.

    Attributes
    ----------
    activity : Activity
    action : Action or None
        What it runs, or what it will do next; None when it has done everything.
    position : int
        The place of that action in its list.
    until : float or None
        When the action ends, or when the wait does; None where that never happens.
    cause : IdleCause or None
        Why it computes nothing, where it waits, sends or is done.
    source : int or None
        The rank that it waits for.
    awaited : Action or None
        What it waits for there. Of a SEND that runs: the RECV that the other rank has not come to.
    held : tuple of (int, int)
        The (stage, microbatch) pairs whose activations it holds: each from the start of its F until the end of its B,
        or of its W where that is split.
    memory : float
        What they take, in the memory unit of the costs.
    """

    activity: Activity
    action: Action | None
    position: int
    until: float | None
    cause: IdleCause | None
    source: int | None
    awaited: Action | None
    held: tuple[tuple[int, int], ...]
    memory: float


class Snapshot(NamedTuple):
    """Everything at one moment: just after an action has begun, before the first one, or after the last.

    Attributes
    ----------
    number : int
        0 before anything has begun, ``i`` once the ``i``-th action has.
    time : float
    event : Event or None
        The action that has just begun.
    ranks : tuple of RankState
    messages : tuple of Message
        Those that are on their way, and those that have arrived and are not yet used.
    """

    number: int
    time: float
    event: Event | None
    ranks: tuple[RankState, ...]
    messages: tuple[Message, ...]
