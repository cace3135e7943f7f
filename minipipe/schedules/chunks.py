"""Other numbers of stages for a schedule: stages cut into several, equally or not, or the last ones left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.placement import check_size
from minipipe.schedules.schedule import Schedule, check_schedule


def cut_stages(rows: Iterable[Sequence[Action]], pieces: int) -> tuple[tuple[Action, ...], ...]:
    """Cut every stage into neighbouring stages on its rank: F runs through them upwards, B, I and W downwards.

    Parameters
    ----------
    rows : iterable of sequence of Action
        By rank.
    pieces : int
        At least 1.

    Examples
    --------
    >>> print(*cut_stages([[Action.parse("1F0"), Action.parse("1B0")]], pieces=2)[0])
    2F0 3F0 3B0 2B0
    """
    return tuple(tuple(row if pieces == 1 else _cut(row, pieces)) for row in rows)


def _cut(row: Sequence[Action], pieces: int) -> Iterator[Action]:
    for action in row:
        yield from _on_each(action, range(action.stage * pieces, action.stage * pieces + pieces))


def _on_each(action: Action, stages: range) -> Iterator[Action]:
    _, kind, k = action
    return (Action(s, kind, k) for s in (stages if kind is ActionKind.FORWARD else reversed(stages)))


def spread_stages(schedule: Schedule, num_stages: int) -> Schedule:
    """Cut a schedule with one stage on each rank into more stages, as equally as can be: first ranks take one more.

    Parameters
    ----------
    schedule : Schedule
        Stage r is on rank r.
    num_stages : int
        At least as many as there are ranks.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(spread_stages(schedules.gpipe(2, 1), num_stages=3))
    # gpipe: 2 ranks, 3 stages, 1 microbatch
    rank 0: 0F0 1F0 1B0 0B0
    rank 1: 2F0 2B0
    """
    check_size(num_stages, schedule.num_microbatches)
    p = schedule.num_ranks
    ends = [0, *accumulate(num_stages // p + (rank < num_stages % p) for rank in range(p))]
    own = [range(start, end) for start, end in pairwise(ends)]
    rows = tuple(tuple(a for action in row for a in _on_each(action, own[action.stage])) for row in schedule.actions)
    placement = tuple(rank for rank, stages in enumerate(own) for _ in stages)
    return Schedule(schedule.name, placement, schedule.num_microbatches, rows)


def first_stages(schedule: Schedule, num_stages: int) -> Schedule:
    """Return a schedule without its last stages. It stays legal: the loss then follows an earlier stage.

    Parameters
    ----------
    schedule : Schedule
    num_stages : int
        From 1 to those of the schedule. Ranks that are left without a stage stay idle.

    Raises
    ------
    ScheduleError
        Code ``parameters``.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(first_stages(schedules.interleaved_1f1b(2, 2), num_stages=3))
    # interleaved-1f1b: 2 ranks, 3 stages, 2 microbatches
    rank 0: 0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
    rank 1: 1F0 1F1 1B0 1B1
    """
    check_schedule(schedule)
    if not 1 <= num_stages <= schedule.num_stages:
        message = f"num_stages is {num_stages}; {schedule.title} has {schedule.num_stages}, so expected 1 to that."
        raise ScheduleError.of(ScheduleCode.PARAMETERS, message)
    rows = tuple(tuple(action for action in row if action.stage < num_stages) for row in schedule.actions)
    return Schedule(schedule.name, schedule.placement[:num_stages], schedule.num_microbatches, rows)
