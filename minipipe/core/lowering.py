"""Messages for a table: a SEND and a RECV for each value that travels between ranks.

All instructions have one global order (`core/order.py`): round after round, the lowest
rank first. Directly behind the instruction that gives a value, its SEND is added to the
row of that rank, and its RECV to the row of the rank that takes it. So each pair stands
at one place of one order, and the first instruction that has not run can always run:
nothing deadlocks, even if every SEND blocks until its RECV.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minipipe.core.flow import Flow
from minipipe.core.order import Order, order
from minipipe.core.values import KINDS, NOUNS, Site


def with_messages(
    flow: Flow,
    rank_of: Callable[[int, int], int],
    make: Callable[[tuple[int, str, int]], Any],
    found: Order | None = None,
) -> list[list[Any]]:
    """Return the rows of a legal schedule with its messages.

    Parameters
    ----------
    flow : Flow
        Of a table without messages.
    rank_of : function
        Returns the rank that runs a stage for a microbatch.
    make : function
        Makes an action of stage, kind and microbatch.
    found : Order, optional
        The order of the table, if it is known.
    """
    found = order(flow) if found is None else found
    messages = _messages(flow)
    rows: list[list[Any]] = [[] for _ in flow.rows]
    heads = [iter(row) for row in flow.table.actions]
    numbered = [iter(row) for row in flow.rows]
    pairs = flow.pairs
    forwards: dict[int, Any] = {}  # by rank, the first half of an overlapped pair
    for ranks in found.rounds:
        for rank in ranks:
            action = next(heads[rank])
            rows[rank].append(action)
            if pairs and next(numbered[rank]) in pairs:
                forwards[rank] = action
                continue
            for giver in (forwards.pop(rank, None), action):
                if giver is None or messages[giver[1]][giver[0]] is None:
                    continue
                (stage, kind, k) = giver
                send, consumer, receive = messages[kind][stage]
                destination = rank_of(consumer, k)
                if destination != rank:
                    rows[rank].append(make((stage, send, k)))
                    rows[destination].append(make((consumer, receive, k)))
    return rows


def _messages(flow: Flow) -> dict[str, list[tuple[str, int, str] | None]]:
    """Return, by kind and stage, the message behind an instruction, if it has one."""
    found: dict[str, list[tuple[str, int, str] | None]] = {}
    for name in flow.kinds:
        found[name] = [None] * flow.num_stages
        for stage in range(flow.num_stages):
            uses = KINDS[name].uses(Site(flow, 0, 0, stage, 0))
            for value in uses.gives if uses is not None else ():
                if NOUNS[value.name].message:
                    send, receive = NOUNS[value.name].message
                    found[name][stage] = send, value.stage, receive
    return found
