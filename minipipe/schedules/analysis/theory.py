"""Closed forms for time and memory from the papers, each with the conditions under which it holds.

Notation: p ranks, m microbatches, v chunks on each rank, r the rank. tF, tI and tW are the times of F, I and W of one
microbatch over all chunks of a rank, so that a chunk takes 1/v of them; tB = tI + tW. All stages take the same time,
and messages take none. The tests compare every formula with the simulator over a grid of sizes.
"""

from __future__ import annotations

from collections.abc import Callable

from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.schedules.closed_forms import Case
from minipipe.schedules.placement import check_counts
from minipipe.schedules.registry import CLOSED_FORMS, builder_of, default_chunks

__all__ = [
    "bubble_fraction",
    "bubble_over_ideal",
    "efficiency",
    "makespan",
    "memory_footprint_ratio",
    "peak_activations",
    "peak_memory",
    "recommended_num_microbatches",
    "span_bubble",
    "steady_period",
]


def makespan(
    name: str,
    num_ranks: int,
    num_microbatches: int,
    chunks_per_rank: int | None = None,
    *,
    forward: float = 1.0,
    backward_input: float = 1.0,
    backward_weight: float = 1.0,
) -> float:
    """Return the time from the first start to the last end of all ranks.

    GPipe and 1F1B take (m + p - 1)(tF + tB). Interleaved 1F1B and looped BFS take
    ((v-1) max(m,p) + m + p - 1)(tF + tB)/v. The docstrings of the zero-bubble schedules have their formulas.

    Parameters
    ----------
    name : str
        One of ``schedules.REGISTRY``.
    num_ranks, num_microbatches : int
    chunks_per_rank : int, optional
        The default depends on the schedule.
    forward, backward_input, backward_weight : float
        tF, tI and tW: the times of one microbatch over all chunks of a rank. A chunk takes 1/v of them.

    Returns
    -------
    float
        In the unit of the times.

    Raises
    ------
    ScheduleError
        Code ``no-formula``, if no formula is known (``v-half``, ``v-min``) or its conditions do not hold.

    Examples
    --------
    >>> makespan("1f1b", 4, 8), makespan("interleaved-1f1b", 4, 8, 2), makespan("zb-h1", 4, 8)
    (33.0, 28.5, 27.0)
    """
    case = _case(name, num_ranks, num_microbatches, chunks_per_rank, forward, backward_input, backward_weight)
    return _formula("makespan", case)(case)


def bubble_fraction(
    name: str, num_ranks: int, num_microbatches: int, chunks_per_rank: int | None = None, **times: float
) -> float:
    """Return the idle fraction of the total time: (p - 1)/(m + p - 1) for GPipe and 1F1B.

    Parameters and errors are those of :func:`makespan`.

    Examples
    --------
    >>> [round(100 * bubble_fraction("gpipe", 4, m)) for m in (4, 8, 16)]
    [43, 27, 16]
    """
    case = _case(name, num_ranks, num_microbatches, chunks_per_rank, **times)
    total = _formula("makespan", case)(case)
    return 1 - case.work / total if total else 0.0


def bubble_over_ideal(
    name: str, num_ranks: int, num_microbatches: int, chunks_per_rank: int | None = None, **times: float
) -> float:
    """Return idle time over work, Megatron's convention: (p - 1)/m for GPipe and 1F1B, (p - 1)/(m v) interleaved.

    Parameters and errors are those of :func:`makespan`.

    Examples
    --------
    >>> bubble_over_ideal("1f1b", 4, 8), bubble_over_ideal("interleaved-1f1b", 4, 8, 2)
    (0.375, 0.1875)
    """
    case = _case(name, num_ranks, num_microbatches, chunks_per_rank, **times)
    return _formula("makespan", case)(case) / case.work - 1 if case.work else 0.0


def span_bubble(
    name: str, num_ranks: int, num_microbatches: int, chunks_per_rank: int | None = None, **times: float
) -> float:
    """Return the largest idle time within a rank's own span, the bubble of the zero-bubble papers.

    A rank's own span runs from its first start to its last end.

    Parameters and errors are those of :func:`makespan`.

    Examples
    --------
    >>> span_bubble("1f1b", 4, 8), span_bubble("zb-h1", 4, 8), span_bubble("zb-h2", 4, 8)
    (9.0, 3.0, 0.0)
    """
    case = _case(name, num_ranks, num_microbatches, chunks_per_rank, **times)
    return _formula("span_bubble", case)(case)


def steady_period(name: str, num_ranks: int, num_microbatches: int, *, latency: float = 0.0, **times: float) -> float:
    """Return the time per microbatch in the steady state, with message latency.

    It is the larger of two times: a rank's work, and a round trip over all ranks divided by K, the number of
    microbatches in flight on rank 0: max(tF + tB, (p (tF + tB) + 2 (p - 1) c) / K). In ZB-H1 no other rank waits for W:
    max(tF + tI + tW, (p (tF + tI) + tW + 2 (p - 1) c) / p).

    Parameters
    ----------
    name : str
        ``"gpipe"``, ``"1f1b"``, ``"eager-1f1b"`` or ``"zb-h1"``.
    num_ranks, num_microbatches : int
    latency : float
        c, the time from the end of an action until its result is available on another rank.
    **times : float
        ``forward``, ``backward_input`` and ``backward_weight``.

    Returns
    -------
    float

    Raises
    ------
    ScheduleError
        Code ``no-formula``.

    Examples
    --------
    >>> times = {"forward": 2, "backward_input": 2, "backward_weight": 2, "latency": 1}
    >>> [steady_period(name, 4, 8, **times) for name in ("1f1b", "eager-1f1b", "gpipe")]
    [7.5, 6, 6]
    """
    case = _case(name, num_ranks, num_microbatches, None, **times)
    return _formula("period", case)(case, latency)


