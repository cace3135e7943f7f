"""Placements of stages in a V and of several pipelines, and checks of placements."""

from __future__ import annotations

from collections.abc import Sequence

from minipipe.core.schedules.placement import (
    Placement,
    check_placement,
    check_sizes,
    ranks_in,
)
from minipipe.errors import Code, ScheduleError, misuse, quoted


def v_placement(num_ranks: int, num_waves: int = 1) -> tuple[int, ...]:
    """Return the placement in one or several V: in the first V, rank r has stages r and
    ``2 * num_ranks - 1 - r``.

    The first and the last stage are on rank 0. The two stages of the last rank are
    adjacent, so values between them need no message.

    Examples
    --------
    >>> v_placement(3), v_placement(2, num_waves=2)
    ((0, 1, 2, 2, 1, 0), (0, 1, 1, 0, 0, 1, 1, 0))
    """
    return (*range(num_ranks), *reversed(range(num_ranks))) * num_waves


def pipelines_placement(
    pipelines: Sequence[Sequence[int]], num_microbatches: int
) -> tuple[int | tuple[int, ...], ...]:
    """Return the placement of several pipelines, or of the first alone if there is a
    single microbatch.

    Examples
    --------
    >>> (
    ...     pipelines_placement([(0, 1), (1, 0)], 2),
    ...     pipelines_placement([(0, 1), (1, 0)], 1),
    ... )
    (((0, 1), (1, 0)), (0, 1))
    """
    if min(len(pipelines), num_microbatches) == 1:
        return tuple(pipelines[0])
    return tuple(zip(*pipelines))


def check_two_chunks(
    name: str, num_ranks: int, num_microbatches: int, chunks_per_rank: int
) -> None:
    """Refuse any number of chunks but two, one for each arm of a V.

    Examples
    --------
    >>> check_two_chunks("zb-v", 4, 8, chunks_per_rank=3)
    Traceback (most recent call last):
        ...
    minipipe.errors.ScheduleError: [value] chunks_per_rank is 3; zb-v is V-shaped and has exactly 2 chunks ...
    """
    check_sizes(num_ranks, num_microbatches, chunks_per_rank)
    if chunks_per_rank != 2:
        shape = f"{name} is V-shaped and has exactly 2 chunks on each rank"
        raise misuse(f"chunks_per_rank is {chunks_per_rank}; {shape}.")


def one_rank_each(placement: Placement, num_ranks: int) -> tuple[int, ...]:
    """Return the rank of each stage; refuse replicas.

    Examples
    --------
    >>> one_rank_each([(0, 1), 1], num_ranks=2)
    Traceback (most recent call last):
        ...
    minipipe.errors.ScheduleError: [placement] Stage 0 is placed on ranks (0, 1); expected one rank for each stage.
    """
    check_placement(placement, num_ranks)
    for stage, home in enumerate(placement):
        if len(ranks_in(home)) > 1:
            hint = "expected one rank for each stage"
            message = f"Stage {stage} is placed on ranks {quoted(home)}; {hint}."
            raise ScheduleError.of(Code.PLACEMENT, message)
    return tuple(ranks_in(home)[0] for home in placement)


def stages_by_rank(placement: Placement, num_ranks: int) -> list[list[int]]:
    """Return the stages of each rank, in ascending order.

    Examples
    --------
    >>> stages_by_rank(v_placement(3), num_ranks=3)
    [[0, 5], [1, 4], [2, 3]]
    """
    check_placement(placement, num_ranks)
    stages: list[list[int]] = [[] for _ in range(num_ranks)]
    for stage, home in enumerate(placement):
        for rank in ranks_in(home):
            stages[rank].append(stage)
    return stages
