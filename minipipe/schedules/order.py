"""The one walk through a schedule in dependency order; verifier, lowering, simulator and tick grid are its callers.

What must come before what (``F(s,k)`` is stage s, forward, microbatch k):

    F(s,k)          after F(s-1,k)                         the activation
    B(s,k), I(s,k)  after F(s,k), and after B or I(s+1,k)  the gradient
    W(s,k)          after I(s,k)
    every action    after the one before it on its rank

In a program that already holds SEND and RECV, what comes from another rank comes through its RECV, and a SEND and
its RECV meet: each is done once both are reached (a rendezvous, the strictest a message system may be).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from minipipe.errors import Problem, ScheduleError
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.schedule import Schedule, check_range

__all__ = ["Blocked", "Walk", "complete_walk", "tick_grid", "walk"]

F, B, I, W = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT
SEND_F, RECV_F, SEND_B, RECV_B = ActionKind.SEND_F, ActionKind.RECV_F, ActionKind.SEND_B, ActionKind.RECV_B

_VALUE_OF = {SEND_F: F, SEND_B: B}
# An event is the end of an action: its block of numbers, then (stage, microbatch) within it. B and I both end with
# the gradient of the stage's input, so they share a block. Nothing waits for W. The last four blocks say that a rank
# has come to a SEND or RECV.
_BLOCKS = (F, B, SEND_F, RECV_F, SEND_B, RECV_B, SEND_F, RECV_F, SEND_B, RECV_B)
_BLOCK_OF = {F: 0, B: 1, I: 1, SEND_F: 2, RECV_F: 3, SEND_B: 4, RECV_B: 5}
_TO_REACHED = 4
_NOTHING = -1


class Blocked(NamedTuple):
    """A rank that can go no further, and the action it waits for."""

    rank: int
    position: int
    action: Action
    awaited: Action


class Walk(NamedTuple):
    """What ran, and who was left, if the schedule cannot end.

    Attributes
    ----------
    schedule : Schedule
    rounds : list of list of int
        The ranks that run their next action in each round, ascending.
    blocked : list of Blocked
    """

    schedule: Schedule
    rounds: list[list[int]]
    blocked: list[Blocked]

    def order(self) -> Iterator[tuple[int, Action]]:
        """Yield (rank, action) in the one global order: round after round, in each the lowest rank first."""
        heads = [iter(row).__next__ for row in self.schedule.actions]
        for ranks in self.rounds:
            for rank in ranks:
                yield rank, heads[rank]()


def walk(schedule: Schedule, sends_are_buffered: bool = False) -> Walk:
    """Walk through a schedule: in each round, every rank whose next action is ready runs it, lowest rank first.

    Ready means ready given the rounds before. Local; no messages. Time is linear in the number of actions: each rank
    runs as far as it can, and one that waits is looked at again only when what it waits for has happened. A schedule
    is walked through once, whoever asks.

    Parameters
    ----------
    schedule : Schedule
        With or without SEND and RECV.
    sends_are_buffered : bool
        Whether a SEND ends at once instead of meeting its RECV.

    Returns
    -------
    Walk

    Raises
    ------
    ScheduleError
        Code ``out-of-range``, where an action names a stage or a microbatch that is not there; ``missing``, where
        nearly everything is.
    """
    found = schedule._walks.get(sends_are_buffered)
    if found is None:
        check_range(schedule)
        found = schedule._walks[sends_are_buffered] = _Walker(schedule, sends_are_buffered).walk()
        if not schedule.has_communication:  # there is no SEND that could be buffered
            schedule._walks[not sends_are_buffered] = found
    return Walk(schedule, *found)


def complete_walk(schedule: Schedule, sends_are_buffered: bool = False) -> Walk:
    """Return the walk of a schedule that ends; parameters are those of :func:`walk`.

    Raises
    ------
    ScheduleError
        Code ``deadlock``, when it cannot end; :func:`minipipe.verify` says why.
    """
    steps = walk(schedule, sends_are_buffered)
    if steps.blocked:
        stuck = steps.blocked[0]
        message = f"{stuck.action} on rank {stuck.rank} waits for ever for {stuck.awaited}; verify(schedule) says why."
        raise ScheduleError([Problem("deadlock", message, stuck.rank, stuck.position)])
    return steps


def tick_grid(schedule: Schedule) -> tuple[tuple[Action | None, ...], ...]:
    """Return one row for each rank and in it one cell for each tick: an action, or None where the rank is idle.

    Every action takes one tick, whatever its kind, and runs as early as it can; SEND and RECV are left out.

    Raises
    ------
    ScheduleError
        Code ``deadlock``, when the schedule cannot run to its end.

    Examples
    --------
    >>> from minipipe import schedules
    >>> for row in tick_grid(schedules.gpipe(2, 2)):
    ...     print(*(cell or "---" for cell in row))
    0F0 0F1 --- --- 0B0 0B1
    --- 1F0 1F1 1B0 1B1 ---
    """
    schedule = schedule.without_communication()
    rounds = complete_walk(schedule).rounds
    grid: list[list[Action | None]] = [[None] * len(rounds) for _ in schedule.actions]
    heads = [iter(row) for row in schedule.actions]
    for tick, ranks in enumerate(rounds):
        for rank in ranks:
            grid[rank][tick] = next(heads[rank])
    return tuple(map(tuple, grid))


class _Walker:
    """Runs each rank as far as it can. The round of an action is one more than the latest round it depends on.

    Rounds are counted from 1, so that 0 means: has not happened.
    """

    def __init__(self, schedule: Schedule, sends_are_buffered: bool) -> None:
        self.schedule = schedule
        self.sends_are_buffered = sends_are_buffered
        self.size = schedule.num_stages * schedule.num_microbatches
        self.happened = [0] * (self.size * (len(_BLOCKS) if schedule.has_communication else 2))
        self.position = [0] * schedule.num_ranks
        self.now = [0] * schedule.num_ranks
        self.waiting: dict[int, list[int]] = {}  # event: the ranks that wait for it
        self.rounds: list[list[int]] = []
        self.input_of, self.gradient_of = self.sources()

    def sources(self) -> tuple[list[int], list[int]]:
        """Return, by stage, the event (at microbatch 0) that brings its input and the one that brings its gradient."""
        schedule, stages = self.schedule, self.schedule.num_stages
        inputs, gradients = [], []
        for s in range(stages):
            is_received = schedule.has_communication and s > 0 and schedule.crosses_ranks(s - 1)
            inputs.append(_NOTHING if s == 0 else self.event(s, RECV_F) if is_received else self.event(s - 1, F))
            is_received = schedule.has_communication and schedule.crosses_ranks(s)
            gradients.append(
                _NOTHING if s == stages - 1 else self.event(s, RECV_B) if is_received else self.event(s + 1, B)
            )
        return inputs, gradients

    def event(self, stage: int, kind: ActionKind, microbatch: int = 0) -> int:
        return _BLOCK_OF[kind] * self.size + stage * self.schedule.num_microbatches + microbatch

    def action_of(self, event: int) -> Action:
        block, place = divmod(event, self.size)
        stage, microbatch = divmod(place, self.schedule.num_microbatches)
        return Action(stage, _BLOCKS[block], microbatch)

    def walk(self) -> tuple[list[list[int]], list[Blocked]]:
        ready = list(range(self.schedule.num_ranks))[::-1]
        while ready:
            ready += self.run(ready.pop())
        for ranks in self.rounds:
            ranks.sort()
        return self.rounds, self.blocked()

    def run(self, rank: int) -> list[int]:
        """Run a rank as far as it can; return the ranks that can go on because of it. The hot loop of the tower."""
        happened, waiting, rounds, size = self.happened, self.waiting, self.rounds, self.size
        input_of, gradient_of, m = self.input_of, self.gradient_of, self.schedule.num_microbatches
        woken: list[int] = []
        now, position = self.now[rank], self.position[rank]
        row = self.schedule.actions[rank]
        while position < len(row):
            stage, kind, k = row[position]
            place = event = stage * m + k
            if kind is F:
                needed = input_of[stage]
                if needed >= 0:
                    needed += k
            elif kind is W:
                needed, event = size + place, _NOTHING
            elif kind is B or kind is I:
                event = size + place
                needed = gradient_of[stage]
                if needed < 0 or not happened[place]:
                    needed = place
                else:
                    needed += k
            else:
                needed, event = self.meet(Action(stage, kind, k), now, woken)
            if needed >= 0:
                before = happened[needed]
                if not before:
                    waiting.setdefault(needed, []).append(rank)
                    break
                now = max(now, before)
            now += 1
            position += 1
            if now > len(rounds):
                rounds.append([])
            rounds[now - 1].append(rank)
            if event >= 0:
                happened[event] = now
                if event in waiting:
                    woken += waiting.pop(event)
        self.now[rank], self.position[rank] = now, position
        return woken

    def meet(self, action: Action, now: int, woken: list[int]) -> tuple[int, int]:
        """Come to a SEND or RECV: say so, and return the event that it waits for, and its own.

        Each half of a message waits until the other one is reached, and both run in the same round.
        """
        stage, kind, k = action
        own = self.event(stage, kind, k)
        other = action.partner
        if not 0 <= other.stage < self.schedule.num_stages:
            return own, own  # nobody is there: it waits for ever
        if kind in _VALUE_OF:
            value = self.event(stage, _VALUE_OF[kind], k)
            if not self.happened[value] or self.sends_are_buffered:
                return value, own
        partner = self.event(*other)
        if self.sends_are_buffered:
            return partner, own
        here = own + _TO_REACHED * self.size
        self.happened[here] = max(now, 1)
        woken += self.waiting.pop(here, ())
        return partner + _TO_REACHED * self.size, own

    def blocked(self) -> list[Blocked]:
        stuck = []
        for event, ranks in self.waiting.items():
            for rank in ranks:
                step = self.position[rank]
                stuck.append(Blocked(rank, step, self.schedule.actions[rank][step], self.action_of(event)))
        return sorted(stuck)
