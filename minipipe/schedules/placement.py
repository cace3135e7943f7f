"""Placements of stages on ranks, and the argument checks of the builders."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from minipipe.errors import ScheduleCode, ScheduleError, quoted, whole_number
from minipipe.io import MOST_ACTIONS, MOST_STAGES


def looped_placement(num_ranks: int, chunks_per_rank: int = 1) -> tuple[int, ...]:
    """Return the looped placement: chunk j of rank r is stage ``j * num_ranks + r``.

    Examples
    --------
    >>> looped_placement(3, chunks_per_rank=2)
    (0, 1, 2, 0, 1, 2)
    """
    return tuple(range(num_ranks)) * chunks_per_rank


def neighbouring_placement(num_ranks: int, chunks_per_rank: int = 1) -> tuple[int, ...]:
    """Return the placement of adjacent stages: rank r has ``chunks_per_rank`` of them, from ``r * chunks_per_rank`` on.

    Examples
    --------
    >>> neighbouring_placement(3, chunks_per_rank=2)
    (0, 0, 1, 1, 2, 2)
    """
    return tuple(rank for rank in range(num_ranks) for _ in range(chunks_per_rank))


def v_placement(num_ranks: int) -> tuple[int, ...]:
    """Return the placement in a V: rank r has stages r and ``2 * num_ranks - 1 - r``.

    The first and the last stage are on rank 0. The two stages of the last rank are adjacent, so values between them
    need no message.

    Examples
    --------
    >>> v_placement(3)
    (0, 1, 2, 2, 1, 0)
    """
    return (*range(num_ranks), *reversed(range(num_ranks)))


def stages_by_rank(placement: Sequence[int], num_ranks: int) -> list[list[int]]:
    """Return the stages of each rank, in ascending order.

    Examples
    --------
    >>> stages_by_rank(v_placement(3), num_ranks=3)
    [[0, 5], [1, 4], [2, 3]]
    """
    check_placement(placement, num_ranks)
    stages: list[list[int]] = [[] for _ in range(num_ranks)]
    for stage, rank in enumerate(placement):
        stages[rank].append(stage)
    return stages


def check_placement(placement: Sequence[Any], num_ranks: int) -> None:
    """Refuse a placement that names anything but one rank for each stage.

    Examples
    --------
    >>> check_placement((0, 2), num_ranks=2)
    Traceback (most recent call last):
        ...
    minipipe.errors.ScheduleError: [placement] Stage 1 is placed on rank 2 of 2.
    """
    for stage, rank in enumerate(placement):
        if isinstance(rank, list | tuple):
            hint = "A stage lives on one rank; replicas of a stage (Chimera, DualPipe) are not supported."
            raise ScheduleError.of(ScheduleCode.PLACEMENT, f"Stage {stage} is placed on {quoted(rank)}. {hint}")
        if not isinstance(rank, Integral):
            message = f"Stage {stage} is placed on {quoted(rank)}; expected the number of a rank, 0 to {num_ranks - 1}."
            raise ScheduleError.of(ScheduleCode.PLACEMENT, message)
        if not 0 <= int(rank) < num_ranks:
            raise ScheduleError.of(ScheduleCode.PLACEMENT, f"Stage {stage} is placed on rank {rank} of {num_ranks}.")


def check_counts(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 1) -> None:
    """Refuse counts that are not whole numbers of at least 1, as the arguments of a formula.

    Examples
    --------
    >>> check_counts(num_ranks=0, num_microbatches=8)
    Traceback (most recent call last):
        ...
    minipipe.errors.ScheduleError: [parameters] num_ranks is 0; expected a whole number, at least 1.
    """
    given = {"num_ranks": num_ranks, "num_microbatches": num_microbatches, "chunks_per_rank": chunks_per_rank}
    for name, value in given.items():
        whole_number(name, value, error=ScheduleError.of, code=ScheduleCode.PARAMETERS)


def check_sizes(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 1) -> None:
    """Refuse counts below 1, and schedules beyond the size limits.

    Examples
    --------
    >>> check_sizes(num_ranks=10**4, num_microbatches=10**6)
    Traceback (most recent call last):
        ...
    minipipe.errors.ScheduleError: [too-large] 10000 stages and 1000000 microbatches take 20000000000 actions, ...
    """
    check_counts(num_ranks, num_microbatches, chunks_per_rank)
    check_size(int(num_ranks) * int(chunks_per_rank), int(num_microbatches))


def check_size(num_stages: int, num_microbatches: int) -> None:
    """Refuse more stages, or more forwards and backwards, than the limits allow."""
    num_actions = 2 * num_stages * num_microbatches
    if num_stages > MOST_STAGES or num_actions > MOST_ACTIONS:
        asked = f"{quoted(num_stages)} stages and {quoted(num_microbatches)} microbatches"
        message = f"{asked} take {quoted(num_actions)} actions, F and B; the limits are {MOST_STAGES} stages and"
        raise ScheduleError.of(ScheduleCode.TOO_LARGE, f"{message} {MOST_ACTIONS} actions.")


def check_two_chunks(name: str, num_ranks: int, num_microbatches: int, chunks_per_rank: int) -> None:
    """Refuse any number of chunks but two, one for each arm of a V.

    Examples
    --------
    >>> check_two_chunks("zb-v", 4, 8, chunks_per_rank=3)
    Traceback (most recent call last):
        ...
    minipipe.errors.ScheduleError: [parameters] chunks_per_rank is 3; zb-v is V-shaped, with exactly 2 chunks ...
    """
    check_sizes(num_ranks, num_microbatches, chunks_per_rank)
    if chunks_per_rank != 2:
        message = f"chunks_per_rank is {chunks_per_rank}; {name} is V-shaped, with exactly 2 chunks on each rank."
        raise ScheduleError.of(ScheduleCode.PARAMETERS, message)
