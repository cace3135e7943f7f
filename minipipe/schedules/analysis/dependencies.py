"""Data dependencies: which action produces a value, which one consumes it, and when an action is ready.

Every analysis of a schedule's order asks here: verifier, lowering, simulator, greedy schedules, the explanation of
waits, the stepper, measured timelines and the executor. Stages depend on their neighbours. With F(s,k) for the forward
of stage s and microbatch k::

    stage s                     stage s + 1

    F(s,k) --- activation ----> F(s+1,k)         an activation: Value(s, forward, k)
      |                           |
      v                           v
    B(s,k) <---- gradient ----- B(s+1,k)         a gradient: Value(s + 1, backward, k)

A split backward has an I at the place of B in this picture, and a W, which depends on its I alone.

The **ready rule** has four parts, in this order. [1] and [3] are computed below; ``analysis/walk.py`` obeys all four.

    [1] own        needed on the rank itself: the F of a B or I, the I of a W, the computation of a SEND
    [2] announces  a SEND or a RECV tells its partner that its rank has reached it
    [3] awaits     needed from elsewhere: the consumed value is available, or the partner is reached
    [4] completes  for its dependents: the value is computed or received; a buffered SEND completes as soon as it runs

A forward that is overlapped with the backward after it (``ActionTable.joined``) also needs the inputs of the backward,
[1] and [3] of both; both complete in one round.

A schedule has computations only, and a value is available once it is computed. A **program** is a lowered schedule: it
also has SEND and RECV, and a value between two ranks travels by message. Programs are checked with the strictest rule,
a rendezvous: a SEND blocks until its RECV. The executor does not block at a SEND, so a program without deadlock under
this rule has none in the executor::

    F(s,k) [4] -> [1] SEND_F(s,k) [2] -----> [3] RECV_F(s+1,k)
                      SEND_F(s,k) [3] <----- [2] RECV_F(s+1,k) [4] -> [3] F(s+1,k)

File 3 of 12 on the first path through the code (README.md):
after ``schedules/action.py``, before ``schedules/analysis/lowering.py``. A table, ``ActionTable``, has each rank's row
of actions.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from minipipe.schedules.action import RECV_B, RECV_F, REDUCE_GRAD, SEND_B, SEND_F, Action, B, F, I, U, W
from minipipe.schedules.action_table import ActionTable


class Direction(StrEnum):
    """The direction of a value: activations go forward, gradients backward."""

    FORWARD = "forward"
    BACKWARD = "backward"


# By direction, the kinds of action that compute a value, send it and receive it; by kind, the direction of its value.
_KINDS = {Direction.FORWARD: (F, SEND_F, RECV_F), Direction.BACKWARD: (B, SEND_B, RECV_B)}
_DIRECTION = {kind: direction for direction, kinds in _KINDS.items() for kind in kinds} | {I: Direction.BACKWARD}


class Value(NamedTuple):
    """An activation or a gradient that one stage produces for its neighbour.

    Attributes
    ----------
    stage : int
        The stage that produces it.
    direction : Direction
        ``FORWARD`` for an activation, for the next stage; ``BACKWARD`` for a gradient, for the stage before.
    microbatch : int

    Examples
    --------
    >>> gradient = Value(2, Direction.BACKWARD, 5)
    >>> print(gradient.producer, gradient.consumer, gradient.send, gradient.receive)
    2B5 1B5 2SEND_B5 1RECV_B5
    """

    stage: int
    direction: Direction
    microbatch: int

    @property
    def consumer_stage(self) -> int:
        """The stage that consumes it. It may not exist: the last stage has no next one."""
        return self.stage + 1 if self.direction is Direction.FORWARD else self.stage - 1

    @property
    def cut(self) -> int:
        """The index of the boundary between the two stages, which is the index of the lower stage."""
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
    def produced_by(cls, action: Action) -> Value | None:
        """Return the value that an action computes; None for W, SEND and RECV."""
        return cls(action.stage, _DIRECTION[action.kind], action.microbatch) if action.kind in (F, B, I) else None

    @classmethod
    def consumed_by(cls, action: Action) -> Value | None:
        """Return the value that an action needs from a neighbouring stage; None for W, SEND and RECV."""
        stage, kind, microbatch = action
        return cls(stage - 1 if kind is F else stage + 1, _DIRECTION[kind], microbatch) if kind in (F, B, I) else None

    @classmethod
    def carried_by(cls, message: Action) -> Value:
        """Return the value that a SEND or a RECV carries."""
        stage, kind, microbatch = message
        return cls({RECV_F: stage - 1, RECV_B: stage + 1}.get(kind, stage), _DIRECTION[kind], microbatch)


class Dependencies:
    """The data dependencies of a schedule or a program, legal or not.

    ``sends_are_buffered`` tells whether a SEND completes at once instead of meeting its RECV.

    Examples
    --------
    >>> from minipipe import schedules
    >>> dependencies = Dependencies(schedules.zb_h1(2, 2))
    >>> [str(action) for action in dependencies.of(Action.parse("0I1"))]
    ['0F1', '1I1']
    """

    def __init__(self, table: ActionTable, sends_are_buffered: bool = False) -> None:
        self.table = table
        self.sends_are_buffered = sends_are_buffered

    def own(self, action: Action) -> Action | None:  # [1]
        """Return the dependency on the same rank. B stands for I if the backward is split."""
        stage, kind, k = action
        if kind.is_communication:
            value = Value.carried_by(action)
            return value.producer if action == value.send and self.exists(value) else None
        return Action(stage, I if kind is W else F, k) if kind in (B, I, W) else None

    def awaited(self, action: Action) -> Action | None:  # [3]
        """Return the dependency elsewhere: the producer of the consumed value, its RECV, or a message's partner.

        A U awaits the REDUCE_GRAD of the same gradients, whose sum ends later; `replicas.py` says which of them meet.
        """
        if action.kind.is_communication:
            value = Value.carried_by(action)
            is_sent_at_once = self.sends_are_buffered and action == value.send and self.exists(value)
            return None if is_sent_at_once else self.partner_of(action)
        if action.kind is U and len(self.table.ranks_of(action.stage)) > 1:
            return action._replace(kind=REDUCE_GRAD)
        consumed = Value.consumed_by(action)
        if consumed is None or not self.exists(consumed):
            return None
        return consumed.receive if self.table.message_cuts[consumed.cut] else consumed.producer

    def exists(self, value: Value) -> bool:
        """Whether a value has a producing and a consuming stage; frozen stages need no gradient."""
        if value.direction is Direction.BACKWARD and value.consumer_stage < self.table.first_backward_stage:
            return False
        return value.cut >= 0 and max(value.stage, value.consumer_stage) < self.table.num_stages

    def crosses_ranks(self, value: Value) -> bool:
        """Whether a value travels from one rank to another."""
        return self.exists(value) and self.table.crosses_ranks(value.cut)

    def of(self, action: Action) -> list[Action]:
        """Return the actions on which one depends, in the order in which they are checked.

        A SEND and its RECV depend on each other: they meet.
        """
        return [self.table.as_written(needed) for needed in (self.own(action), self.awaited(action)) if needed]

    def partner_of(self, message: Action) -> Action:
        """Return the RECV of a SEND, or the SEND of a RECV, even of a stage that does not exist."""
        value = Value.carried_by(message)
        return value.receive if message == value.send else value.send
