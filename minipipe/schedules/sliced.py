"""Seq1F1B: 1F1B over slices of sequences, and the positions that cut a sequence into
slices of equal work.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from minipipe.core.schedules.action import Action, B, F
from minipipe.core.schedules.action_table import Schedule
from minipipe.core.schedules.one_f_one_b import warmup_then_pairs
from minipipe.core.schedules.placement import (
    check_counts,
    check_sizes,
    looped_placement,
)
from minipipe.core.specs import SCHEDULE_COUNT, SCHEDULE_NUMBER

_ATTENTION = SCHEDULE_NUMBER._replace(
    maximum=1, expected="its fraction of the work, from 0 to 1"
)


def seq1f1b(num_ranks: int, num_microbatches: int, num_slices: int = 2) -> Schedule:
    """Return Seq1F1B: 1F1B in which each microbatch, a sequence, is cut into slices
    that pass the ranks one by one.

    ::

        rank 0: F0.0 F0.1 F1.0      B0.1 F1.1 B0.0      B1.1 B1.0
        rank 1:      F0.0 F0.1 B0.1 F1.0 B0.0 F1.1 B1.1 B1.0

    A slice attends to earlier slices, so forwards of a sequence ascend, and backwards
    descend: the backward of the first sequence begins with its last slice. With p
    ranks, m sequences and k slices, the warm-up of rank r is w = min(p + k - 2 - r, m
    k) forwards. For slices of equal work the makespan is (m + (p - 1) / k)(tF + tB),
    with the times of a sequence: the bubble of 1F1B over k. Rank r holds at most p + k
    - 1 - r slices, each 1/k of a sequence.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1. A microbatch is a whole sequence here; ``num_microbatches`` of the
        schedule counts slices.
    num_slices : int
        The number of slices of a sequence, at least 1. With one slice the result is
        1F1B.

    Returns
    -------
    Schedule

    References
    ----------
    Sun et al. 2024, "Seq1F1B: efficient sequence-level pipeline parallelism for large
    language model training", arXiv 2406.03488.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> print(seq1f1b(2, 1))
    # seq1f1b: 2 ranks, 2 stages, 1 sequence of 2 slices
    rank 0: 0F0.0 0F0.1 0B0.1 0B0.0
    rank 1: 1F0.0 1F0.1 1B0.1 1B0.0
    >>> [simulate(seq1f1b(4, 8, k)).makespan - 8 * 3 for k in (1, 2, 4)]
    [9.0, 4.5, 2.25]
    """
    check_counts(num_ranks, num_microbatches)
    n = SCHEDULE_COUNT.check("num_slices", num_slices)
    m = num_microbatches * n
    check_sizes(num_ranks, m)
    # a sequence goes back from its last slice to its first
    order = [start + i for start in range(0, m, n) for i in reversed(range(n))]
    rows = []
    for rank in range(num_ranks):
        forwards = [Action(rank, F, k) for k in range(m)]
        backwards = [Action(rank, B, k) for k in order]
        warmup = num_ranks + n - 2 - rank
        rows.append(warmup_then_pairs(forwards, backwards, warmup))
    placement = looped_placement(num_ranks)
    return Schedule("seq1f1b", placement, m, tuple(rows), num_slices=n)


def equal_work_cuts(
    num_tokens: int, num_slices: int, attention: float
) -> tuple[int, ...]:
    """Return where to cut a sequence into slices of equal work under causal attention,
    in tokens from its start.

    Token t attends to t others. With a the fraction of attention in the whole work, the
    work up to a part x of the sequence is (1 - a) x + a x². It is j/k of the whole at x
    = 2 (j/k) / (1 - a + sqrt((1 - a)² + 4 a j/k)), which is rounded to whole tokens.

    Parameters
    ----------
    num_tokens : int
        The length of the sequence, at least ``num_slices``.
    num_slices : int
    attention : float
        a, from 0 to 1. A layer of hidden size h, whose perceptron has 4 h, takes 24 s
        h² floating-point operations for s tokens, and 2 s² h more in causal attention:
        a = s / (s + 12 h).

    Returns
    -------
    tuple of int
        ``num_slices + 1`` ascending positions: slice i has the tokens from ``cuts[i]``
        up to ``cuts[i + 1]``.

    Raises
    ------
    ScheduleError
        Code ``value``.

    References
    ----------
    Sun et al. 2024, "Seq1F1B: efficient sequence-level pipeline parallelism for large
    language model training", arXiv 2406.03488: a partition of the sequence by
    computation.

    Examples
    --------
    >>> equal_work_cuts(1000, 4, attention=0), equal_work_cuts(1000, 4, attention=1)
    ((0, 250, 500, 750, 1000), (0, 500, 707, 866, 1000))
    """
    n = SCHEDULE_COUNT.check("num_slices", num_slices)
    SCHEDULE_COUNT._replace(minimum=n).check("num_tokens", num_tokens)
    linear = 1 - _fraction(attention)
    parts = (j / n for j in range(1, n))
    cuts = [0]
    for j, part in enumerate(parts, 1):
        x = 2 * part / (linear + sqrt(linear**2 + 4 * attention * part))
        # a token is left for each
        cuts.append(min(max(round(x * num_tokens), cuts[-1] + 1), num_tokens - (n - j)))
    return (*cuts, num_tokens)


def slice_work(cuts: Sequence[int], attention: float) -> tuple[float, ...]:
    """Return, by slice, its part of the work of a sequence under causal attention, for
    ``Costs(slice_work=…)``.

    Parameters
    ----------
    cuts : sequence of int
        The starts of the slices, in tokens, and the end of the last one, as from
        :func:`equal_work_cuts`.
    attention : float
        The fraction of attention in the work of the whole sequence, from 0 to 1.

    Returns
    -------
    tuple of float
        Their sum is 1.

    Raises
    ------
    ScheduleError
        Code ``value``.

    Examples
    --------
    With slices of equal length, the last one has the most work. They take longer than
    1F1B, which takes 33.

    >>> from minipipe import Costs, schedules, simulate
    >>> equal_length = slice_work((0, 500, 1000), attention=0.5)
    >>> (
    ...     equal_length,
    ...     simulate(schedules.seq1f1b(4, 8), Costs(slice_work=equal_length)).makespan,
    ... )
    ((0.375, 0.625), 34.875)
    >>> equal_work = slice_work(equal_work_cuts(1000, 2, attention=0.5), attention=0.5)
    >>> round(
    ...     simulate(schedules.seq1f1b(4, 8), Costs(slice_work=equal_work)).makespan, 2
    ... )
    28.5
    """
    if len(cuts) < 2 or cuts[0] != 0 or any(b <= a for a, b in zip(cuts, cuts[1:])):
        expected = "ascending numbers of tokens, from 0 to the length of the sequence"
        raise SCHEDULE_NUMBER.refusal("cuts", cuts, expected)
    linear = 1 - _fraction(attention)
    ends = [cut / cuts[-1] for cut in cuts]
    pairs = zip(ends, ends[1:])
    return tuple((b - a) * (linear + attention * (a + b)) for a, b in pairs)


def _fraction(attention: float) -> float:
    _ATTENTION.check("attention", attention)
    return float(attention)
