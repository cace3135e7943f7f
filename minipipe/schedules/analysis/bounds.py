r"""Lower bounds on the time of every schedule of a workload.

Notation for one rank: ``low`` and ``high`` are its first and its last stage, the same
if it has one stage. n is the number of its stages, m the number of microbatches, and L
the most memory that it may hold. tF, tI and tW are the times of its actions, M_B and
M_W the memory of a microbatch from F until I and from I until W. The proofs use the
following facts.

(order) All microbatches are equal. So the actions of each kind on each stage may be
numbered in the order of their starts: F_j(s) is the j-th forward on stage s.
Renumbering keeps all dependencies, since j actions have j different producers, and
keeps the memory, which depends on counts alone.

(first) The first action of a rank is F_0(low), and its first I is I_0(high): all others
come after them on the path of a microbatch. Before that I it runs only forwards,
because W comes after I. All of them are held when the I starts.

(last) Its last F is F_m-1(high), and its last I is I_m-1(low), for the same reason.
When that F ends, the last microbatch waits for I on all n stages. If then a pairs wait
for I and b for W, it holds a M_B + b M_W <= L.

The span of a rank, with the waits that no schedule avoids, is therefore::

    F_0(low)       I_0(high)                  F_m-1(high)              I_m-1(low)
    |-- forwards --|-- F, I and W ------------|-- I and W --------------|-- W --|
    |<- a round ->|  further rounds, if k < m  |<- a round, and the W -------->|

A rank's own span starts at time 0. The makespan starts earlier, by the path to the
rank, and ends later, by the path back. The own span of the rank of stage 0 does so as
well, because the first microbatch begins there and the last one ends there. An action
occupies its rank for its time and the overhead after it. The last overhead of a rank
does not count.

If the stages of one rank differ, each counts with the longest time and the least memory
among them. With one stage on each rank this changes nothing. Blocking messages,
contention of ranks, and updates only make a schedule longer.

References
----------
Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, appendix B: the
wait before the first gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import cached_property
from itertools import accumulate
from math import inf
from typing import NamedTuple

from minipipe.schedules.analysis.workload import (
    ROUNDING,
    Objective,
    Workload,
    check_memory,
)
from minipipe.schedules.placements import stages_by_rank


class Formula(StrEnum):
    """The names of the bounds.

    Examples
    --------
    >>> Formula("warm-up") is Formula.WARM_UP
    True
    """

    WORK = "work"
    WARM_UP = "warm-up"
    DRAIN = "drain"
    BOTH = "warm-up and drain"
    FROM_STAGE_0 = "from stage 0"
    ROUND_TRIP = "round trip"
    MEMORY = "memory over time"
    COPIES = "copies"


class Bound(NamedTuple):
    """A lower bound: no schedule has a smaller value.

    Attributes
    ----------
    value : float
        The bound, in the unit of the times.
    name : str
        The proof: a :class:`Formula`, or an exact search.
    reason : str
        The explanation, in a sentence.
    """

    value: float
    name: str
    reason: str


def lower_bounds(
    workload: Workload, objective: Objective = Objective.SPAN
) -> list[Bound]:
    """Return lower bounds on the objective of every schedule of a workload, the largest
    first.

    Each is the largest of its name over the ranks. A bound on one rank's own span also
    bounds the largest span and the makespan.

    Parameters
    ----------
    workload : Workload
        Any placement, unequal stages, messages and limits of memory.
    objective : Objective

    Raises
    ------
    ScheduleError
        Code ``value``, if a rank cannot hold one microbatch: there is no schedule.

    Notes
    -----
    The time is linear in the number of actions.

    Examples
    --------
    >>> from minipipe import Costs
    >>> workload = Costs(forward=2, backward_input=2).workload(
    ...     range(4), num_microbatches=8, memory_limit=5
    ... )
    >>> for value, name, reason in lower_bounds(workload, Objective.MAKESPAN)[:3]:
    ...     print(f"{value:g} {name}: {reason}")
    48 drain: Rank 3 gets its first input at 6, computes for 40 and must wait for 2 after its last F: its memory ...
    46 work: Rank 3 gets its first input at 6 and computes for 40.
    44 warm-up: Rank 0 computes for 40 and must wait for 4 before its first I: after 5 F its memory is full.
    """
    check_memory(workload)
    paths = _Paths(workload, objective)
    best: dict[str, Bound] = {}
    stages_of = stages_by_rank(workload.placement, workload.num_ranks)
    for rank, stages in enumerate(stages_of):
        if not stages:
            continue
        for bound in _bounds_of(_Rank(workload, rank, stages, paths)):
            if bound.name not in best or bound.value > best[bound.name].value:
                best[bound.name] = bound
    return sorted(best.values(), key=lambda bound: -bound.value)


def lower_bound(workload: Workload, objective: Objective = Objective.SPAN) -> Bound:
    """Return the largest of :func:`lower_bounds`.

    Examples
    --------
    >>> from minipipe import Costs
    >>> workload = Costs().workload(range(4), num_microbatches=8, memory_limit=4)
    >>> lower_bound(workload).value, lower_bound(workload).reason
    (27.0, 'Rank 0 computes for 24 and must wait for 3 before its first I: after 4 F its memory is full.')
    """
    return lower_bounds(workload, objective)[0]


def with_free_copies(workload: Workload) -> Workload:
    """Return a workload that each schedule with O and L solves without them: an
    activation takes memory only while its F or its I runs.

    Between I and W nothing is offloaded.

    Examples
    --------
    >>> from minipipe import Costs
    >>> with_free_copies(Costs(activation=2).workload((0,), 4)).footprint[::2]
    ((0.0,), (2.0,))
    """
    activation, _, transient = workload.footprint
    stages = range(workload.num_stages)
    during = tuple(activation[stage] + transient[stage] for stage in stages)
    nothing = (0.0,) * workload.num_stages
    footprint = workload.footprint._replace(activation=nothing, transient=during)
    return workload._replace(footprint=footprint)


def with_copies(
    workload: Workload,
    copy_times: Sequence[float],
    objective: Objective = Objective.SPAN,
) -> Bound:
    """Return a lower bound on the objective of every schedule of a workload, also of
    those that offload activations.

    Parameters
    ----------
    workload : Workload
    copy_times : sequence of float
        By stage, the time of an O or an L.
    objective : Objective

    Raises
    ------
    ScheduleError
        Code ``value``, if a rank cannot hold the memory of one action.

    Examples
    --------
    >>> from minipipe import Costs
    >>> costs = Costs(weight_activation=0, latency=1)
    >>> workload = costs.workload(range(4), num_microbatches=6, memory_limit=2)
    >>> for time in (0, 2, 8):
    ...     print(with_copies(workload, [time] * 4).value)
    25.0
    25.0
    31.0
    >>> lower_bound(workload).value  # without offload
    44.0
    """
    paths = _Paths(workload, objective)
    bounds = [lower_bound(with_free_copies(workload), objective)]
    stages_of = stages_by_rank(workload.placement, workload.num_ranks)
    for number, stages in enumerate(stages_of):
        if stages:
            rank = _Rank(workload, number, stages, paths)
            time = min(copy_times[stage] for stage in stages)
            wait = max(_warm_up_with_copies(rank, time), _drain_with_copies(rank, time))
            value = rank.before + rank.work + wait
            for stage in stages:
                copy = copy_times[stage]
                value = max(value, _trips_with_copies(rank, stage, copy, value))
            why = f"On rank {number} a copy takes at least {time:g}."
            bounds.append(Bound(value, Formula.COPIES, why))
    return max(bounds, key=lambda bound: bound.value)


# -- paths and ranks -------------------------------------------------------------------


class _Paths:
    """The shortest times between two actions of a microbatch on different stages."""

    def __init__(self, workload: Workload, objective: Objective) -> None:
        forward = workload.forward
        backward = workload.backward_input
        message = workload.message
        # from F(0) to each F
        down = (f + c for f, c in zip(forward, message))
        self.to = list(accumulate(down, initial=0.0))
        # from each I to I(0)
        up = (i + c for i, c in zip(backward, message))
        self.back = list(accumulate(up, initial=0.0))
        self.turn = forward[-1] + backward[-1]
        self.is_makespan = objective is Objective.MAKESPAN
        # The times from the end of each I to the end of all that follows from it
        self.after = [workload.backward_weight[0]]
        rest = zip(workload.backward_weight[1:], message, backward)
        for weight, time_in_flight, before in rest:
            self.after.append(max(weight, time_in_flight + before + self.after[-1]))

    def round(self, first: int, last: int) -> float:
        """Return the time from the start of F on one stage, over the last stage, until
        the end of I on another.
        """
        to_end = self.to[-2] - self.to[first]
        return to_end + self.turn + self.back[-2] - self.back[last]


class _Rank:
    """One rank: the times of its actions, each with the overhead after it; its paths
    and its memory limit.
    """

    def __init__(
        self, workload: Workload, rank: int, stages: list[int], paths: _Paths
    ) -> None:
        self.rank = rank
        self.stages = stages
        self.workload = workload
        self.paths = paths
        low = stages[0]
        high = stages[-1]
        overhead = workload.overhead
        self.num_pairs = len(stages) * workload.num_microbatches
        self.work = workload.work(rank) + (3 * self.num_pairs - 1) * overhead
        forward = workload.forward
        backward = workload.backward_input
        weight = workload.backward_weight
        self.forward = max(forward[s] for s in stages) + overhead
        self.weight = max(weight[s] for s in stages) + overhead
        self.backward = max(backward[s] + weight[s] for s in stages) + 2 * overhead
        # The time from the start of F_0(low)
        self.until_first_input = paths.round(low, high) - backward[high]
        # The time until the end of I_m-1(low)
        self.after_last_forward = paths.round(high, low) - forward[high]
        self.before = 0.0
        self.after = weight[low]
        if paths.is_makespan:
            self.before = paths.to[low]
            self.after = paths.after[low]
        self.limit = workload.memory_limit[rank]
        activation, weight_activation, self.transient = workload.footprint
        self.activation = min(activation[s] for s in stages)
        self.weight_activation = min(weight_activation[s] for s in stages)

    @property
    def num_forwards(self) -> int:
        """The most forwards held when the first I starts."""
        return self.how_many(self.activation, self.transient[self.stages[-1]])

    def how_many(self, amount: float, besides: float = 0.0) -> int:
        """Return how many pairs of an amount each fit into the memory in addition to
        another amount.
        """
        free = self.limit * (1 + ROUNDING) - besides
        if amount * self.num_pairs <= free:
            return self.num_pairs
        return int(free // amount)

    def pairs_of(self, stage: int) -> int:
        """Return how many pairs of a stage are held at most when an I of it starts."""
        activation, _, transient = self.workload.footprint
        return self.how_many(activation[stage], transient[stage])

    def until_end(self, stage: int) -> float:
        """Return the time from the end of the last I of a stage until the end."""
        if self.paths.is_makespan:
            return self.paths.after[stage]
        return self.paths.back[stage] + self.workload.backward_weight[0]

    @cached_property
    def most_pending(self) -> float:
        """The longest work, I and W, that is left when the last F ends: the largest a
        (tI + tW) + b tW that fits.
        """
        return self.pending_from(len(self.stages))

    def pending_from(self, fewest: int) -> float:
        """Return the longest work of pairs held, of which so many wait for I at least."""
        most = 0.0
        activation = self.activation
        for a in range(fewest, 1 + self.how_many(activation)):
            fitting = self.how_many(self.weight_activation, a * activation)
            b = min(self.num_pairs - a, fitting)
            most = max(most, a * self.backward + b * self.weight)
        return most


def _bounds_of(rank: _Rank) -> Iterator[Bound]:
    name = f"Rank {rank.rank}"
    base = rank.before + rank.work
    computes = f"{name} computes for {rank.work:g}"
    if rank.before:
        begins = f"gets its first input at {rank.before:g}"
        computes = f"{name} {begins}, computes for {rank.work:g}"
    yield Bound(base, Formula.WORK, f"{computes.replace(',', ' and')}.")
    first = _warm_up(rank)
    last = _drain(rank)
    between = _between(rank)
    if first:
        has_all = rank.num_forwards == rank.num_pairs
        full = "they are done" if has_all else "its memory is full"
        why = f"after {rank.num_forwards} F {full}"
        waits = f"must wait for {first:g} before its first I: {why}"
        yield Bound(base + first, Formula.WARM_UP, f"{computes} and {waits}.")
    if last:
        why = "its memory cannot hold enough work (I and W) to compute until the last"
        waits = f"must wait for {last:g} after its last F: {why} gradient arrives"
        yield Bound(base + last, Formula.DRAIN, f"{computes} and {waits}.")
    num_waits = (first > 0) + (last > 0) + (between > 0)
    if rank.num_pairs > rank.num_forwards and num_waits > 1:
        waits = f"{first:g} before its first I, {last:g} after its last F"
        if between:
            waits += f", and {between:g} in between"
        total = base + first + between + last
        full = "must wait because its memory is full"
        yield Bound(total, Formula.BOTH, f"{computes} and {full}: {waits}.")
    if not rank.paths.is_makespan and rank.stages[0]:
        yield _from_stage_0(rank)
    yield from _round_trips(rank)
    yield from _memory_over_time(rank)


# -- the bounds, with their proofs -----------------------------------------------------


def _warm_up(rank: _Rank) -> float:
    """Return the wait before the first I.

    From the start of F_0(low) until I_0(high) can start, the microbatch goes from
    F(low) over all later stages and back to I(high). Until then the rank runs forwards
    only (first), and holds all of them while that I runs: at most k, with k M_B and the
    transient memory of I within L. The rest of the time it waits. With one stage on
    each rank, equal stages and messages Tc, this is the bound of the zero-bubble
    paper::

        m (tF + tI + tW) + max(0, (p - 1)(tI + 2 Tc) + (p - k) tF)
    """
    return max(0.0, rank.until_first_input - rank.num_forwards * rank.forward)


def _drain(rank: _Rank) -> float:
    """Return the wait after the last F.

    When the last F, F_m-1(high), ends, a pairs wait for I and b for W with a M_B + b
    M_W <= L (last), so the remaining work of the rank is at most the largest a (tI +
    tW) + b tW that fits. The rank is not done before the last microbatch has passed all
    later stages, returned to I_m-1(low), and reached its W or, in a makespan, stage 0.
    The difference is a wait.

    Alternatively, count from the end of I_m-1(low). The remaining work of the rank is
    then only W, as many as its memory holds: while that I runs, it holds M_B and b M_W.
    It waits while the gradient travels to stage 0. With one stage on each rank and
    equal stages the bound on the last rank is::

        (p - 1)(tF + tI + 2 Tc) + m (tF + tI) + (m - q) tW,   q = min(m - 1, floor((L - M_B) / M_W))
    """
    return max(0.0, _left_over(rank, rank.after))


def _left_over(rank: _Rank, after: float) -> float:
    """Return how much longer than the remaining work the path after the last F is, at
    least; it may be negative.
    """
    low = rank.stages[0]
    besides = rank.workload.footprint.activation[low] + rank.transient[low]
    fitting = rank.how_many(rank.weight_activation, besides)
    num_weights = 1 + min(rank.num_pairs - 1, fitting)
    path = rank.after_last_forward + after
    return max(path - rank.most_pending, after - num_weights * rank.weight)


def _warm_up_with_copies(rank: _Rank, time: float) -> float:
    """Return the wait before the first I of a rank that may offload.

    When that I starts, at least t after the first F, the rank holds k forwards at most,
    as in the warm-up. The others are offloaded, one O after another, of which the first
    comes after an F: at most (t - tF) / c, if each takes c. So the rank has run at most
    k + (t - tF) / c forwards. If c is above the time of an F, the rest of t only grows
    with t.
    """
    if time <= rank.forward:
        return 0.0
    t = rank.until_first_input
    num_copies = max(0.0, t - rank.workload.forward[rank.stages[0]]) / time
    return max(0.0, t - (rank.num_forwards + num_copies) * rank.forward)


def _drain_with_copies(rank: _Rank, time: float) -> float:
    """Return the wait after the last F of a rank that may offload.

    In the drain, a pairs wait for I and b for W, as far as they are held. The others
    are away, and each needs an L after that F: at most x / c, if the rank ends x after
    it and an L takes c. So the remaining work is at most a (tI + tW) + b tW and
    x / c (tI + tW). If c is above tI + tW, the rest of x only grows with x, which is at
    least the time of the path.
    """
    if time <= rank.backward:
        return 0.0
    path = rank.after_last_forward + rank.after
    return max(0.0, path - rank.pending_from(0) - path / time * rank.backward)


def _between(rank: _Rank) -> float:
    """Return the waits between warm-up and drain, of a rank with one stage.

    A round is the time from the start of an F_x until the end of its I_x. The first
    round starts with F_0, and each next round starts with the first F after the last
    round. At most k forwards start in a round, because all of them are held when I_x
    starts. So F_x has x <= i k in round i, counted from 0, and rounds i < (m - 1) // k
    end before the last F starts: they overlap neither each other nor the drain. In a
    round the rank runs at most k forwards. It runs I and W only for pairs that were
    held when F_x had run, without the W of I_x: most_pending - tW. The rest of the
    round is a wait. The first round is the warm-up.
    """
    k = rank.num_forwards
    num_rounds = (rank.num_pairs - 1) // k - 1
    if len(rank.stages) > 1 or num_rounds < 1:
        return 0.0
    stage = rank.stages[0]
    length = rank.paths.round(stage, stage) + rank.workload.overhead
    wait = length - k * rank.forward - rank.most_pending + rank.weight
    return num_rounds * max(0.0, wait)


def _from_stage_0(rank: _Rank) -> Bound:
    """Return a bound on the own span of the rank of stage 0, by the work of another
    rank.

    That span begins with F_0(0), before which nothing runs, and ends with W_m-1(0) or
    later. In between are the path to this rank, its wait before the first I and the
    waits between rounds, its work except the work left after its last F or its last I
    (at most as much as in the drain), and the path from there back to stage 0 and its
    W. The work that is left may run after that span, so the difference may be negative.
    """
    paths = rank.paths
    low = rank.stages[0]
    until = paths.to[low]
    back = paths.back[low] + rank.workload.backward_weight[0]
    waits = 0.0
    if rank.num_pairs > rank.num_forwards:
        waits = _warm_up(rank) + _between(rank)
    owner = rank.workload.placement[0]
    first = f"before the first input of rank {rank.rank}"
    why = f"Rank {owner} works from {until:g} {first} until {back:g} after its last"
    why += f" gradient, and rank {rank.rank} computes for {rank.work:g}"
    value = until + rank.work + waits + _left_over(rank, back)
    return Bound(value, Formula.FROM_STAGE_0, f"{why}.")


def _round_trips(rank: _Rank) -> Iterator[Bound]:
    """Yield, for each stage, the time of one round trip after another.

    When I_j(s) starts, at most k microbatches are held on stage s between F and I, with
    k M_B and the transient memory of I within L. So F_j+k(s) starts after the end of
    I_j(s), and the time from F_j to I_j is at least the time of a trip over all later
    stages and back. Starting with F_j, j = (m - 1) mod k, before which the stage runs j
    forwards, ceil(m / k) trips follow each other up to I_m-1(s) and the actions that
    depend on it. The path from stage 0, whose own span begins there, comes before them,
    and the path back to it after them. If k M_B + M_W is above L, then F_j+k also waits
    for W_j or for I_j+1 to end.
    """
    m = rank.workload.num_microbatches
    for s in rank.stages:
        k = min(m, rank.pairs_of(s))
        num_trips = -(-m // k)
        trip = rank.paths.round(s, s)
        why = f"On rank {rank.rank} a microbatch takes {trip:g} from F to I"
        if num_trips > 1:
            why += f", and memory allows {k} at a time: {num_trips} rounds"
        yield Bound(_time_of_trips(rank, s, m), Formula.ROUND_TRIP, f"{why}.")


def _time_of_trips(rank: _Rank, stage: int, m: int) -> float:
    """Return the time of the round trips of some microbatches; see _round_trips."""
    workload = rank.workload
    overhead = workload.overhead
    activation, weight_activation, _ = (each[stage] for each in workload.footprint)
    k = min(m, rank.pairs_of(stage))
    gap = overhead
    if k * activation + weight_activation > rank.limit * (1 + ROUNDING):
        shorter = min(workload.backward_weight[stage], workload.backward_input[stage])
        gap += shorter + overhead
    num_trips = -(-m // k)
    value = rank.paths.to[stage] + (m - 1) % k * (workload.forward[stage] + overhead)
    value += num_trips * rank.paths.round(stage, stage)
    return value + (num_trips - 1) * gap + rank.until_end(stage)


def _trips_with_copies(
    rank: _Rank, stage: int, time: float, known: float = 0.0
) -> float:
    """Return the time of a stage that may offload, from stage 0 on, if it is above a
    known bound.

    If q of m microbatches are offloaded, the others make their round trips as without
    copies, and the q copies follow one another, after an F at the earliest. Behind the
    last of them come its L and its I.
    """
    workload = rank.workload
    m = workload.num_microbatches
    around = workload.forward[stage] + workload.backward_input[stage]
    around += rank.paths.to[stage] + rank.until_end(stage)
    least = around + (m + 1) * time  # all are offloaded
    for q in range(m):
        copies = around + (q + 1) * time if q else 0.0
        if max(copies, known) >= least:
            break  # for each further q it takes longer, or the bound is not larger
        least = min(least, max(_time_of_trips(rank, stage, m - q), copies))
    return least


def _memory_over_time(rank: _Rank) -> Iterator[Bound]:
    """Yield the memory held, times the time for which it is held, over the limit.

    A microbatch holds M_B on stage s at least for a trip over all later stages and
    back, M_W at least for tW, and the transient memory of I for tI. The rank never
    holds more than L, so the sum over all pairs is at most L times its own span.
    """
    workload = rank.workload
    held = 0.0
    for s in rank.stages:
        by_stage = workload.footprint
        activation, weight_activation, transient = (size[s] for size in by_stage)
        held += activation * rank.paths.round(s, s)
        until_weights = weight_activation * workload.backward_weight[s]
        held += until_weights + transient * workload.backward_input[s]
    total = workload.num_microbatches * held
    if total and rank.limit < inf:
        why = f"Memory times duration on rank {rank.rank} is at least {total:g}"
        why += f", and its memory is {rank.limit:g}."
        yield Bound(rank.before + total / rank.limit, Formula.MEMORY, why)
