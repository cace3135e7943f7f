"""The one walk through a schedule in topological order: which rank runs its next action
in which round.

Verifier, lowering, simulator and stepper take their order from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from minipipe.core.errors import Code, ScheduleError
from minipipe.core.flow import flow_of
from minipipe.core.order import Wait, order
from minipipe.core.schedules.action import Action, ActionKind
from minipipe.core.schedules.action_table import ActionTable, check_range
from minipipe.core.values import KINDS


class Blocked(NamedTuple):
    """A rank that cannot continue, and the action that it is blocked on: itself, if no
    action could help it.
    """

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
        The ranks that run their next action in each round, ascending; twice, if they
        run an overlapped pair.
    blocked : list of Blocked
    """

    table: ActionTable
    rounds: list[list[int]]
    blocked: list[Blocked]

    def order(self) -> Iterator[tuple[int, Action]]:
        """Yield (rank, action) in the one global order: round after round, in each the
        lowest rank first.
        """
        # by rank, gives its next action
        heads = [iter(row).__next__ for row in self.table.actions]
        for ranks in self.rounds:
            for rank in ranks:
                yield rank, heads[rank]()


def walk(table: ActionTable, sends_are_buffered: bool = False) -> Walk:
    """Walk in topological order: in each round, every rank whose next action is ready
    runs it, lowest rank first.

    An action is ready if the earlier rounds made its inputs available; an overlapped
    pair (``overlaps`` of the table) needs the inputs of both. Local; no messages. Time
    is linear in the number of actions: each rank runs as far as it can, and a blocked
    rank is checked again only when it is woken. A table caches its orders. A buffered
    SEND completes at once instead of meeting its RECV.

    Raises
    ------
    ScheduleError
        Code ``out-of-range``, if an action names a stage or a microbatch that does not
        exist; ``missing``, if nearly all actions are.
    """
    check_range(table)
    has_sends = any(kind.is_communication for kind in table.kinds)
    result = order(flow_of(table), sends_block=not (sends_are_buffered and has_sends))
    blocked = [_blocked(table, rank, wait) for rank, wait in result.blocked.items()]
    return Walk(table, result.rounds, blocked)


def complete_walk(table: ActionTable, sends_are_buffered: bool = False) -> Walk:
    """Return the walk of a schedule that ends; parameters are as in :func:`walk`.

    Raises
    ------
    ScheduleError
        Code ``deadlock``, if it cannot end; :func:`minipipe.verify` says why.
    """
    walked = walk(table, sends_are_buffered)
    if walked.blocked:
        stuck = walked.blocked[0]
        awaited = str(stuck.awaited)
        if stuck.awaited == stuck.action:
            kind = KINDS[stuck.action.kind]
            uses = flow_of(table).uses(stuck.rank, stuck.position)
            is_alone = kind.meets is not None and (uses is not None or kind.message)
            awaited = "values that no action gives"
            if is_alone:
                awaited = "a partner that does not exist"
        waits = f"{stuck.action} on rank {stuck.rank} waits for ever for {awaited}"
        message = f"{waits}; verify(schedule) says why."
        raise ScheduleError.of(Code.DEADLOCK, message, stuck.rank, stuck.position)
    return walked


def _blocked(table: ActionTable, rank: int, wait: Wait) -> Blocked:
    """Return a rank that cannot continue; it waits for itself if no action could let it
    continue.
    """
    action = table.actions[rank][wait.position]
    if wait.awaited is None:
        return Blocked(rank, wait.position, action, action)
    stage, kind, k = wait.awaited
    awaited = Action(stage, ActionKind(kind), table.microbatches[k])
    return Blocked(rank, wait.position, action, awaited)
