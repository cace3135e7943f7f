"""Messages for a table: a SEND and a RECV for each value that travels between ranks.

All instructions have one global order (`core/order.py`): round after round, the lowest
rank first. Directly behind the instruction that gives a value, its SEND is added to the
row of that rank, and its RECV to the row of the rank that takes it. So each pair stands
at one place of one order, and the first instruction that has not run can always run:
nothing deadlocks, even if every SEND blocks until its RECV.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from minipipe.core.flow import Flow, Rule
from minipipe.core.values import KINDS, NOUNS, cut_of

_Message = tuple[str, int, str]  # the kind of the SEND, the stage and kind of the RECV


def with_messages(
    flow: Flow,
    rounds: Sequence[Sequence[int]],
    make: Callable[[tuple[int, str, int]], Any],
) -> list[list[Any]]:
    """Return the rows of a schedule with its messages.

    Parameters
    ----------
    flow : Flow
        Of a table without messages.
    rounds : sequence of sequence of int
        Its order.
    make : function
        Makes an action of stage, kind and microbatch.
    """
    homes = [_home_of(flow.table, stage) for stage in range(flow.num_stages)]
    messages = [_message_behind(flow, rule) for rule in flow.rules]
    rows: list[list[Any]] = [[] for _ in flow.rows]
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
                row.append(make((stage, send, k)))
                rows[homes[consumer][k]].append(make((consumer, receive, k)))
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


def _keep_together(rows: list[list[Any]], pairs: Collection[Any]) -> None:
    """Move the message behind the first half of an overlapped pair behind the second.

    In a row only the message is between the two, which are adjacent in the one global
    order. The order of the messages does not change.
    """
    for row in rows:
        for at, action in enumerate(row[:-2]):
            if action in pairs and KINDS[row[at + 1][1]].message:
                row[at + 1], row[at + 2] = row[at + 2], row[at + 1]
