"""A message: a value that goes from one rank to another."""

from __future__ import annotations

from typing import NamedTuple

from minipipe.schedules.action import Action

__all__ = ["Message"]


class Message(NamedTuple):
    """A value on its way: an activation after F, a gradient after B or I.

    Attributes
    ----------
    value : Action
        The action whose result it carries.
    used_by : Action
        The action of the other rank that needs it.
    source, destination : int
        Ranks.
    sent, arrived : float
        In the unit of its timeline. A measured one has arrived when its receiver had it: if the receiver came late,
        that may be long after it lay there.
    was_awaited : bool
        Whether the receiver stood waiting when it was sent, so that ``arrived`` says how long the way takes.
    size : float or None
        In the memory unit of its timeline, where it is known.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> message = simulate(schedules.gpipe(2, 1)).messages[0]
    >>> str(message.value), str(message.used_by), message.source, message.destination, message.sent
    ('0F0', '1F0', 0, 1, 1.0)
    """

    value: Action
    used_by: Action
    source: int
    destination: int
    sent: float
    arrived: float
    was_awaited: bool = True
    size: float | None = None
