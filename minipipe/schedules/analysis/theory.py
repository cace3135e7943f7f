"""Closed forms for time and memory from the papers, each with its conditions, and the
grid of ticks behind them.

Notation: p ranks, m microbatches, v chunks on each rank, r the rank. tF, tI and tW are
the times of F, I and W of one microbatch over all chunks of a rank, so that a chunk
takes 1/v of them; tB = tI + tW. All stages take the same time, and messages take none.
The tests compare every formula with the simulator over a grid of sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from math import inf
from typing import Any, NamedTuple

from minipipe.core.schedules.action import Action
from minipipe.core.schedules.action_table import ActionTable
from minipipe.core.schedules.analysis.walk import complete_walk
from minipipe.core.schedules.placement import check_counts
from minipipe.core.specs import SCHEDULE_COUNT, SCHEDULE_NUMBER
from minipipe.errors import Code, ScheduleError
from minipipe.schedules.features import without_overlaps
from minipipe.schedules.registry import builder_of, default_of, spelled

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
    "tick_grid",
]

_TIME = SCHEDULE_NUMBER._replace(maximum=inf, expected="a number, at least 0")


class Case(NamedTuple):
    """The arguments of a formula: the sizes, the times tF, tI and tW, the memory M_B
    and M_W, and the slices.
    """

    name: str
    p: int
    m: int
    v: int
    tf: float = 1.0
    ti: float = 1.0
    tw: float = 1.0
    activation: float = 1.0
    weight_activation: float = 1.0
    k: int = 1

    @property
    def round(self) -> float:
        """The work of one rank for one microbatch, in units of time."""
        return self.tf + self.ti + self.tw

    @property
    def work(self) -> float:
        """The work of one rank for all microbatches, in units of time."""
        return self.m * self.round


class ClosedForms(NamedTuple):
    """The formulas of a schedule, if they are known.

    Attributes
    ----------
    makespan, span_bubble : function of Case, optional
        The second is the largest idle time within a rank's own span.
    peak : function of p, m, v and r, and of k if sequences have slices, optional
        At the peak, the number of chunks (or slices of chunks) held between F and B or
        I, and between I and W.
    period : function of Case and latency, optional
        The time per microbatch in the steady state.
    conditions : tuple of str
        Keys of the tables of conditions.
    """

    makespan: Callable[[Case], float] | None = None
    span_bubble: Callable[[Case], float] | None = None
    peak: Callable[..., tuple[int, int]] | None = None
    period: Callable[[Case, float], float] | None = None
    conditions: tuple[str, ...] = ()


# Conditions on sizes, which apply to all formulas, on times and on memory: each has its
# text as its key.
_OF_SIZES: dict[str, Callable[[Case], bool]] = {
    "two chunks on each rank": lambda case: case.v == 2,
    "one chunk on each rank": lambda case: case.v == 1,
    "an even number of chunks on each rank": lambda case: case.v % 2 == 0,
    "an even number of ranks": lambda case: case.p % 2 == 0,
    "an even number of microbatches": lambda case: case.m % 2 == 0,
    "m a multiple of p": lambda case: case.m % case.p == 0,
    "m >= p": lambda case: case.m >= case.p,
    "m >= 2p - 1": lambda case: case.m >= 2 * case.p - 1,
    "m >= 2p": lambda case: case.m >= 2 * case.p,
}
_OF_TIMES: dict[str, Callable[[Case], bool]] = {
    "tW <= tF": lambda case: case.tw <= case.tf,
    "2 tW <= tF + tI": lambda case: 2 * case.tw <= case.tf + case.ti,
    "tF = tI = tW": lambda case: case.tf == case.ti == case.tw,
}


def _is_weight_smaller(case: Case) -> bool:
    return case.weight_activation <= case.activation


_OF_MEMORY: dict[str, Callable[[Case], bool]] = {
    "weight_activation <= activation": _is_weight_smaller,
    "weight_activation = activation": lambda it: it.weight_activation == it.activation,
}
_CONDITIONS = {
    "makespan": _OF_SIZES | _OF_TIMES,
    "span_bubble": _OF_SIZES | _OF_TIMES,
    "peak": _OF_SIZES | _OF_MEMORY,
    "period": _OF_SIZES,
}


def _straight(case: Case) -> float:
    """Return the makespan of a schedule whose ranks run their chunks as one."""
    return (case.m + case.p - 1) * case.round


def _bubble_of_first_rank(case: Case) -> float:
    return _value("makespan", case) - case.work  # it starts first and ends last


def _round_trip(case: Case, latency: float) -> float:
    """Return the larger of a rank's work and a round trip over all ranks, divided by
    the microbatches in flight.
    """
    in_flight = _value("peak", case, 0)[0]
    trip = case.p * case.round + 2 * (case.p - 1) * latency
    return max(case.round, trip / in_flight)


def _sliced(case: Case) -> float:
    return (case.m + (case.p - 1) / case.k) * case.round


def _held_in_slices(p: int, m: int, v: int, r: int, k: int = 1) -> tuple[int, int]:
    return min(p - r + k - 1, m * k), 0


def _looped(case: Case) -> float:
    slots = (case.v - 1) * max(case.m, case.p) + case.m + case.p - 1
    return slots / case.v * case.round


def _ahead(p: int, m: int, v: int) -> int:
    """Return (v - 1) g, where g is the size of the largest group of microbatches."""
    return (v - 1) * -(-m // max(1, m // p))


def _zb_makespan(case: Case, weights: int = 1) -> float:
    gap = _zb_span_bubble(case._replace(p=2), weights)
    return case.work + (case.p - 1) * max(case.tf, gap)


def _zb_span_bubble(case: Case, weights: int = 1) -> float:
    return (case.p - 1) * (case.tf + case.ti - weights * case.tw)


def _h1_period(case: Case, latency: float) -> float:
    # No other rank waits for W.
    trip = case.p * (case.tf + case.ti) + case.tw
    return max(case.round, (trip + 2 * (case.p - 1) * latency) / case.p)


def _waves_makespan(case: Case, pipelines: int) -> float:
    shorter, longer = sorted((case.tf, case.ti + case.tw))
    # A rank is idle in these slots: at its ends, if F and B take as long
    slots = 2 * case.p // pipelines - 2
    return case.work + slots / case.v * (shorter + case.m / case.p * (longer - shorter))


def _held_both_ways(p: int, m: int, v: int, r: int) -> tuple[int, int]:
    return (2 * v - 1) * p // 2 + 1 + min(r, p - 1 - r), 0


def _v_makespan(case: Case) -> float:
    return (6 * case.m + case.p - 1) * case.tf / case.v


_ONE_CHUNK = "one chunk on each rank"
_TWO_CHUNKS = "two chunks on each rank"
_H1 = ("m >= p", "tW <= tF", "weight_activation <= activation")
_H2 = ("m >= 2p - 1", "tW <= tF", "2 tW <= tF + tI", "weight_activation <= activation")
_EQUAL_TIMES = ("tF = tI = tW", "weight_activation <= activation")
_CONTROLLABLE = (_TWO_CHUNKS, "m >= p", "weight_activation = activation")
_TWO_WAYS = ("an even number of ranks", "m a multiple of p")

_STRAIGHT = ClosedForms(_straight, _bubble_of_first_rank, period=_round_trip)
_1F1B = _STRAIGHT._replace(peak=lambda p, m, v, r: (v * min(p - r, m), 0))
# Updates take no time in a formula.
_ASYNCHRONOUS = _1F1B._replace(conditions=(_ONE_CHUNK,))
_LOOPED = ClosedForms(_looped, _bubble_of_first_rank)
_WAVES = ClosedForms(
    partial(_waves_makespan, pipelines=2), _bubble_of_first_rank, _held_both_ways
)


# the pairs that a rank holds until B or I, and from I until W
def _h1_peak(p: int, m: int, v: int, r: int) -> tuple[int, int]:
    return v * (p - r), v * r


def _h2_peak(p: int, m: int, v: int, r: int) -> tuple[int, int]:
    return v * (2 * (p - r) - 1), v * 2 * r


def _eager_peak(p: int, m: int, v: int, r: int) -> tuple[int, int]:
    return v * min(2 * (p - r) - 1, m), 0


def _interleaved_peak(p: int, m: int, v: int, r: int) -> tuple[int, int]:
    return min(2 * (p - r - 1) + _ahead(p, m, v) + 1, m * v), 0


_V_SHAPED = ClosedForms(conditions=_CONTROLLABLE)
_ZB_V = (_TWO_CHUNKS, "m >= 2p - 1", *_EQUAL_TIMES)
_DUALPIPE_V = (_TWO_CHUNKS, "m >= 2p", *_EQUAL_TIMES)
_HANAYO = ("an even number of chunks on each rank", "m a multiple of p")
_BOTH_EVEN = ("an even number of ranks", "an even number of microbatches")
CLOSED_FORMS: dict[str, ClosedForms] = {
    "sequential": ClosedForms(
        lambda case: case.p * case.work,
        lambda case: (case.p - 1) * case.work,
        lambda p, m, v, r: (v, 0),
    ),
    "gpipe": _STRAIGHT._replace(peak=lambda p, m, v, r: (v * m, 0)),
    "1f1b": _1F1B,
    "eager-1f1b": _STRAIGHT._replace(peak=_eager_peak),
    "seq1f1b": ClosedForms(
        _sliced, _bubble_of_first_rank, _held_in_slices, conditions=(_ONE_CHUNK,)
    ),
    "interleaved-1f1b": _LOOPED._replace(peak=_interleaved_peak),
    "looped-bfs": _LOOPED._replace(peak=lambda p, m, v, r: (m * v, 0)),
    "zb-h1": ClosedForms(_zb_makespan, _zb_span_bubble, _h1_peak, _h1_period, _H1),
    "zb-h2": ClosedForms(
        partial(_zb_makespan, weights=2),
        partial(_zb_span_bubble, weights=2),
        _h2_peak,
        conditions=_H2,
    ),
    "interleaved-zb": ClosedForms(
        lambda case: case.work + (_zb_makespan(case) - case.work) / case.v,
        lambda case: _zb_span_bubble(case) / case.v,
        lambda p, m, v, r: (_ahead(p, m, v) + p - r, r),
        conditions=_H1,
    ),
    "zb-v": ClosedForms(
        _v_makespan, lambda case: 0.0, lambda p, m, v, r: (2 * p, 0), conditions=_ZB_V
    ),
    "v-half": _V_SHAPED._replace(peak=lambda p, m, v, r: (2 * ((p + 2) // 2), 0)),
    "v-min": _V_SHAPED._replace(peak=lambda p, m, v, r: (2 * ((p + 4) // 3), 0)),
    "dualpipe-v": ClosedForms(
        _v_makespan,
        lambda case: (case.p - 1) * case.tf / case.v,
        lambda p, m, v, r: (2 * p + 1, 0),
        conditions=_DUALPIPE_V,
    ),
    "hanayo": ClosedForms(
        partial(_waves_makespan, pipelines=1),
        _bubble_of_first_rank,
        lambda p, m, v, r: ((v - 1) * p + 1 + r, 0),
        conditions=_HANAYO,
    ),
    "chimera": _WAVES._replace(conditions=(_ONE_CHUNK, *_TWO_WAYS)),
    "bitpipe": _WAVES._replace(conditions=(_TWO_CHUNKS, *_TWO_WAYS)),
    "dualpipe": ClosedForms(
        lambda case: (3 * case.m + case.p // 2 - 1) * case.tf,
        lambda case: (case.p // 2 - 1) * case.tf,
        lambda p, m, v, r: (p + 1, 0),
        conditions=(_ONE_CHUNK, *_BOTH_EVEN, "m >= 2p", *_EQUAL_TIMES),
    ),
    **dict.fromkeys(("pipedream", "vertical-sync", "2bw", "paci"), _ASYNCHRONOUS),
    "forward-only": ClosedForms(_looped, peak=lambda p, m, v, r: (1, 0)),
}


def makespan(
    name: str,
    num_ranks: int,
    num_microbatches: int,
    chunks_per_rank: int | None = None,
    **times: float,
) -> float:
    """Return the time from the first start to the last end of all ranks.

    GPipe and 1F1B take (m + p - 1)(tF + tB). Interleaved 1F1B and looped BFS take
    ((v-1) max(m,p) + m + p - 1)(tF + tB)/v. The docstrings of the zero-bubble schedules
    have their formulas.

    Parameters
    ----------
    name : str
        One of ``schedules.REGISTRY``.
    num_ranks, num_microbatches : int
    chunks_per_rank : int, optional
        The default depends on the schedule.
    **times : float
        ``forward``, ``backward_input`` and ``backward_weight``, each 1 by default: the
        times tF, tI and tW of one microbatch over all chunks of a rank. A chunk takes
        1/v of them. For ``"seq1f1b"`` also ``num_slices``, 2 by default; a slice takes
        1/k of them.

    Returns
    -------
    float
        In the unit of the times.

    Raises
    ------
    ScheduleError
        Code ``unsupported``, if no formula is known (``v-half``, ``v-min``) or its
        conditions do not hold.

    Examples
    --------
    >>> (
    ...     makespan("1f1b", 4, 8),
    ...     makespan("interleaved-1f1b", 4, 8, 2),
    ...     makespan("zb-h1", 4, 8),
    ... )
    (33.0, 28.5, 27.0)
    """
    case = _case(name, num_ranks, num_microbatches, chunks_per_rank, **times)
    return _value("makespan", case)


def bubble_fraction(
    name: str,
    num_ranks: int,
    num_microbatches: int,
    chunks_per_rank: int | None = None,
    **times: float,
) -> float:
    """Return the idle fraction of the total time: (p - 1)/(m + p - 1) for GPipe and
    1F1B.

    Parameters and errors are as in :func:`makespan`.

    Examples
    --------
    >>> [round(100 * bubble_fraction("gpipe", 4, m)) for m in (4, 8, 16)]
    [43, 27, 16]
    """
    case = _case(name, num_ranks, num_microbatches, chunks_per_rank, **times)
    total = _value("makespan", case)
    if not total:
        return 0.0
    return 1 - case.work / total


def bubble_over_ideal(
    name: str,
    num_ranks: int,
    num_microbatches: int,
    chunks_per_rank: int | None = None,
    **times: float,
) -> float:
    """Return idle time over work, Megatron's convention: (p - 1)/m for GPipe and 1F1B,
    (p - 1)/(m v) interleaved.

    Parameters and errors are as in :func:`makespan`.

    Examples
    --------
    >>> bubble_over_ideal("1f1b", 4, 8), bubble_over_ideal("interleaved-1f1b", 4, 8, 2)
    (0.375, 0.1875)
    """
    case = _case(name, num_ranks, num_microbatches, chunks_per_rank, **times)
    if not case.work:
        return 0.0
    return _value("makespan", case) / case.work - 1


def span_bubble(
    name: str,
    num_ranks: int,
    num_microbatches: int,
    chunks_per_rank: int | None = None,
    **times: float,
) -> float:
    """Return the largest idle time within a rank's own span, the bubble of the
    zero-bubble papers.

    A rank's own span runs from its first start to its last end.

    Parameters and errors are as in :func:`makespan`.

    Examples
    --------
    >>> [span_bubble("seq1f1b", 4, 8, num_slices=k) for k in (1, 2, 4)]
    [9.0, 4.5, 2.25]
    >>> (
    ...     span_bubble("1f1b", 4, 8),
    ...     span_bubble("zb-h1", 4, 8),
    ...     span_bubble("zb-h2", 4, 8),
    ... )
    (9.0, 3.0, 0.0)
    """
    case = _case(name, num_ranks, num_microbatches, chunks_per_rank, **times)
    return _value("span_bubble", case)


def steady_period(
    name: str,
    num_ranks: int,
    num_microbatches: int,
    *,
    latency: float = 0.0,
    **times: float,
) -> float:
    """Return the time per microbatch in the steady state, with message latency.

    It is the larger of two times: a rank's work, and a round trip over all ranks
    divided by K, the number of microbatches in flight on rank 0: max(tF + tB, (p (tF +
    tB) + 2 (p - 1) c) / K). In ZB-H1 no other rank waits for W: max(tF + tI + tW, (p
    (tF + tI) + tW + 2 (p - 1) c) / p).

    Parameters
    ----------
    name : str
        ``"gpipe"``, ``"1f1b"``, ``"eager-1f1b"`` or ``"zb-h1"``.
    num_ranks, num_microbatches : int
    latency : float
        c, the time from the end of an action until its result is available on another
        rank.
    **times : float
        ``forward``, ``backward_input`` and ``backward_weight``.

    Returns
    -------
    float

    Raises
    ------
    ScheduleError
        Code ``unsupported``.

    Examples
    --------
    >>> times = {"forward": 2, "backward_input": 2, "backward_weight": 2, "latency": 1}
    >>> [steady_period(name, 4, 8, **times) for name in ("1f1b", "eager-1f1b", "gpipe")]
    [7.5, 6, 6]
    """
    case = _case(name, num_ranks, num_microbatches, None, **times)
    return _value("period", case, latency)


def peak_memory(
    name: str,
    num_ranks: int,
    num_microbatches: int,
    chunks_per_rank: int | None = None,
    *,
    activation: float = 1.0,
    weight_activation: float = 1.0,
    num_slices: int | None = None,
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
    num_slices : int, optional
        For ``"seq1f1b"``: the number of slices of a microbatch; 2 by default.

    Returns
    -------
    tuple of float

    Raises
    ------
    ScheduleError
        Code ``unsupported``, if no formula is known or its conditions do not hold.

    Examples
    --------
    >>> peak_memory("zb-h1", 4, 8, activation=2, weight_activation=1)
    (8, 7, 6, 5)
    """
    case = _case(
        name, num_ranks, num_microbatches, chunks_per_rank, num_slices=num_slices
    )
    if case.k > 1:
        activation = activation / case.k
        weight_activation = weight_activation / case.k
    case = case._replace(activation=activation, weight_activation=weight_activation)
    pairs = [_value("peak", case, rank) for rank in range(num_ranks)]
    return tuple(held * activation + later * weight_activation for held, later in pairs)


