"""The one walk through a schedule in topological order: which rank runs its next action in which round.

Verifier, lowering, simulator and stepper take their order from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from minipipe.core.flow import flow_of
from minipipe.core.order import Wait, order
from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.schedules.action import RECV_B, RECV_F, REDUCE_GRAD, SEND_B, SEND_F, Action, ActionKind, B, F, I
from minipipe.schedules.action_table import ActionTable, check_range
from minipipe.schedules.analysis.dependencies import Dependencies, Value

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
        found = order(flow_of(table), sends_block=not is_buffered)
        table._kept[key] = found.rounds, [_blocked(table, rank, wait) for rank, wait in found.blocked.items()]
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


def _blocked(table: ActionTable, rank: int, wait: Wait) -> Blocked:
    """Return a rank that cannot continue; it waits for itself if no action could let it continue."""
    action = table.actions[rank][wait.position]
    if wait.awaited is None:
        return Blocked(rank, wait.position, action, action)
    stage, kind, k = wait.awaited
    return Blocked(rank, wait.position, action, Action(stage, ActionKind(kind), table.microbatches[k]))
