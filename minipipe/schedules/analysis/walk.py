"""The one walk through a schedule in topological order: which rank runs its next action in which round.

Verifier, lowering, simulator and stepper take their order from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.schedules.action import Action
from minipipe.schedules.action_table import ActionTable, check_range
from minipipe.schedules.analysis.dependencies import Dependencies


class Blocked(NamedTuple):
    """A rank that can go no further, and the action it waits for."""

    rank: int
    position: int
    action: Action
    awaited: Action


class Walk(NamedTuple):
    """The actions that ran, and the ranks that were left, if the schedule cannot end.

    Attributes
    ----------
    table : Schedule or Program
    rounds : list of list of int
        The ranks that run their next action in each round, ascending.
    blocked : list of Blocked
    """

    table: ActionTable
    rounds: list[list[int]]
    blocked: list[Blocked]

    def order(self) -> Iterator[tuple[int, Action]]:
        """Yield (rank, action) in the one global order: round after round, in each the lowest rank first."""
        heads = [iter(row).__next__ for row in self.table.actions]  # by rank, gives its next action
        for ranks in self.rounds:
            for rank in ranks:
                yield rank, heads[rank]()


def walk(table: ActionTable, sends_are_buffered: bool = False) -> Walk:
    """Walk in topological order: in each round, every rank whose next action is ready runs it, lowest rank first.

    Ready means ready given the rounds before. Local; no messages. Time is linear in the number of actions: each rank
    runs as far as it can, and a rank that waits is looked at again only when the awaited event has happened. A table
    keeps its walks.

    Parameters
    ----------
    table : Schedule or Program
    sends_are_buffered : bool
        Whether a SEND completes at once instead of meeting its RECV.

    Returns
    -------
    Walk

    Raises
    ------
    ScheduleError
        Code ``out-of-range``, where an action names a stage or a microbatch that does not exist; ``missing``, where
        nearly all actions are.
    """
    is_buffered = sends_are_buffered and any(kind.is_communication for kind in table.kinds)
    key = "buffered walk" if is_buffered else "walk"
    if key not in table._kept:  # the cache of a table, see schedules/action_table.py
        check_range(table)
        table._kept[key] = _Walker(Dependencies(table, is_buffered)).walk()
    return Walk(table, *table._kept[key])


def complete_walk(table: ActionTable, sends_are_buffered: bool = False) -> Walk:
    """Return the walk of a schedule that ends; parameters are those of :func:`walk`.

    Raises
    ------
    ScheduleError
        Code ``deadlock``, when it cannot end; :func:`minipipe.verify` says why.
    """
    found = walk(table, sends_are_buffered)
    if found.blocked:
        stuck = found.blocked[0]
        message = f"{stuck.action} on rank {stuck.rank} waits for ever for {stuck.awaited}; verify(schedule) says why."
        raise ScheduleError.of(ScheduleCode.DEADLOCK, message, stuck.rank, stuck.position)
    return found


class _Walker:
    """Runs each rank as far as it can. The round of an action is one more than the latest round it depends on.

    Rounds are counted from 1, so that 0 means: has not happened. The tags [1] to [4] are those of `dependencies.py`.
    """

    def __init__(self, dependencies: Dependencies) -> None:
        self.dependencies, self.table = dependencies, dependencies.table
        self.happened = [0] * dependencies.num_events
        self.position = [0] * self.table.num_ranks
        self.now = [0] * self.table.num_ranks
        self.waiting: dict[int, list[int]] = {}  # event: the ranks that wait for it
        self.rounds: list[list[int]] = []

    def walk(self) -> tuple[list[list[int]], list[Blocked]]:
        ready = list(range(self.table.num_ranks))[::-1]
        while ready:
            ready += self.run(ready.pop())
        for ranks in self.rounds:
            ranks.sort()
        return self.rounds, self.blocked()

    def run(self, rank: int) -> list[int]:
        """Run a rank as far as it can; return the ranks that can go on because of it. The hot loop.

        A rank that was woken begins its action again at [1].
        """
        happened, waiting, rounds, rules = self.happened, self.waiting, self.rounds, self.dependencies.rules
        woken: list[int] = []
        now, position = self.now[rank], self.position[rank]
        row = self.table.actions[rank]
        while position < len(row):
            stage, kind, k = row[position]
            own, announces, awaits, completes = rules[kind][stage]
            if own >= 0:  # [1]
                before = happened[own + k]
                if not before:
                    waiting.setdefault(own + k, []).append(rank)
                    break
                if before > now:  # in an illegal schedule, where it is on another rank
                    now = before
            if announces >= 0:  # [2]
                happened[announces + k] = now or 1  # 0 means: not yet
                woken += waiting.pop(announces + k, ())
            if awaits >= 0:  # [3]
                before = happened[awaits + k]
                if not before:
                    waiting.setdefault(awaits + k, []).append(rank)
                    break
                if before > now:
                    now = before
            now += 1
            position += 1
            if now > len(rounds):
                rounds.append([])
            rounds[now - 1].append(rank)
            if completes >= 0 and not happened[completes + k]:  # [4]
                happened[completes + k] = now
                if completes + k in waiting:
                    woken += waiting.pop(completes + k)
        self.now[rank], self.position[rank] = now, position
        return woken

    def blocked(self) -> list[Blocked]:
        stuck = []
        for event, ranks in self.waiting.items():
            for rank in ranks:
                action = self.table.actions[rank][self.position[rank]]
                awaited = self.dependencies.action_of(event) or action
                stuck.append(Blocked(rank, self.position[rank], action, awaited))
        return sorted(stuck)