def peak_activations(
    name: str,
    num_ranks: int,
    num_microbatches: int,
    chunks_per_rank: int | None = None,
    *,
    num_slices: int | None = None,
) -> tuple[int, ...]:
    """Return the largest number of (stage, microbatch) pairs that each rank holds at
    once; a slice is a microbatch.

    Parameters and errors are as in :func:`peak_memory`.

    Examples
    --------
    >>> peak_activations("1f1b", 4, 8), peak_activations("gpipe", 4, 8)
    ((4, 3, 2, 1), (8, 8, 8, 8))
    """
    case = _case(
        name, num_ranks, num_microbatches, chunks_per_rank, num_slices=num_slices
    )
    return tuple(sum(_value("peak", case, rank)) for rank in range(num_ranks))


def memory_footprint_ratio(num_ranks: int, num_microbatches: int, rank: int) -> float:
    """Return the activation memory of 1F1B on a rank relative to GPipe's: min(p - r, m)
    / m.

    Examples
    --------
    >>> memory_footprint_ratio(4, 8, rank=0)
    0.5
    """
    check_counts(num_ranks, num_microbatches)
    SCHEDULE_COUNT._replace(minimum=0, maximum=num_ranks - 1).check("rank", rank)
    return min(num_ranks - rank, num_microbatches) / num_microbatches


