"""The one walk through a schedule in dependency order; verifier, lowering, simulator and dry run are its callers.

What must come before what (``F(s,k)`` is stage s, forward, microbatch k):

    F(s,k)          after F(s-1,k)                        the activation
    B(s,k), I(s,k)  after F(s,k), and after B or I(s+1,k)  the gradient
    W(s,k)          after I(s,k)
    every action    after the one before it on its rank

In a program that already holds SEND and RECV, what comes from another rank comes through its RECV, and a SEND and
its RECV meet: each is done once both are reached (a rendezvous, the strictest a message system may be).
"""

from __future__ import annotations

from typing import NamedTuple

from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.schedule import Schedule

__all__ = ["Blocked", "Walk", "walk"]

F, B, I, W = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT
SEND_F, RECV_F, SEND_B, RECV_B = ActionKind.SEND_F, ActionKind.RECV_F, ActionKind.SEND_B, ActionKind.RECV_B

# The slot of each kind's event. B and I both end with the gradient of the stage's input: one event.
_EVENT = {F: 0, B: 1, I: 1, W: 2, SEND_F: 3, RECV_F: 4, SEND_B: 5, RECV_B: 6}
_KIND = {0: F, 1: B, 2: W, 3: SEND_F, 4: RECV_F, 5: SEND_B, 6: RECV_B}
_NUM_EVENTS = 7

# Where the other half of a message stands: the kind, and the stage relative to this one.
_PARTNER = {SEND_F: (RECV_F, 1), RECV_F: (SEND_F, -1), SEND_B: (RECV_B, -1), RECV_B: (SEND_B, 1)}


class Blocked(NamedTuple):
    """A rank that can go no further, and the action it waits for."""

    rank: int
    position: int
    action: Action
    awaited: Action


class Walk(NamedTuple):
    """What ran, in the one global order, as (rank, action); and who was left, if the schedule cannot end."""

    order: list[tuple[int, Action]]
    blocked: list[Blocked]


def walk(schedule: Schedule) -> Walk:
    """Walk through a schedule: in each round, every rank whose next action is ready runs it, lowest rank first.

    Ready means ready given the rounds before. Local; no messages. Time is linear in the number of actions: a rank that
    waits is looked at again only when what it waits for has happened.

    Parameters
    ----------
    schedule : Schedule
        With or without SEND and RECV. Stages and microbatches must be in range.

    Returns
    -------
    Walk
    """
    return _Walker(schedule).walk()


class _Walker:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.happened = bytearray(schedule.num_stages * schedule.num_microbatches * _NUM_EVENTS)
        self.position = [0] * schedule.num_ranks
        self.waiting: dict[int, list[int]] = {}
        # Whether stage s takes its input (its gradient) from a RECV rather than from its neighbour's action.
        lowered, stages = schedule.has_communication, range(schedule.num_stages)
        self.input_is_received = [lowered and s > 0 and schedule.crosses_ranks(s - 1) for s in stages]
        self.gradient_is_received = [lowered and schedule.crosses_ranks(s) for s in stages]

    def event(self, stage: int, kind: ActionKind, microbatch: int) -> int:
        return (stage * self.schedule.num_microbatches + microbatch) * _NUM_EVENTS + _EVENT[kind]

    def action_of(self, event: int) -> Action:
        place, kind = divmod(event, _NUM_EVENTS)
        stage, microbatch = divmod(place, self.schedule.num_microbatches)
        return Action(stage, _KIND[kind], microbatch)

    def needs(self, action: Action) -> tuple[int, ...]:
        """Return the events that must have happened before the action can run."""
        stage, kind, k = action
        if kind is F:
            if stage == 0:
                return ()
            if self.input_is_received[stage]:
                return (self.event(stage, RECV_F, k),)
            return (self.event(stage - 1, F, k),)
        if kind is B or kind is I:
            own = self.event(stage, F, k)
            if stage == self.schedule.num_stages - 1:
                return (own,)
            if self.gradient_is_received[stage]:
                return (own, self.event(stage, RECV_B, k))
            return (own, self.event(stage + 1, B, k))
        if kind is W:
            return (self.event(stage, I, k),)
        if kind is SEND_F:
            return (self.event(stage, F, k),)
        if kind is SEND_B:
            return (self.event(stage, B, k),)
        return ()

    def missing(self, action: Action) -> int | None:
        """Return the first event that the action still waits for, or None when it can run now."""
        for event in self.needs(action):
            if not self.happened[event]:
                return event
        if action.kind not in _PARTNER:
            return None
        kind, offset = _PARTNER[action.kind]
        partner = self.event(action.stage + offset, kind, action.microbatch)
        return None if self.happened[partner] else partner

    def walk(self) -> Walk:
        order: list[tuple[int, Action]] = []
        programs, position = self.schedule.actions, self.position
        candidates = list(range(self.schedule.num_ranks))
        while candidates:
            woken: list[int] = []
            ready: list[int] = []
            for rank in candidates:
                if position[rank] == len(programs[rank]):
                    continue
                action = programs[rank][position[rank]]
                missing = self.missing(action)
                if missing is None:
                    ready.append(rank)
                    continue
                self.waiting.setdefault(missing, []).append(rank)
                if action.kind in _PARTNER and all(self.happened[event] for event in self.needs(action)):
                    self.reach(action, woken)  # its half of the rendezvous is there
            for rank in ready:
                action = programs[rank][position[rank]]
                order.append((rank, action))
                position[rank] += 1
                woken.append(rank)
                self.reach(action, woken)
            candidates = sorted(set(woken))
        return Walk(order, self.blocked())

    def reach(self, action: Action, woken: list[int]) -> None:
        event = self.event(*action)
        self.happened[event] = 1
        woken += self.waiting.pop(event, ())

    def blocked(self) -> list[Blocked]:
        stuck = []
        for event, ranks in self.waiting.items():
            for rank in ranks:
                step = self.position[rank]
                stuck.append(Blocked(rank, step, self.schedule.actions[rank][step], self.action_of(event)))
        return sorted(stuck)