def peak_memory(
    name: str,
    num_ranks: int,
    num_microbatches: int,
    chunks_per_rank: int | None = None,
    *,
    activation: float = 1.0,
    weight_activation: float = 1.0,
) -> tuple[float, ...]:
    """Return the peak activation memory of each rank.

    Parameters
    ----------
    name : str
        One of ``schedules.REGISTRY``.
    num_ranks, num_microbatches : int
    chunks_per_rank : int, optional
        The default depends on the schedule.
    activation : float
        M_B: the memory of one microbatch of one stage from F until B or I.
    weight_activation : float
        M_W: its memory from I until W.

    Returns
    -------
    tuple of float

    Raises
    ------
    ScheduleError
        Code ``no-formula``, if no formula is known or its conditions do not hold.

    Examples
    --------
    >>> peak_memory("zb-h1", 4, 8, activation=2, weight_activation=1)
    (8, 7, 6, 5)
    """
    case = _case(name, num_ranks, num_microbatches, chunks_per_rank)
    pairs = [_formula("peak", case)(case, rank) for rank in range(num_ranks)]
    if CLOSED_FORMS[name].is_split:
        case.require(weight_activation <= activation, "weight_activation <= activation")
    if CLOSED_FORMS[name].holds_as_much_until_weights:
        case.require(weight_activation == activation, "weight_activation = activation")
    return tuple(held * activation + later * weight_activation for held, later in pairs)


def peak_activations(
    name: str, num_ranks: int, num_microbatches: int, chunks_per_rank: int | None = None
) -> tuple[int, ...]:
    """Return the largest number of (stage, microbatch) pairs that each rank holds at once.

    Parameters and errors are those of :func:`peak_memory`.

    Examples
    --------
    >>> peak_activations("1f1b", 4, 8), peak_activations("gpipe", 4, 8)
    ((4, 3, 2, 1), (8, 8, 8, 8))
    """
    case = _case(name, num_ranks, num_microbatches, chunks_per_rank)
    return tuple(sum(_formula("peak", case)(case, rank)) for rank in range(num_ranks))


def memory_footprint_ratio(num_ranks: int, num_microbatches: int, rank: int) -> float:
    """Return the activation memory of 1F1B on a rank relative to GPipe's: min(p - r, m) / m.

    Examples
    --------
    >>> memory_footprint_ratio(4, 8, rank=0)
    0.5
    """
    check_counts(num_ranks, num_microbatches)
    if rank not in range(num_ranks):
        raise ScheduleError.of(ScheduleCode.PARAMETERS, f"rank is {rank}; expected one of 0 to {num_ranks - 1}.")
    return min(num_ranks - rank, num_microbatches) / num_microbatches


def efficiency(num_ranks: int, num_microbatches: int) -> float:
    """Return the efficiency of GPipe and 1F1B, their work over the total time: m / (m + p - 1).

    Examples
    --------
    >>> [round(100 * efficiency(4, m)) for m in (4, 8, 16)]
    [57, 73, 84]
    """
    check_counts(num_ranks, num_microbatches)
    return num_microbatches / (num_microbatches + num_ranks - 1)


def recommended_num_microbatches(num_ranks: int) -> int:
    """Return 4p, a number of microbatches with which GPipe and 1F1B are at least 80 % efficient.

    References
    ----------
    Huang et al. 2019, "GPipe", section 2.3: the bubble is negligible when m >= 4p.

    Examples
    --------
    >>> recommended_num_microbatches(4), efficiency(4, 16) >= 0.8
    (16, True)
    """
    check_counts(num_ranks, 1)
    return 4 * num_ranks


def _case(
    name: str,
    p: int,
    m: int,
    v: int | None,
    forward: float = 1.0,
    backward_input: float = 1.0,
    backward_weight: float = 1.0,
) -> Case:
    """Return the arguments of a formula after checking the name, the sizes and the times."""
    default = default_chunks(builder_of(name))
    check_counts(p, m, default if v is None else v)
    times = (forward, backward_input, backward_weight)
    if not all(time >= 0 for time in times):
        message = f"The times are {forward}, {backward_input} and {backward_weight}; expected numbers, at least 0."
        raise ScheduleError.of(ScheduleCode.PARAMETERS, message)
    return Case(name, p, m, default if v is None else v, *((forward, 0, 0) if name == "forward-only" else times))


def _formula(figure: str, case: Case) -> Callable:
    formula = getattr(CLOSED_FORMS[case.name], figure)
    if formula is None:
        message = f"No closed form is known for {case.name}; simulate it instead."
        raise ScheduleError.of(ScheduleCode.NO_FORMULA, message)
    return formula
