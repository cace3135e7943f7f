"""Lowering: from a schedule to the program that the ranks run.

There is one global order of all actions (``Walk.order`` in
``core/schedules/analysis/walk.py``): round after round, every rank whose next action is
ready runs it, lowest rank first. Each message is put at one position of this order,
right after the action that produces the value. For three ranks::

    global order    0F0   0SEND_F0   1RECV_F0   0F1   0SEND_F1   1RECV_F1   1F0   1SEND_F0   2RECV_F0   …
    rank 0          0F0   0SEND_F0              0F1   0SEND_F1                                          …
    rank 1                           1RECV_F0                    1RECV_F1   1F0   1SEND_F0              …
    rank 2                                                                                   2RECV_F0   …

The program of 1F1B for two ranks and three microbatches::

    rank 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0F2 0SEND_F2 0RECV_B1 0B1 0RECV_B2 0B2
    rank 1: 1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0 1F1 1RECV_F2 1B1 1SEND_B1 1F2 1B2 1SEND_B2

Each rank's row is a part of that order. Every item comes after its dependencies, and
each SEND is next to its RECV. So the first unfinished item can always run: no deadlock,
even when every send blocks until it is received. The naive rule (receive just before
use, send just after) makes 1F1B deadlock on two ranks: rank 0 is at 0SEND_F1 and rank 1
at 1SEND_B0, and each RECV comes after the other rank's SEND.

File 4 of 13 on the first path through the code (README.md):
after ``core/schedules/analysis/dependencies.py``, before ``core/execution/executor.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from minipipe.core.flow import Flow, Rule, flow_of
from minipipe.core.schedules.action import Action, new_action
from minipipe.core.schedules.action_table import ActionTable, Program, check_table
from minipipe.core.schedules.analysis.walk import complete_walk
from minipipe.core.schedules.collector import collector_paused
from minipipe.core.values import KINDS, NOUNS, cut_of

# the kind of the SEND, the stage and the kind of the RECV
_Message = tuple[str, int, str]


def lower(schedule: ActionTable) -> Program:
    """Add a SEND and a RECV for every value that crosses ranks, in pairs.

    Local; no messages. Roughly: ``for rank, action in complete_walk(schedule).order():
    run it; its SEND goes here, its RECV to the rank of its consumer, now``.

    Parameters
    ----------
    schedule : Schedule or Program
        A program is returned unchanged.

    Returns
    -------
    Program

    Raises
    ------
    ScheduleError
        Code ``deadlock``, if the schedule cannot run to its end;
        :func:`minipipe.verify` says why.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(lower(schedules.gpipe(2, 1)))
    # gpipe: 2 ranks, 2 stages, 1 microbatch
    rank 0: 0F0 0SEND_F0 0RECV_B0 0B0
    rank 1: 1RECV_F0 1F0 1B0 1SEND_B0
    """
    check_table(schedule)
    if isinstance(schedule, Program):
        return schedule
    rounds = complete_walk(schedule).rounds
    with collector_paused():
        rows = _with_messages(flow_of(schedule), rounds)
    return schedule.with_rows(Program, rows)


def _with_messages(flow: Flow, rounds: list[list[int]]) -> list[list[Action]]:
    """Return the rows of a schedule with its messages, in the order of its rounds."""
    homes = [_home_of(flow.table, stage) for stage in range(flow.num_stages)]
    messages = [_message_behind(flow, rule) for rule in flow.rules]
    rows: list[list[Action]] = [[] for _ in flow.rows]
    heads = [zip(*row).__next__ for row in zip(flow.table.actions, flow.codes)]
    for ranks in rounds:
        for rank in ranks:
            action, code = heads[rank]()
            row = rows[rank]
            row.append(action)
            message = messages[code]
            if message is not None:
                send, consumer, receive = message
                stage, _, k = action
                row.append(new_action((stage, send, k)))
                rows[homes[consumer][k]].append(new_action((consumer, receive, k)))
    if flow.pairs:
        _keep_together(rows, flow.table.joined)
    return rows


def _message_behind(flow: Flow, rule: Rule) -> _Message | None:
    """Return the message behind an instruction, if it has one."""
    gives = rule.numbers.gives if rule.numbers is not None else ()
    travelling = (v for v in map(flow.value_of, gives) if NOUNS[v.name].message)
    sent = (v for v in travelling if flow.table.crosses_ranks(cut_of(v)))
    value = next(sent, None)
    if value is None:
        return None
    send, receive = map(type(rule.kind), NOUNS[value.name].message)
    return send, value.stage, receive


def _home_of(table: Any, stage: int) -> Mapping[Any, int]:
    """Return the rank of a stage by microbatch."""
    ranks = table.ranks_of(stage)
    if len(ranks) == 1:
        return dict.fromkeys(table.microbatches, ranks[0])
    return {k: table.rank_of(stage, k) for k in table.microbatches}


def _keep_together(rows: list[list[Action]], pairs: Collection[Any]) -> None:
    """Move the message behind the first half of an overlapped pair behind the second.

    In a row only the message is between the two, which are adjacent in the one global
    order. The order of the messages does not change.
    """
    for row in rows:
        for at, action in enumerate(row[:-2]):
            if action in pairs and KINDS[row[at + 1][1]].message:
                row[at + 1], row[at + 2] = row[at + 2], row[at + 1]
