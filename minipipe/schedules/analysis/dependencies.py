"""Data dependencies: who produces what for whom, and when an action is ready.

Everything that follows from the order of a schedule asks here: verifier, lowering, simulator, greedy schedules, the
explanation of waits, the stepper, measured timelines and the executor. Stages depend on their neighbours. With F(s,k)
for the forward of stage s and microbatch k::

    stage s                     stage s + 1

    F(s,k) --- activation ----> F(s+1,k)         an activation: Value(s, forward, k)
      |                           |
      v                           v
    B(s,k) <---- gradient ----- B(s+1,k)         a gradient: Value(s + 1, backward, k)

A backward in halves is I, which has the place of B in this picture, and W, which depends on its I alone.

The **ready rule** has four parts, in this order. The tags are repeated where the rule is stated and where it is obeyed.

    [1] own        an event on the rank itself (of an illegal schedule perhaps on another): its F for B and I, its I for
                   W, its computation for a SEND
    [2] announces  a SEND or a RECV tells its partner that its rank has come to it
    [3] awaits     an event elsewhere: the value it consumes is available, or the partner has come to its half
    [4] completes  the event on which others depend: the value is computed, or received; where sends are buffered, it is
                   sent

In a schedule a value is available once it is computed. In a program a value between two ranks travels by message, and
SEND and RECV meet: a rendezvous, the strictest discipline of a message system. The executor is laxer, since it starts
sends and receives and waits for them later; a program without deadlock here has none there::

    F(s,k) [4] -> [1] SEND_F(s,k) [2] -----> [3] RECV_F(s+1,k)
                      SEND_F(s,k) [3] <----- [2] RECV_F(s+1,k) [4] -> [3] F(s+1,k)

File 3 of 12 on the first path through the code (README.md):
after ``schedules/action.py``, before ``schedules/analysis/lowering.py``. On a first reading, skip "the ready rule, in
numbers": it says with numbers, for speed, what the four tags say. A table, ``ActionTable``, has each rank's row of
actions.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.action_table import ActionTable

F, B, I, W = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT
SEND_F, RECV_F, SEND_B, RECV_B = ActionKind.SEND_F, ActionKind.RECV_F, ActionKind.SEND_B, ActionKind.RECV_B


class Direction(StrEnum):
    """The way of a value: activations go forward, gradients backward."""

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
        """The index of the cut between the two stages, which is that of the lower stage."""
        return min(self.stage, self.consumer_stage)

    @property
    def producer(self) -> Action:
        """The action that computes it. B stands for I where the backward is split."""
        return Action(self.stage, _KINDS[self.direction][0], self.microbatch)

    @property
    def consumer(self) -> Action:
        """The action that needs it. B stands for I where the backward is split."""
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
        stage, kind, microbatch = action
        return cls(stage, _DIRECTION[kind], microbatch) if kind in (F, B, I) else None

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


class ReadyRule(NamedTuple):
    """The ready rule of one kind of action on one stage: the events of microbatch 0, or ``NOTHING``.

    An event is a number; that of microbatch k is larger by k. The fields are explained at the top of this file.
    """

    own: int  # [1]
    announces: int  # [2]
    awaits: int  # [3]
    completes: int  # [4]


NOTHING = -1
# An event numbers (kind, direction, producing stage, microbatch), see ``_event``. Kinds count in twos: an activation
# adds 0, a gradient 1. _AT_SEND: the producer's rank has come to the SEND; _AT_RECV: the consumer's rank to the RECV.
_COMPUTED, _RECEIVED, _AT_SEND, _AT_RECV, _NEVER = 0, 2, 4, 6, 8


class Dependencies:
    """The data dependencies of a schedule or a program, legal or not.

    Parameters
    ----------
    table : Schedule or Program
    sends_are_buffered : bool
        Whether a SEND completes at once instead of meeting its RECV.

    Examples
    --------
    >>> from minipipe import schedules
    >>> dependencies = Dependencies(schedules.zb_h1(2, 2))
    >>> [str(action) for action in dependencies.of(Action.parse("0I1"))]
    ['0F1', '1I1']
    """

    def __init__(self, table: ActionTable, sends_are_buffered: bool = False) -> None:
        self.table = table
        self._sends_are_buffered = sends_are_buffered
        self._block = table.num_stages * table.num_microbatches

    # -- the ready rule, in numbers: a walk notes events in a list ------------------------------------------------

    @cached_property
    def rules(self) -> dict[ActionKind, list[ReadyRule]]:
        """By kind of action and stage, the ready rule."""
        stages = range(self.table.num_stages)
        return {kind: [self._rule(Action(stage, kind, 0)) for stage in stages] for kind in self.table.kinds}

    @property
    def num_events(self) -> int:
        """How many numbers of events there are, counted from 0."""
        largest = max((max(rule) for rules in self.rules.values() for rule in rules), default=0)
        return largest + self.table.num_microbatches

    def _rule(self, action: Action) -> ReadyRule:
        if action.kind.is_communication:
            return self._rule_of_message(action)
        stage, kind, _ = action
        activation, gradient = Value(stage, Direction.FORWARD, 0), Value(stage, Direction.BACKWARD, 0)
        if kind is W:
            return ReadyRule(self._event(_COMPUTED, gradient), NOTHING, NOTHING, NOTHING)
        consumed, produced = Value.consumed_by(action), Value.produced_by(action)
        assert consumed is not None and produced is not None
        own = NOTHING if kind is F else self._event(_COMPUTED, activation)
        awaits = self._available(consumed) if self.exists(consumed) else NOTHING
        return ReadyRule(own, NOTHING, awaits, self._event(_COMPUTED, produced))

    def _rule_of_message(self, action: Action) -> ReadyRule:
        value = Value.carried_by(action)
        if not self.exists(value):  # nobody is at the other end: it waits for ever
            return ReadyRule(NOTHING, NOTHING, _NEVER * self._block, NOTHING)
        computed, received = self._event(_COMPUTED, value), self._event(_RECEIVED, value)
        at_send, at_receive = self._event(_AT_SEND, value), self._event(_AT_RECV, value)
        if action == value.receive:
            return ReadyRule(NOTHING, NOTHING if self._sends_are_buffered else at_receive, at_send, received)
        if self._sends_are_buffered:
            return ReadyRule(computed, NOTHING, NOTHING, at_send)
        return ReadyRule(computed, at_send, at_receive, NOTHING)

    def _available(self, value: Value) -> int:
        """Return the event from which on a value can be consumed: the one place where messages make a difference."""
        return self._event(_RECEIVED if self.table.message_cuts[value.cut] else _COMPUTED, value)

    def _event(self, block: int, value: Value) -> int:
        like = block + (value.direction is Direction.BACKWARD)
        return (like * self.table.num_stages + value.stage) * self.table.num_microbatches + value.microbatch

    def action_of(self, event: int) -> Action | None:
        """Return the action of an event; B stands for I where the backward is split. None for what never happens."""
        like, place = divmod(event, self._block)
        stage, microbatch = divmod(place, self.table.num_microbatches)
        value = Value(stage, Direction.BACKWARD if like % 2 else Direction.FORWARD, microbatch)
        actions = {_COMPUTED: value.producer, _AT_SEND: value.send, _NEVER: None}
        return actions.get(like - like % 2, value.receive)

    # -- the same, one action at a time -----------------------------------------------------------------------------

    def exists(self, value: Value) -> bool:
        """Tell whether a value has both a producing and a consuming stage; of frozen ones, none needs a gradient."""
        if value.direction is Direction.BACKWARD and value.consumer_stage < self.table.first_backward_stage:
            return False
        return value.cut >= 0 and max(value.stage, value.consumer_stage) < self.table.num_stages

    def crosses_ranks(self, value: Value) -> bool:
        """Tell whether a value travels from one rank to another."""
        return self.exists(value) and self.table.crosses_ranks(value.cut)

    def of(self, action: Action) -> list[Action]:
        """Return the actions on which one depends, in the order in which they are checked.

        A SEND and its RECV depend on each other: they meet.
        """
        if action.kind is W:  # its I, also where a B stands in the schedule instead
            return [action._replace(kind=I)]
        own, _, awaits, _ = self.rules[action.kind][action.stage]
        found = [self.action_of(event + action.microbatch) for event in (own, awaits) if event >= 0]
        return [self.partner_of(action) if needed is None else self.as_written(needed) for needed in found]

    def partner_of(self, message: Action) -> Action:
        """Return the RECV of a SEND, or the SEND of a RECV, whether there is such a stage or not."""
        value = Value.carried_by(message)
        return value.receive if message == value.send else value.send

    def as_written(self, action: Action) -> Action:
        """Return the action as the table writes it: I in place of a B whose backward is split."""
        split = action._replace(kind=I)
        return split if action.kind is B and split in self.rank_of else action

    @cached_property
    def rank_of(self) -> dict[Action, int]:
        """By action, the first rank that has it."""
        rows = reversed(list(enumerate(self.table.actions)))
        return {action: rank for rank, row in rows for action in row}

    def home_of(self, action: Action) -> int | None:
        """Return the rank of an action; of a missing one that of its stage, and None where there is no such stage."""
        placement = self.table.placement
        home = placement[action.stage] if 0 <= action.stage < len(placement) else None
        return self.rank_of.get(action, home)
