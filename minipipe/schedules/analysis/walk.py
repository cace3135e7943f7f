"""The one walk through a schedule in topological order: which rank runs its next action in which round.

Verifier, lowering, simulator and stepper take their order from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.schedules.action import RECV_B, RECV_F, REDUCE_GRAD, SEND_B, SEND_F, Action, ActionKind, B, F, I
from minipipe.schedules.action_table import ActionTable, check_range
from minipipe.schedules.analysis.dependencies import Dependencies, Value
from minipipe.schedules.analysis.replicas import gradient_sums

Rule = tuple[int, int, int, int]  # own, announces, awaits, completes: the numbers of events, or NOTHING
NOTHING = -1
# By kind, the blocks of events: an action is complete; a rank has reached a SEND, a RECV or a REDUCE_GRAD.
_COMPLETED = {F: 0, B: 1, I: 1, RECV_F: 2, RECV_B: 3, REDUCE_GRAD: 8}
_REACHED = {SEND_F: 4, SEND_B: 5, RECV_F: 6, RECV_B: 7, REDUCE_GRAD: 9}
_NEVER = 10


class Blocked(NamedTuple):
    """A rank that cannot continue, and the action that it is blocked on: itself, if it is a message without partner."""

    rank: int
    position: int
    action: Action
    awaited: Action


class Walk(NamedTuple):
    """The actions that ran, and the blocked ranks of a schedule that cannot end.

    Attributes
    ----------
    table : Schedule or Program
    rounds : list of list of int
        The ranks that run their next action in each round, ascending; twice, if they run an overlapped pair.
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

    An action is ready if the earlier rounds made its inputs available; an overlapped pair (``overlaps`` of the table)
    needs the inputs of both.
    Local; no messages. Time is linear in the number of actions: each rank runs as far as it can, and a blocked rank is
    checked again only when it is woken. A table caches its walks. A buffered SEND completes at once instead of meeting
    its RECV.

    Raises
    ------
    ScheduleError
        Code ``out-of-range``, if an action names a stage or a microbatch that does not exist; ``missing``, if
        nearly all actions are.
    """
    is_buffered = sends_are_buffered and any(kind.is_communication for kind in table.kinds)
    key = "buffered walk" if is_buffered else "walk"
    if key not in table._kept:  # the cache of a table, see schedules/action_table.py
        check_range(table)
        table._kept[key] = _Walker(Dependencies(table, is_buffered)).walk()
    return Walk(table, *table._kept[key])


def complete_walk(table: ActionTable, sends_are_buffered: bool = False) -> Walk:
    """Return the walk of a schedule that ends; parameters are as in :func:`walk`.

    Raises
    ------
    ScheduleError
        Code ``deadlock``, if it cannot end; :func:`minipipe.verify` says why.
    """
    found = walk(table, sends_are_buffered)
    if found.blocked:
        stuck = found.blocked[0]
        awaited = "a partner that does not exist" if stuck.awaited == stuck.action else stuck.awaited
        message = f"{stuck.action} on rank {stuck.rank} waits for ever for {awaited}; verify(schedule) says why."
        raise ScheduleError.of(ScheduleCode.DEADLOCK, message, stuck.rank, stuck.position)
    return found


class NumberedRules:
    """The ready rule as numbers of events, so that a walk can note events in a list.

    Attributes
    ----------
    of : dict of ActionKind to list of Rule
        By kind of action and stage, for microbatch 0. For microbatch k, add k to each number.
    num_events : int
    """

    def __init__(self, dependencies: Dependencies) -> None:
        self.dependencies, table = dependencies, dependencies.table
        self.num_stages, self.num_microbatches = table.num_stages, table.num_microbatches
        self.of = {kind: [self._rule(Action(s, kind, 0)) for s in range(table.num_stages)] for kind in table.kinds}
        largest = max((max(rule) for rules in self.of.values() for rule in rules), default=0)
        self.num_events = largest + table.num_microbatches

    def _rule(self, action: Action) -> Rule:
        dependencies = self.dependencies
        own, awaited = self._event(_COMPLETED, dependencies.own(action)), dependencies.awaited(action)
        completed, reached = self._event(_COMPLETED, action), self._event(_REACHED, action)
        if not action.kind.is_communication:
            return own, reached, self._event(_COMPLETED, awaited), completed
        if not dependencies.exists(Value.carried_by(action)):  # without a partner it is blocked for ever
            return NOTHING, NOTHING, _NEVER * self.num_stages * self.num_microbatches, NOTHING
        if not dependencies.sends_are_buffered:
            return own, reached, self._event(_REACHED, awaited), completed
        return own, NOTHING, self._event(_REACHED, awaited), reached if awaited is None else completed

    def _event(self, kinds: dict[ActionKind, int], action: Action | None) -> int:
        if action is None or action.kind not in kinds:
            return NOTHING
        return (kinds[action.kind] * self.num_stages + action.stage) * self.num_microbatches + action.microbatch


class _Walker:
    """Runs each rank as far as it can. The round of an action is one more than the latest round it depends on.

    Rounds are counted from 1, so that 0 means "has not happened". The tags [1] to [4] are as in `dependencies.py`.
    """

    def __init__(self, dependencies: Dependencies) -> None:
        self.dependencies, self.table = dependencies, dependencies.table
        self.rules = NumberedRules(dependencies)
        self.number_of, sums = self.table.number_of, gradient_sums(self.table)
        self.happened = [0] * (self.rules.num_events + len(sums))  # by event, its round
        # By stage and microbatch of a REDUCE_GRAD: the event of its sum, and those that it still waits for.
        self.sums: dict[tuple[int, int], tuple[int, set[Action | None]]] = {}
        for event, members in enumerate(sums, self.rules.num_events):
            self.sums.update(dict.fromkeys((action[::2] for action in members if action), (event, set(members))))
        self.position = [0] * self.table.num_ranks
        self.now = [0] * self.table.num_ranks
        self.latest: dict[int, int] = {}  # by all-reduce, the round of the latest arrival so far
        self.waiting: dict[int, list[int]] = {}  # by event, the ranks blocked on it
        self.rounds: list[list[int]] = []
        # By overlapped forward, the backward that runs with it, and the events that the backward needs.
        self.joined = {a: (b, self.needs(b)) for a, b in self.table.joined.items()}
        self.has_pairs = bool(self.joined)

    def needs(self, action: Action) -> list[int]:
        """Return the events that an action needs: [1] and [3]."""
        own, _, awaits, _ = self.rules.of[action.kind][action.stage]
        return [event + self.number_of(action.microbatch) for event in (own, awaits) if event >= 0]

    def walk(self) -> tuple[list[list[int]], list[Blocked]]:
        ready = list(range(self.table.num_ranks))[::-1]
        while ready:
            ready += self.run(ready.pop())
        for ranks in self.rounds:
            ranks.sort()
        return self.rounds, [self.blocked(rank) for rank in sorted(r for ranks in self.waiting.values() for r in ranks)]

    def run(self, rank: int) -> list[int]:
        """Run a rank as far as it can; return the ranks that this wakes. The hot loop.

        A woken rank begins its action again at [1].
        """
        happened, waiting, rounds, rules = self.happened, self.waiting, self.rounds, self.rules.of
        woken: list[int] = []
        row, now, position, has_pairs = self.table.numbered[rank], self.now[rank], self.position[rank], self.has_pairs
        while position < len(row):
            if has_pairs and (now := self.round_before(rank, position, now)) < 0:
                now = ~now
                break
            stage, kind, k = row[position]
            own, announces, awaits, completes = rules[kind][stage]
            if own >= 0:  # [1]
                before = happened[own + k]
                if not before:
                    waiting.setdefault(own + k, []).append(rank)
                    break
                if before > now:  # only in an illegal schedule, if it is on another rank
                    now = before
            if announces >= 0:  # [2]
                happened[announces + k] = now or 1  # 0 means: not yet
                woken += waiting.pop(announces + k, ())
                if kind is REDUCE_GRAD:
                    awaits = self.meet(self.table.actions[rank][position], woken) - k
            if awaits >= 0:  # [3]
                before = happened[awaits + k]
                if not before:
                    waiting.setdefault(awaits + k, []).append(rank)
                    break
                if before > now:
                    now = before
            now += 1
            position += 1
            while now > len(rounds):  # once, unless an illegal schedule begins with all-reduces
                rounds.append([])
            rounds[now - 1].append(rank)
            if completes >= 0 and not happened[completes + k]:  # [4]
                happened[completes + k] = now
                if completes + k in waiting:
                    woken += waiting.pop(completes + k)
        self.now[rank], self.position[rank] = now, position
        return woken

    def round_before(self, rank: int, position: int, now: int) -> int:
        """Return the round before the next action of a rank, now or later; ``~now`` if it is blocked.

        Both actions of an overlapped pair run in one round, once both are ready.
        """
        row = self.table.actions[rank]
        if position and self.joined.get(row[position - 1], (None,))[0] == row[position]:
            return now - 1
        for event in self.joined.get(row[position], (None, []))[1]:
            if not self.happened[event]:
                self.waiting.setdefault(event, []).append(rank)
                return ~now
            now = max(now, self.happened[event])
        return now

    def meet(self, action: Action, woken: list[int]) -> int:
        """Enter a gradient all-reduce, which all replicas have to reach; return its event."""
        event, missing = self.sums[action[::2]]
        if action in missing:
            reached = self.rules.of[action.kind][action.stage][1] + self.number_of(action.microbatch)
            self.latest[event] = max(self.latest.get(event, 0), self.happened[reached])
            missing.remove(action)
            if not missing:
                self.happened[event] = self.latest[event]
                woken += self.waiting.pop(event, ())
        return event

    def blocked(self, rank: int) -> Blocked:
        position = self.position[rank]
        action = self.table.actions[rank][position]
        if action.kind is REDUCE_GRAD:
            others = sorted(filter(None, self.sums[action[::2]][1]))
            return Blocked(rank, position, action, others[0] if others else action)
        is_ready = all(self.happened[event] for event in self.needs(action))
        needy = self.joined[action][0] if is_ready else action  # also what its backward waits for
        event = self.rules.of[needy.kind][needy.stage][0]
        is_own = event >= 0 and not self.happened[event + self.number_of(needy.microbatch)]
        awaited = self.dependencies.own(needy) if is_own else self.dependencies.awaited(needy)
        if awaited is None or not 0 <= awaited.stage < self.table.num_stages:
            awaited = action
        return Blocked(rank, position, action, awaited)