def efficiency(num_ranks: int, num_microbatches: int) -> float:
    """Return the efficiency of GPipe and 1F1B, their work over the total time: m / (m +
    p - 1).

    Examples
    --------
    >>> [round(100 * efficiency(4, m)) for m in (4, 8, 16)]
    [57, 73, 84]
    """
    check_counts(num_ranks, num_microbatches)
    return num_microbatches / (num_microbatches + num_ranks - 1)


def recommended_num_microbatches(num_ranks: int) -> int:
    """Return 4p, a number of microbatches with which GPipe and 1F1B are at least 80 %
    efficient.

    It is advice, not a default: without ``num_microbatches``, schedules have 8 on any
    number of ranks, see :func:`minipipe.schedules.build`.

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
    num_slices: float | None = None,
) -> Case:
    """Return the arguments of a formula after checking the name, the sizes and the
    times.
    """
    name = spelled(name)
    builder = builder_of(name)
    if v is None:
        v = default_of(builder, "chunks_per_rank")
    slices = default_of(builder, "num_slices")
    check_counts(p, m, v)
    if num_slices is not None:
        slices = SCHEDULE_COUNT.check("num_slices", num_slices)
        if slices > 1 and default_of(builder_of(name), "num_slices") == 1:
            problem = f"no closed form is known for {name} with slices"
            message = f"num_slices is {slices}, and {problem}; leave it out."
            raise ScheduleError.of(Code.UNSUPPORTED, message)
    times = (forward, backward_input, backward_weight)
    for time in times:
        _TIME.check("One of the times", time)
    if name == "forward-only":
        times = (forward, 0, 0)
    return Case(name, p, m, v, *times)._replace(k=slices)


def _value(figure: str, case: Case, *more: Any) -> Any:
    """Return the value of a formula, after checking its conditions; ``more`` is a rank,
    or a latency.
    """
    forms = CLOSED_FORMS.get(case.name, ClosedForms())
    formula = getattr(forms, figure)
    if formula is None:
        message = f"No closed form is known for {case.name}; simulate it instead."
        raise ScheduleError.of(Code.UNSUPPORTED, message)
    for text in forms.conditions:
        is_met = _CONDITIONS[figure].get(text)
        if is_met and not is_met(case):
            message = f"The formula for {case.name} holds only for {text}."
            raise ScheduleError.of(Code.UNSUPPORTED, message)
    if figure != "peak":
        return formula(case, *more)
    sizes = [case.p, case.m, case.v, *more]
    if case.k > 1:
        sizes.append(case.k)
    return formula(*sizes)


def tick_grid(schedule: ActionTable) -> tuple[tuple[Action | None, ...], ...]:
    """Return one row for each rank and in it one cell for each tick: an action, or None
    if the rank is idle.

    Every action takes one tick, whatever its kind, and runs as early as it can; SEND
    and RECV are left out.

    Raises
    ------
    ScheduleError
        Code ``deadlock``, if the schedule cannot run to its end; ``overlap``, if it has
        overlapped actions.

    Examples
    --------
    >>> from minipipe import schedules
    >>> for row in tick_grid(schedules.gpipe(2, 2)):
    ...     print(*(cell or "---" for cell in row))
    0F0 0F1 --- --- 0B0 0B1
    --- 1F0 1F1 1B0 1B1 ---
    """
    walked = complete_walk(without_overlaps(schedule.schedule, "a tick grid"))
    num_ticks = len(walked.rounds)
    grid: list[list[Action | None]] = [[None] * num_ticks for _ in schedule.actions]
    order = walked.order()
    for tick, ranks in enumerate(walked.rounds):
        for rank, action in islice(order, len(ranks)):
            grid[rank][tick] = action
    return tuple(map(tuple, grid))
