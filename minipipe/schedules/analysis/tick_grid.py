"""The tick grid: a schedule as papers draw it, every action one tick long."""

from __future__ import annotations

from minipipe.schedules.action import Action
from minipipe.schedules.action_table import ActionTable
from minipipe.schedules.analysis.walk import complete_walk


def tick_grid(schedule: ActionTable) -> tuple[tuple[Action | None, ...], ...]:
    """Return one row for each rank and in it one cell for each tick: an action, or None where the rank is idle.

    Every action takes one tick, whatever its kind, and runs as early as it can; SEND and RECV are left out.

    Raises
    ------
    ScheduleError
        Code ``deadlock``, when the schedule cannot run to its end.

    Examples
    --------
    >>> from minipipe import schedules
    >>> for row in tick_grid(schedules.gpipe(2, 2)):
    ...     print(*(cell or "---" for cell in row))
    0F0 0F1 --- --- 0B0 0B1
    --- 1F0 1F1 1B0 1B1 ---
    """
    schedule = schedule.schedule
    rounds = complete_walk(schedule).rounds
    grid: list[list[Action | None]] = [[None] * len(rounds) for _ in schedule.actions]
    heads = [iter(row) for row in schedule.actions]
    for tick, ranks in enumerate(rounds):
        for rank in ranks:
            grid[rank][tick] = next(heads[rank])
    return tuple(map(tuple, grid))
