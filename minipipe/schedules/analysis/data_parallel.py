"""Data parallelism: copies of a schedule side by side, and the positions of their
gradient all-reduces::

    rank 0   0F0 0B0 0REDUCE_GRAD0
    rank 1   0F1 0B1 0REDUCE_GRAD1

A REDUCE_GRAD comes after the last gradient that it sums. If the schedule itself has
replicas, it comes after the last gradient of all of them, so that all ranks have the
same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from minipipe.core.schedules.action import REDUCE_GRAD, Action, B, U, W
from minipipe.core.schedules.action_table import Schedule
from minipipe.core.schedules.analysis.walk import complete_walk
from minipipe.core.schedules.placement import check_size, ranks_in
from minipipe.core.specs import SCHEDULE_COUNT
from minipipe.schedules.transforms import check_trains, overlaps_of_copies


def data_parallel(schedule: Schedule, num_replicas: int) -> Schedule:
    """Return copies of a schedule side by side, each with its own microbatches, which
    all-reduce their gradients.

    Replica d has the ranks from ``d * num_ranks`` on and the microbatches from ``d *
    num_microbatches`` on. A REDUCE_GRAD follows the last gradient of each stage, or of
    each of its updates. If a stage already has replicas, it follows the last gradient
    of all of them in the order of the walk, so that all ranks reach their all-reduces
    in the same order.

    Parameters
    ----------
    schedule : Schedule
        Any schedule with a backward. If it already has REDUCE_GRADs, these sum over the
        copies as well.
    num_replicas : int
        At least 1. With 1 the result is the schedule itself, with all-reduces if its
        stages have replicas.

    Raises
    ------
    ScheduleError
        Codes ``value``, ``too-large`` and ``unsupported``.

    References
    ----------
    Narayanan et al. 2021, "Efficient large-scale language model training on GPU
    clusters using Megatron-LM", section 2.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(data_parallel(schedules.gpipe(2, 1), 2))
    # gpipe, 2 replicas: 4 ranks, 2 stages, 2 microbatches
    rank 0: 0F0 0B0 0REDUCE_GRAD0
    rank 1: 1F0 1B0 1REDUCE_GRAD0
    rank 2: 0F1 0B1 0REDUCE_GRAD1
    rank 3: 1F1 1B1 1REDUCE_GRAD1
    """
    check_trains(schedule, "gradients to sum")
    n = SCHEDULE_COUNT.check("num_replicas", num_replicas)
    if n == 1 and not schedule.has_replicas:
        return schedule
    p = schedule.num_ranks
    m = schedule.num_microbatches
    check_size(n * schedule.num_stages, n * m)
    reduced = [list(_with_sums(row)) for row in schedule.actions]
    summed = _in_one_order(schedule, reduced)
    number_of = schedule.number_of
    rows: list[list[Action]] = []
    for d in range(n):
        for row in summed:
            rows.append([Action(s, kind, d * m + number_of(k)) for s, kind, k in row])
    homes = (ranks_in(home) for home in schedule.placement)
    placement = tuple(
        tuple(d * p + rank for d in range(n) for rank in ranks) for ranks in homes
    )
    name = schedule.name
    if n > 1:
        name += f", {n} replicas"
    actions = tuple(map(tuple, rows))
    overlaps = overlaps_of_copies(schedule, n)
    return replace(
        schedule,
        name=name,
        placement=placement,
        num_microbatches=n * m,
        actions=actions,
        overlaps=overlaps,
    )


def _with_sums(row: Sequence[Action]) -> Iterator[Action]:
    """Yield a row with a REDUCE_GRAD after the last gradient of each stage, or of each
    of its updates.
    """
    by_stage: dict[int, list[int]] = {}
    for stage, kind, k in row:
        if kind is B or kind is W:
            by_stage.setdefault(stage, []).append(k)
    ends = {(s, k) for s, kind, k in row if kind is U}
    ends |= {(s, max(ks)) for s, ks in by_stage.items()}
    ends -= {(s, k) for s, kind, k in row if kind is REDUCE_GRAD}
    due = {stage: sorted(k for s, k in ends if s == stage) for stage in by_stage}
    left = {stage: sorted(microbatches) for stage, microbatches in by_stage.items()}
    for action in row:
        yield action
        stage, kind, k = action
        if kind is B or kind is W:
            left[stage].remove(k)
            while due[stage] and not (left[stage] and left[stage][0] <= due[stage][0]):
                yield Action(stage, REDUCE_GRAD, due[stage].pop(0))


def _in_one_order(schedule: Schedule, rows: list[list[Action]]) -> list[list[Action]]:
    """Move each all-reduce of a schedule's own replicas after the last gradient of its
    stage on any replica.

    Otherwise, if one replica has more microbatches than another, rank 0 could reach the
    all-reduce of stage 1 before the all-reduce of stage 0, and rank 1 the other way
    round: a deadlock. The walk orders all gradients, and therefore all all-reduces.
    """
    if not schedule.has_replicas or {REDUCE_GRAD, U} & schedule.kinds:
        return rows
    walked = enumerate(complete_walk(schedule).order())
    place = {action: number for number, (_, action) in walked}
    last = {}
    for action, number in place.items():
        if action.kind is B or action.kind is W:
            last[action.stage] = number

    def when(action: Action) -> tuple[int, bool]:
        if action.kind is REDUCE_GRAD:
            return last[action.stage], True
        return place[action], False

    return [sorted(row, key=when) for row in rows]
