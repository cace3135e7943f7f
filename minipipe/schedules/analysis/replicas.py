"""The rules of replicas: what the verifier asks of a stage that several ranks hold, each for microbatches of its own.

rank 0   0F0       0B0        stage 0 has the replicas 0 and 2, stage 1 the replicas 1 and 3: two pipelines
rank 1       1F0 1B0          with a microbatch each. 0B0 on rank 2 would need what 0F0 left on rank 0.
rank 2   0F1       0B1
rank 3       1F1 1B1
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from minipipe.errors import Problem, ScheduleCode
from minipipe.schedules.action import F
from minipipe.schedules.action_table import ActionTable
from minipipe.schedules.analysis.dependencies import Dependencies, Value

Pipeline = tuple[int, ...]  # by stage, its rank: the way of a microbatch through a table with replicas

_MOST = 1000  # problems of one kind that are listed


def replica_problems(table: ActionTable) -> list[Problem]:
    """Return the problems of replicas, of a table in which every action occurs once, on a rank of its stage.

    A microbatch comes back on the replica on which it went, since that has its activations. At a cut all microbatches
    change ranks, or none, so that a cut has messages or has none.

    Examples
    --------
    >>> from minipipe import Schedule
    >>> rows = [["0F0", "0B0", "0F1"], ["0F2", "0B2", "0B1"]]
    >>> print(replica_problems(Schedule("mine", ((0, 1),), 3, rows))[0].message)
    Rank 1, position 2: 0B1 is on another replica than its forward; 0F1 is on rank 0.
    """
    if not table.has_replicas:
        return []
    return list(islice(_elsewhere(table), _MOST)) or list(islice(_mixed_cuts(table), _MOST))


def _elsewhere(table: ActionTable) -> Iterator[Problem]:
    for rank, row in enumerate(table.actions):
        for position, (stage, _, k) in enumerate(row):
            home = table.rank_of(stage, k)
            if home != rank:
                where = f"Rank {rank}, position {position}: {row[position]}"
                forward = row[position]._replace(kind=F)
                sentence = f"{where} is on another replica than its forward; {forward} is on rank {home}."
                yield Problem(ScheduleCode.OTHER_REPLICA, sentence, rank, position)


def _mixed_cuts(table: ActionTable) -> Iterator[Problem]:
    crosses = Dependencies(table).crosses_ranks
    for rank, row in enumerate(table.actions):
        for position, action in enumerate(row):
            value = Value.consumed_by(action) if action.kind is F else None
            if value is None or not crosses(value):
                continue
            source = table.rank_of(value.stage, value.microbatch)
            if source == rank:
                where = f"Rank {rank}, position {position}: {action}"
                sentence = f"{where} stays on the rank of stage {value.stage}; other microbatches change ranks there."
                hint = "At a cut all of them do, or none."
                yield Problem(ScheduleCode.MIXED_CUT, f"{sentence} {hint}", rank, position)


def pipelines_of(table: ActionTable) -> dict[Pipeline, list[int]]:
    """Return the pipelines of a table, in the order of their lowest microbatches, and the microbatches of each.

    Without replicas there is one. Two pipelines may share ranks, as those of :func:`~minipipe.schedules.chimera` do.

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
