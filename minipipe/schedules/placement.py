"""Which rank holds which stage, and the checks that every builder shares."""

from __future__ import annotations

from numbers import Integral

from minipipe.errors import Problem, ScheduleError

__all__ = ["check_counts", "looped_placement"]


def looped_placement(num_ranks: int, chunks_per_rank: int = 1) -> tuple[int, ...]:
    """Return the placement that goes round: chunk j of rank r is stage ``j * num_ranks + r``.

    Examples
    --------
    >>> looped_placement(3, chunks_per_rank=2)
    (0, 1, 2, 0, 1, 2)
    """
    return tuple(range(num_ranks)) * chunks_per_rank


def check_counts(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 1) -> None:
    """Refuse numbers below one, and what is not a whole number.

    Raises
    ------
    ScheduleError
        Code ``parameters``.
    """
    given = {"num_ranks": num_ranks, "num_microbatches": num_microbatches, "chunks_per_rank": chunks_per_rank}
    for name, value in given.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise ScheduleError([Problem("parameters", f"{name} is {value!r}; expected a whole number, at least 1.")])
