"""Stages on several ranks: the pipelines of a table, and the gradient all-reduces over
the replicas of a stage::

    rank 0   0F0 0B0 0REDUCE_GRAD0 | 0U0
    rank 1       0F1 0B1 0REDUCE_GRAD1 | 0U1

The first REDUCE_GRADs of all replicas form one all-reduce, the second ones the next,
and so on. An all-reduce begins when all replicas have reached it. The ranks continue
meanwhile; only a U waits for it.
"""

from __future__ import annotations

from collections import defaultdict

from minipipe.core.flow import flow_of
from minipipe.core.schedules.action import REDUCE_GRAD, Action
from minipipe.core.schedules.action_table import ActionTable

# by stage, its rank: the path of a microbatch through a table with replicas
Pipeline = tuple[int, ...]
Members = tuple[Action, ...]  # by replica, in the order in which gradients are added


def pipelines_of(table: ActionTable) -> dict[Pipeline, list[int]]:
    """Return the pipelines of a table, in the order of their lowest microbatches, and
    the microbatches of each.

    Without replicas there is one pipeline. Two pipelines may share ranks, as in
    :func:`~minipipe.schedules.chimera`.

    Examples
    --------
    >>> from minipipe import schedules
    >>> pipelines_of(schedules.chimera(2, 4))
    {(0, 1): [0, 1], (1, 0): [2, 3]}
    """
    pipelines: dict[Pipeline, list[int]] = {}
    for k in range(table.num_microbatches):
        ranks = tuple(table.rank_of(stage, k) for stage in range(table.num_stages))
        pipelines.setdefault(ranks, []).append(k)
    return pipelines


def gradient_sums(table: ActionTable) -> list[Members]:
    """Return the gradient all-reduces of a legal table, stage by stage, in the order in
    which replicas reach them.

    Examples
    --------
    >>> from minipipe import Schedule
    >>> mine = Schedule.from_text("0F1 0B1 0REDUCE_GRAD1 \\n 0F0 0B0 0REDUCE_GRAD0")
    >>> [[str(action) for action in members] for members in gradient_sums(mine)]
    [['0REDUCE_GRAD0', '0REDUCE_GRAD1']]
    """
    flow = flow_of(table)
    met = defaultdict[tuple[object, ...], dict[int, Action]](dict)
    if REDUCE_GRAD not in table.kinds:
        return []
    for rank, row in enumerate(table.actions):
        for position, action in enumerate(row):
            if action.kind is REDUCE_GRAD:
                met[flow.meeting(rank, position).key][rank] = action
    sums = []
    for key in sorted(met):
        by_rank = met[key]
        ranks = table.ranks_of(min(by_rank.values()).stage)
        sums.append(tuple(by_rank[rank] for rank in ranks))
    return sums
