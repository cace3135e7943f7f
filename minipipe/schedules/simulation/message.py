"""A message: a value in flight from one rank to another."""

from __future__ import annotations

from typing import NamedTuple

from minipipe.schedules.action import Action


class Message(NamedTuple):
    """The message of one value: an activation after F, a gradient after B or I.

    Attributes
    ----------
    value : Action
        The producer, whose result it carries.
    used_by : Action
        The consumer, on the other rank.
    source, destination : int
        Ranks.
    sent, arrived : float
        In the unit of its timeline. A measured message has arrived when its receiver took it, which may be long after
        it was delivered.
    was_awaited : bool
        Whether the receiver was waiting when it was sent, so that ``arrived`` tells the time in flight.
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
