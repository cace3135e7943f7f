"""The transfers between stages: which action produces an activation or a gradient,
which action consumes it, and which messages carry it.

The executor, its records and their readers name transfers in this way. Any values that
instructions leave for each other are in ``core/values.py``. With F(s,k) for the forward
of stage s and microbatch k::

    stage s                     stage s + 1

    F(s,k) --- activation ----> F(s+1,k)         Transfer(s, forward, k)
      |                           |
      v                           v
    B(s,k) <---- gradient ----- B(s+1,k)         Transfer(s + 1, backward, k)

A split backward has an I at the place of B in this picture, and a W, which depends on
its I alone.

A schedule has computations only, and a value is available once it is computed. A
**program** is a lowered schedule: it also has SEND and RECV, and a value between two
ranks travels by message. Programs are checked with the strictest rule, a rendezvous: a
SEND blocks until its RECV. The executor does not block at a SEND, so a program without
deadlock under this rule has none in the executor::

    F(s,k) -> SEND_F(s,k) <-----> RECV_F(s+1,k) -> F(s+1,k)

``core/values.py`` declares which values every kind of action takes and gives, and
``core/order.py`` finds the order in which they can run.

File 3 of 13 on the first path through the code (README.md): after
``core/schedules/action.py``, before ``core/schedules/analysis/lowering.py``. A table,
``ActionTable``, has each rank's row of actions.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from minipipe.core.schedules.action import (
    RECV_B,
    RECV_F,
    SEND_B,
    SEND_F,
    Action,
    B,
    F,
    I,
)


class Direction(StrEnum):
    """The direction of a value: activations go forward, gradients backward."""

    FORWARD = "forward"
    BACKWARD = "backward"


# By direction, the kinds of action that compute a value, send it and receive it; by
# kind, the direction of its value.
_KINDS = {
    Direction.FORWARD: (F, SEND_F, RECV_F),
    Direction.BACKWARD: (B, SEND_B, RECV_B),
}
_DIRECTION = {
    kind: direction for direction, kinds in _KINDS.items() for kind in kinds
} | {I: Direction.BACKWARD}


class Transfer(NamedTuple):
    """An activation or a gradient that one stage produces for its neighbour.

    Attributes
    ----------
    stage : int
        The stage that produces it.
    direction : Direction
        ``FORWARD`` for an activation, for the next stage; ``BACKWARD`` for a gradient,
        for the stage before.
    microbatch : int

    Examples
    --------
    >>> gradient = Transfer(2, Direction.BACKWARD, 5)
    >>> print(gradient.producer, gradient.consumer, gradient.send, gradient.receive)
    2B5 1B5 2SEND_B5 1RECV_B5
    """

    stage: int
    direction: Direction
    microbatch: int

    @property
    def consumer_stage(self) -> int:
        """The stage that consumes it. It may not exist: the last stage has no next
        one.
        """
        if self.direction is Direction.FORWARD:
            return self.stage + 1
        return self.stage - 1

    @property
    def cut(self) -> int:
        """The index of the boundary between the two stages, which is the index of the
        lower stage.
        """
        return min(self.stage, self.consumer_stage)

    @property
    def producer(self) -> Action:
        """The action that computes it. B stands for I if the backward is split."""
        return Action(self.stage, _KINDS[self.direction][0], self.microbatch)

    @property
    def consumer(self) -> Action:
        """The action that needs it. B stands for I if the backward is split."""
        return Action(self.consumer_stage, _KINDS[self.direction][0], self.microbatch)

    @property
    def send(self) -> Action:
        """The SEND of its message."""
        return Action(self.stage, _KINDS[self.direction][1], self.microbatch)

    @property
    def receive(self) -> Action:
        """The RECV of its message."""
        return Action(self.consumer_stage, _KINDS[self.direction][2], self.microbatch)

    @classmethod
    def produced_by(cls, action: Action) -> Transfer | None:
        """Return the value that an action computes; None for W, SEND and RECV."""
        stage, kind, microbatch = action
        if kind not in (F, B, I):
            return None
        return cls(stage, _DIRECTION[kind], microbatch)

    @classmethod
    def consumed_by(cls, action: Action) -> Transfer | None:
        """Return the value that an action needs from a neighbouring stage; None for W,
        SEND and RECV.
        """
        stage, kind, microbatch = action
        if kind not in (F, B, I):
            return None
        giver = stage - 1 if kind is F else stage + 1
        return cls(giver, _DIRECTION[kind], microbatch)

    @classmethod
    def carried_by(cls, message: Action) -> Transfer:
        """Return the value that a SEND or a RECV carries."""
        stage, kind, microbatch = message
        giver = {RECV_F: stage - 1, RECV_B: stage + 1}.get(kind, stage)
        return cls(giver, _DIRECTION[kind], microbatch)
