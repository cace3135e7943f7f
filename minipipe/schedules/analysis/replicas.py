"""Stages on several ranks: the pipelines of a table, and the gradient all-reduces over the replicas of a stage.

rank 0   0F0 0B0 0REDUCE_GRAD0 | 0U0        the first of each replica meet, the second of each, and so on. A sum begins
rank 1       0F1 0B1 0REDUCE_GRAD1 | 0U1    when all have come; a rank continues meanwhile, and only a U waits for it
"""

from __future__ import annotations

from collections import defaultdict
from itertools import zip_longest

from minipipe.schedules.action import REDUCE_GRAD, Action
from minipipe.schedules.action_table import ActionTable

Pipeline = tuple[int, ...]  # by stage, its rank: the path of a microbatch through a table with replicas
Members = tuple[Action | None, ...]  # by replica, in the order in which gradients are added; None if it has none


def pipelines_of(table: ActionTable) -> dict[Pipeline, list[int]]:
    """Return the pipelines of a table, in the order of their lowest microbatches, and the microbatches of each.

    Without replicas there is one pipeline. Two pipelines may share ranks, as in :func:`~minipipe.schedules.chimera`.

    Examples
    --------
    >>> from minipipe import schedules
    >>> pipelines_of(schedules.chimera(2, 4))
    {(0, 1): [0, 1], (1, 0): [2, 3]}
    """
    found: dict[Pipeline, list[int]] = {}
    for k in range(table.num_microbatches):
        found.setdefault(tuple(table.rank_of(stage, k) for stage in range(table.num_stages)), []).append(k)
    return found


def gradient_sums(table: ActionTable) -> list[Members]:
    """Return the gradient all-reduces of a table, stage by stage, in the order in which replicas reach them.

    Examples
    --------
    >>> from minipipe import Schedule
    >>> mine = Schedule.from_text("0F1 0B1 0REDUCE_GRAD1 \\n 0F0 0B0 0REDUCE_GRAD0")
    >>> [[str(action) for action in members] for members in gradient_sums(mine)]
    [['0REDUCE_GRAD0', '0REDUCE_GRAD1']]
    """
    if REDUCE_GRAD not in table.kinds:
        return []
    found: defaultdict[int, dict[int, list[Action]]] = defaultdict(dict)
    for rank, row in enumerate(table.actions):
        for action in (action for action in row if action.kind is REDUCE_GRAD):
            found[action.stage].setdefault(rank, []).append(action)
    homes = {stage: dict.fromkeys([*table.ranks_of(stage), *found[stage]]) for stage in sorted(found)}
    return [sums for stage, ranks in homes.items() for sums in zip_longest(*(found[stage].get(r, ()) for r in ranks))]
