"""1F1B: after a warm-up, forwards and backwards alternate.

File 1 of 13 on the first path through the code (README.md): next comes
``core/schedules/action.py``. With one chunk per rank, ``straight`` makes a schedule of the
rows as they are: rank r holds stage r.
"""

from __future__ import annotations

from itertools import chain

from minipipe.core.schedules.action import Action, B, F
from minipipe.core.schedules.action_table import Schedule
from minipipe.core.schedules.placement import check_sizes
from minipipe.core.schedules.straight import straight


def one_f_one_b(
    num_ranks: int, num_microbatches: int, chunks_per_rank: int = 1
) -> Schedule:
    """Return 1F1B: just enough forwards to fill the pipeline, then forwards and
    backwards in alternation.

    ::

        rank 0: F0 F1    B0 F2 B1 F3 B2    B3
        rank 1:    F0 B0 F1 B1 F2 B2 F3 B3

    With p ranks and m microbatches, the warm-up of rank r is w = min(p - 1 - r, m)
    forwards, here 1 and 0. One more forward runs before the first backward, as the
    first half of the alternation. With times tF and tB the makespan is (m + p - 1)(tF +
    tB), the same as GPipe's, but rank r holds the activations of at most min(p - r, m)
    microbatches. 1F1B saves memory, not time.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1.
    chunks_per_rank : int
        At least 1. Rank r has that many adjacent stages, from ``r * chunks_per_rank``
        on, and runs them as one.

    Returns
    -------
    Schedule

    References
    ----------
    Narayanan et al. 2021, "Memory-efficient pipeline-parallel DNN training"
    (PipeDream-flush), figure 3.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(schedules.one_f_one_b(2, 3))
    # 1f1b: 2 ranks, 2 stages, 3 microbatches
    rank 0: 0F0 0F1 0B0 0F2 0B1 0B2
    rank 1: 1F0 1B0 1F1 1B1 1F2 1B2
    """
    check_sizes(num_ranks, num_microbatches, chunks_per_rank)
    rows = []
    for rank in range(num_ranks):
        forwards = [Action(rank, F, k) for k in range(num_microbatches)]
        backwards = [Action(rank, B, k) for k in range(num_microbatches)]
        warmup = num_ranks - 1 - rank
        rows.append(warmup_then_pairs(forwards, backwards, warmup))
    return straight("1f1b", rows, num_microbatches, chunks_per_rank)


def warmup_then_pairs(
    forwards: list[Action], backwards: list[Action], warmup: int
) -> tuple[Action, ...]:
    """Return warm-up (forwards), steady state (forwards and backwards in alternation)
    and cool-down (backwards).

    There are as many backwards as forwards. If there are fewer than the warm-up has,
    all of them are in it.

    Examples
    --------
    >>> forwards = [Action(0, F, k) for k in range(3)]
    >>> backwards = [Action(0, B, k) for k in range(3)]
    >>> print(*warmup_then_pairs(forwards, backwards, warmup=1))
    0F0 0F1 0B0 0F2 0B1 0B2
    """
    pairs = list(zip(forwards[warmup:], backwards))
    return (*forwards[:warmup], *chain.from_iterable(pairs), *backwards[len(pairs) :])
