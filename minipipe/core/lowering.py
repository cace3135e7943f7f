"""Messages for a table: a SEND and a RECV for each value that travels between ranks.

All instructions have one global order (`core/order.py`): round after round, the lowest
rank first. Directly behind the instruction that gives a value, its SEND is added to the
row of that rank, and its RECV to the row of the rank that takes it. So each pair stands
at one place of one order, and the first instruction that has not run can always run:
nothing deadlocks, even if every SEND blocks until its RECV.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from minipipe.core.flow import Flow
from minipipe.core.values import KINDS, NOUNS, Site, Value, cut_of

# The kind of the SEND, the stage and the kind of the RECV, and its rank by microbatch.
_Message = tuple[str, int, str, Sequence[int]]


def with_messages(
    flow: Flow,
    rounds: Sequence[Sequence[int]],
    make: Callable[[tuple[int, str, int]], Any],
) -> list[list[Any]]:
    """Return the rows of a schedule with its messages, with numbers of microbatches.

    Parameters
    ----------
    flow : Flow
        Of a table without messages.
    rounds : sequence of sequence of int
        Its order.
    make : function
        Makes an action of stage, kind and microbatch.
    """
    messages = {name: _messages_behind(flow, name) for name in flow.kinds}
    rows: list[list[Any]] = [[] for _ in flow.rows]
    heads = [iter(row).__next__ for row in flow.rows]
    for ranks in rounds:
        for rank in ranks:
            action = heads[rank]()
            row = rows[rank]
            row.append(action)
            stage, kind, k = action
            message = messages[kind][stage]
            if message is not None:
                send, consumer, receive, destinations = message
                row.append(make((stage, send, k)))
                rows[destinations[k]].append(make((consumer, receive, k)))
    if flow.pairs:
        _keep_together(rows, flow.pairs)
    return rows


def _messages_behind(flow: Flow, name: str) -> list[_Message | None]:
    """Return, by stage, the message behind an instruction of a kind, if it has one."""
    messages: list[_Message | None] = []
    for stage in range(flow.num_stages):
        uses = KINDS[name].uses(Site(flow, 0, 0, stage, 0))
        gives = uses.gives if uses is not None else ()
        travelling = (value for value in gives if NOUNS[value.name].message)
        sent = (v for v in travelling if flow.table.crosses_ranks(cut_of(v)))
        value = next(sent, None)
        messages.append(None if value is None else _message(flow, value, type(name)))
    return messages


def _message(flow: Flow, value: Value, kind: Callable[[str], str]) -> _Message:
    """Return the message of a value, with kinds of the type that the table has."""
    send, receive = map(kind, NOUNS[value.name].message)
    ranks, m = flow.table.ranks_of(value.stage), flow.table.num_microbatches
    if len(ranks) == 1:
        return send, value.stage, receive, [*ranks] * m
    destinations = [flow.table.rank_of(value.stage, k) for k in range(m)]
    return send, value.stage, receive, destinations


def _keep_together(rows: list[list[Any]], pairs: Collection[Any]) -> None:
    """Move the message behind the first half of an overlapped pair behind the second.

    In a row only the message is between the two, which are adjacent in the one global
    order. The order of the messages does not change.
    """
    for row in rows:
        for at, action in enumerate(row[:-2]):
            if action in pairs and KINDS[row[at + 1][1]].message:
                row[at + 1], row[at + 2] = row[at + 2], row[at + 1]
