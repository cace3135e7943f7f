"""A snapshot of a walk through a schedule: an event, the states of the ranks, and the messages."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from minipipe.schedules.action import Action
from minipipe.schedules.simulation.timeline import IdleCause, Message


class Event(NamedTuple):
    """The execution of one action: its rank, its position in the rank's list, its start and its end."""

    rank: int
    position: int
    action: Action
    start: float
    end: float


class Activity(StrEnum):
    """The activity of a rank."""

    RUNS = "runs"
    BEGINS = "begins"  # at the same time, but in a later snapshot
    WAITS = "waits"
    STUCK = "stuck"  # it waits for ever
    DONE = "done"


class RankState(NamedTuple):
    """The state of one rank in a snapshot.

    Attributes
    ----------
    activity : Activity
    action : Action or None
        The action that runs, or the next one; None after the last.
    position : int
        The position of that action in the rank's list.
    until : float or None
        The end of the action or of the wait; None if it never ends.
    cause : IdleCause or None
        The cause of idle time, if the rank waits, sends or is done.
    source : int or None
        The rank that is waited for.
    awaited : Action or None
        The action of that rank that is waited for. For a SEND that runs, the RECV that the receiver has not reached.
    held : tuple of (int, int)
        The (stage, microbatch) pairs whose activations are held, each from the start of its F until the end of its B,
        or of its W if the backward is split.
    memory : float
        The memory of these activations, in the memory unit of the costs.
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
    """The state of all ranks and messages before the first action, at the start of an action, or after the last.

    Attributes
    ----------
    number : int
        0 before the first action, ``i`` at the start of the ``i``-th action.
    time : float
    event : Event or None
        The action that has just begun.
    ranks : tuple of RankState
    messages : tuple of Message
        The messages in flight, and those that are delivered but not yet consumed.
    """

    number: int
    time: float
    event: Event | None
    ranks: tuple[RankState, ...]
    messages: tuple[Message, ...]
