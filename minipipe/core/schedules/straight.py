"""Straight schedules: rank r holds stage r, or the neighbouring stages into which it is
cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from minipipe.core.schedules.action import Action, F
from minipipe.core.schedules.action_table import Schedule
from minipipe.core.schedules.placement import neighbouring_placement


def straight(
    name: str,
    rows: Sequence[Sequence[Action]],
    num_microbatches: int,
    chunks_per_rank: int,
) -> Schedule:
    """Return the schedule in which rank r runs row r, its stage cut into as many
    neighbouring stages as it has chunks.

    Examples
    --------
    >>> print(
    ...     straight(
    ...         "mine",
    ...         [[Action.parse("0F0"), Action.parse("0B0")]],
    ...         num_microbatches=1,
    ...         chunks_per_rank=2,
    ...     )
    ... )
    # mine: 1 rank, 2 stages, 1 microbatch
    rank 0: 0F0 1F0 1B0 0B0
    """
    placement = neighbouring_placement(len(rows), chunks_per_rank)
    actions = cut_stages(rows, chunks_per_rank)
    return Schedule(name, placement, num_microbatches, actions)


def cut_stages(
    rows: Iterable[Sequence[Action]], pieces: int
) -> tuple[tuple[Action, ...], ...]:
    """Cut every stage into neighbouring stages on its rank: F runs through them
    upwards, B, I and W downwards.

    Examples
    --------
    >>> print(*cut_stages([[Action.parse("1F0"), Action.parse("1B0")]], pieces=2)[0])
    2F0 3F0 3B0 2B0
    """
    if pieces == 1:
        return tuple(map(tuple, rows))

    def pieces_of(stage: int) -> range:
        return range(stage * pieces, stage * pieces + pieces)

    return tuple(on_stages(row, pieces_of) for row in rows)


def on_stages(
    row: Iterable[Action], pieces_of: Callable[[int], range]
) -> tuple[Action, ...]:
    """Run each action on the pieces of its stage: F upwards, all others downwards."""
    actions = []
    for stage, kind, k in row:
        pieces = pieces_of(stage)
        if kind is not F:
            pieces = pieces[::-1]
        actions += [Action(s, kind, k) for s in pieces]
    return tuple(actions)
