"""The named schedules side by side: time, bubble and memory of each, for one choice of
sizes and costs or for many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple

from minipipe.core.schedules.action import ActionKind, L, O, R
from minipipe.core.schedules.action_table import ActionTable, Schedule
from minipipe.core.schedules.placement import (
    check_sizes,
    looped_placement,
    neighbouring_placement,
)
from minipipe.core.specs import SCHEDULE_AMOUNT, SCHEDULE_COUNT, SCHEDULE_NUMBER
from minipipe.errors import ScheduleError, counted, misuse
from minipipe.schedules.analysis.bounds import Bound, lower_bound
from minipipe.schedules.analysis.workload import Objective, Workload, fits
from minipipe.schedules.placements import v_placement
from minipipe.schedules.registry import REGISTRY, TRADES, build, builder_of, spelled
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.evaluation import value_of
from minipipe.schedules.simulation.simulator import check_costs, simulate
from minipipe.schedules.simulation.timeline import Timeline

_LIMIT = SCHEDULE_AMOUNT._replace(expected="a number of microbatches, above 0")
_RANKS = SCHEDULE_COUNT._replace(
    minimum=2, expected="at least 2, because one rank has no bubble"
)
_COSTS = SCHEDULE_NUMBER._replace(
    kind=Mapping,
    expected="a mapping, such as {'near': Costs(), 'far': Costs(latency=1)}",
)


class Gap(NamedTuple):
    """The time of a schedule, and a lower bound for all schedules of its stages and
    memory.

    Attributes
    ----------
    objective : Objective
    workload : Workload
        The work of all schedules. Each rank may hold as much memory as the fullest rank
        of this schedule.
    value : float
        Makespan or longest own span, in the unit of the times.
    bound : Bound
    """

    objective: Objective
    workload: Workload
    value: float
    bound: Bound

    @property
    def relative(self) -> float:
        """How far the value is above the bound, relative to the bound: the largest
        possible gain.
        """
        if not self.bound.value:
            return 0.0
        return max(0.0, self.value / self.bound.value - 1)


def gaps(schedule: ActionTable, costs: Costs, timeline: Timeline) -> tuple[Gap, ...]:
    """Return the gaps of makespan and longest own span; none if no bound is proved.

    No bound is proved for several steps, forwards alone, frozen stages, replicas, R, O
    and L, and overlapped actions that hide time.

    Notes
    -----
    Each rank of the best schedule may hold as much as the fullest rank of this one:
    ranks are equal machines. The best schedule may split backwards that are whole here.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> schedule = schedules.one_f_one_b(4, 8)
    >>> makespan, span = gaps(schedule, Costs(), simulate(schedule))
    >>> makespan.value, makespan.bound.value, f"{makespan.relative:.1%}"
    (33.0, 27.0, '22.2%')
    """
    is_unbounded = (
        timeline.num_steps > 1,
        schedule.is_forward_only,
        schedule.frozen,
        schedule.has_replicas,
        schedule.overlaps and costs.overlap > 0,
        not schedule.kinds.isdisjoint((R, O, L)),
        # The first slice may be shorter.
        schedule.num_slices > 1 and costs.slice_work is not None,
    )
    if any(is_unbounded):
        return ()
    workload = workload_of(schedule, costs, max(timeline.peak_memory or (inf,)))
    result = []
    for objective in Objective:
        bound = lower_bound(workload, objective)
        value = value_of(timeline, objective)
        result.append(Gap(objective, workload, value, bound))
    return tuple(result)


def workload_of(
    schedule: ActionTable, costs: Costs, memory_limit: float = inf
) -> Workload:
    """Return the workload of a schedule. A whole backward is I and W without overhead
    or memory between them.

    Examples
    --------
    >>> from minipipe import schedules
    >>> workload_of(schedules.gpipe(2, 4), Costs(overhead=0.5)).overhead
    0.0
    """
    of_slice = costs.sliced(schedule.num_slices)
    workload = of_slice.workload(schedule.placement, schedule.num_microbatches)
    workload = workload._replace(memory_limit=(memory_limit,) * schedule.num_ranks)
    if ActionKind.BACKWARD not in schedule.kinds:
        return workload
    activation, weight_activation, _ = workload.footprint
    least = tuple(map(min, zip(activation, weight_activation)))
    footprint = workload.footprint._replace(weight_activation=least)
    return workload._replace(overhead=0.0, footprint=footprint)


_OF_TIMELINE = ("makespan", "bubble_fraction", "bubble_over_ideal", "span_bubble_rate")
_KEYS = (
    *("num_stages", "num_microbatches", "chunks_per_rank", "placement", *_OF_TIMELINE),
    *("peak", "peak_activations", "peak_memory", "bound", "gap"),
    *("is_reproducible", "trades", "error"),
)


def table(
    num_ranks: int,
    num_microbatches: int,
    costs: Costs | None = None,
    memory_limit: float | None = None,
) -> list[dict[str, Any]]:
    """Return a plain dictionary for each named schedule, in the order of the registry:
    for csv, JSON or a data frame.

    Times and peaks refer to all layers of a rank: if it holds v chunks, each takes 1/v
    of the time and of the memory. So schedules with different numbers of chunks are
    comparable.

    Parameters
    ----------
    num_ranks, num_microbatches : int
    costs : Costs, optional
        The costs of all layers of each rank, as if it had one stage; by default F, I
        and W take one unit each. A message takes the same time for any number of
        chunks.
    memory_limit : float, optional
        The most microbatches that a rank may hold, each counted for all layers of its
        rank. Schedules that exceed it are left out.

    Returns
    -------
    list of dict
        The same keys in each: ``schedule``, ``num_ranks``, ``num_stages``,
        ``num_microbatches``, ``chunks_per_rank``, ``placement``, ``makespan``,
        ``bubble_fraction``, ``bubble_over_ideal``, ``span_bubble_rate``, ``peak`` (of
        all ranks) and ``peak_activations`` (by rank) in microbatches, each counted for
        all layers of its rank (a timeline counts pairs of stage and microbatch: v times
        as many), ``peak_memory`` (by rank), ``bound`` (a lower bound on the makespan
        with the same stages and memory) and ``gap`` (the relative distance of the
        makespan above it: :func:`gaps`), ``is_reproducible``, ``trades`` and ``error``.
        If the sizes do not fit a schedule, ``error`` says why, and the figures are
        None. ``bound`` and ``gap`` are also None for a schedule that does not train.

    Raises
    ------
    ScheduleError
        Code ``value``, for a count below 1 or a limit that is not above 0, and for
        costs of another number of stages.

    Examples
    --------
    >>> rows = table(4, 8, memory_limit=3)
    >>> [(row["schedule"], row["makespan"]) for row in rows]
    [('sequential', 96.0), ('seq1f1b', 28.5), ('v-half', 26.5), ('v-min', 29.5), ('forward-only', 11.0)]
    """
    check_sizes(num_ranks, num_microbatches)
    check_costs(costs)
    if memory_limit is not None:
        _LIMIT.check("memory_limit", memory_limit)
    costs = costs or Costs()
    # Costs by stage must be as many as ranks.
    costs.durations(num_ranks)
    rows = [_row(name, num_ranks, num_microbatches, costs) for name in REGISTRY]
    if memory_limit is None:
        return rows
    return [row for row in rows if row["error"] is None and row["peak"] <= memory_limit]


_UNIT_COSTS = MappingProxyType({"": Costs()})


def sweep(
    num_ranks: Iterable[int],
    num_microbatches: Iterable[int],
    schedules: Iterable[str] = tuple(REGISTRY),
    chunks_per_rank: Iterable[int | None] = (None,),
    costs: Mapping[str, Costs] = _UNIT_COSTS,
    watch: Callable[[Callable[[], str]], object] = lambda describe: None,
) -> list[dict[str, Any]]:
    """Return a row of :func:`table` for every combination of sizes, schedules, chunks
    and costs.

    Parameters
    ----------
    num_ranks, num_microbatches : iterable of int
    schedules : iterable of str
        Names of ``REGISTRY``; by default all.
    chunks_per_rank : iterable of (int or None)
        Stages on each rank; None is the default of each schedule.
    costs : mapping of str to Costs
        Maps names of your choice to costs, each as for :func:`table`. By default there
        is one, with an empty name: F, I and W take one unit each.
    watch : function
        Called once with a function that returns a progress message.

    Returns
    -------
    list of dict
        The keys of :func:`table`, and first ``costs``, the name of the costs. Schedules
        vary fastest, then chunks, microbatches, ranks and costs. If sizes or costs do
        not fit, ``error`` says why, and the figures are None.

    Raises
    ------
    ScheduleError
        Code ``name``, for an unknown schedule; ``value`` and ``too-large``, for a count
        that fits no combination, or if there is nothing to combine, or for a value that
        is not a Costs.

    Examples
    --------
    >>> rows = sweep(
    ...     [2, 4],
    ...     [8, 16],
    ...     ["1f1b", "v-half"],
    ...     costs={"near": Costs(), "far": Costs(latency=1)},
    ... )
    >>> (
    ...     len(rows),
    ...     [(row["costs"], row["schedule"], row["makespan"]) for row in rows[-2:]],
    ... )
    (16, [('far', '1f1b', 85.0), ('far', 'v-half', 101.5)])
    """
    ranks = _values("num_ranks", num_ranks)
    microbatches = _values("num_microbatches", num_microbatches)
    names = _values("schedules", schedules)
    chunks = _values("chunks_per_rank", chunks_per_rank)
    for count in ranks:
        check_sizes(count, 1)
    for count in microbatches:
        check_sizes(1, count)
    for count in chunks:
        if count is not None:
            check_sizes(1, 1, count)
    for name in names:
        builder_of(name)  # which refuses an unknown one
    names = [spelled(name) for name in names]
    _COSTS.check("costs", costs)
    for choice in costs.values():
        check_costs(choice)
    combinations = list(
        product(_values("costs", costs), ranks, microbatches, chunks, names)
    )
    rows: list[dict[str, Any]] = []
    watch(lambda: f"{len(rows):,} of {counted(len(combinations), 'row')}")
    for label, p, m, v, name in combinations:
        rows.append({"costs": label, **_row(name, p, m, costs[label], v)})
    return rows


def _values(name: str, argument: Iterable[Any]) -> list[Any]:
    values: list[Any] = []
    if isinstance(argument, Iterable) and not isinstance(argument, str):
        values = list(argument)
    if not values:
        raise SCHEDULE_NUMBER.refusal(name, argument, "at least one value, in a list")
    return values


def _row(
    name: str,
    num_ranks: int,
    num_microbatches: int,
    costs: Costs,
    chunks: int | None = None,
) -> dict[str, Any]:
    """Return the row of a schedule; without a number of chunks, with its default."""
    row: dict[str, Any] = {"schedule": name, "num_ranks": num_ranks}
    row |= {**dict.fromkeys(_KEYS), "trades": TRADES[name]}
    row |= {"num_microbatches": num_microbatches, "chunks_per_rank": chunks}
    try:
        # Costs by stage must be as many as ranks.
        costs.durations(num_ranks)
        return row | figures(build(name, num_ranks, num_microbatches, chunks), costs)
    except ScheduleError as error:
        if not error.problems[0].code.is_misuse:
            raise
        return {**row, "error": error.problems[0].message}


def figures(schedule: Schedule, costs: Costs) -> dict[str, Any]:
    """Return the figures of a schedule, as in :func:`table`, under the costs of all
    layers of each rank.

    Each rank has equally many stages.

    Raises
    ------
    ScheduleError
        Code ``value``, for costs of another number of stages; the verifier's codes, for
        a schedule that is not legal.

    Examples
    --------
    >>> figures(build("v-half", 4, 8), Costs())["peak"]
    3.0
    """
    chunks = schedule.num_stages // schedule.num_ranks
    of_stages = costs.cut(chunks)
    timeline = simulate(schedule, of_stages)
    peaks = [peak / chunks / schedule.num_slices for peak in timeline.peak_activations]
    of_timeline = {name: getattr(timeline, name) for name in _OF_TIMELINE}
    of_bound: dict[str, float | None] = {"bound": None, "gap": None}
    for gap in gaps(schedule, of_stages, timeline)[:1]:
        of_bound = {"bound": gap.bound.value, "gap": gap.relative}
    return {
        "num_stages": schedule.num_stages,
        "chunks_per_rank": chunks,
        "placement": _shape(schedule, chunks),
        **of_timeline,
        "peak": max(peaks),
        "peak_activations": peaks,
        "peak_memory": list(timeline.peak_memory or ()),
        **of_bound,
        "is_reproducible": schedule.is_reproducible,
    }


def _shape(schedule: Schedule, chunks: int) -> str:
    """Return the name of a placement: ``"straight"``, ``"looped"``, ``"V"``,
    ``"replicas"`` or else ``"other"``.
    """
    if schedule.has_replicas:
        return "replicas"
    p = schedule.num_ranks
    shapes = {"straight": neighbouring_placement(p, chunks)}
    shapes |= {"looped": looped_placement(p, chunks), "V": v_placement(p)}
    names = (name for name, shape in shapes.items() if shape == schedule.placement)
    return next(names, "other")


# Bounds exist for these placements.
PLACEMENTS = MappingProxyType({"straight": neighbouring_placement, "V": v_placement})
# Steps of the bounds in a microbatch, if amounts of memory are not its multiples
_PIECES = 8
_ROUNDING = 1e-6  # by which a limit of memory is below the next one


class TradeoffPoint(NamedTuple):
    """A schedule as a point.

    Attributes
    ----------
    name : str
    placement : str
        ``"straight"``, ``"looped"``, ``"V"``, ``"replicas"`` or ``"other"``.
    memory : float
        The peak of the fullest rank, in the memory unit of the costs.
    bubble : float
        The fraction of total rank time that is not work: idle, or lost because ranks
        share cores.
    makespan : float
        In the time unit of the costs.
    is_searched : bool
        Whether a search found it; otherwise it is a named schedule.
    """

    name: str
    placement: str
    memory: float
    bubble: float
    makespan: float
    is_searched: bool = False


class Tradeoff(NamedTuple):
    """Schedules for one batch, as points, and the bounds below them.

    Attributes
    ----------
    num_ranks, num_microbatches : int
    choices : tuple of TradeoffPoint
    bounds : mapping of str to tuple of (float, float)
        By placement, the corners (memory, bubble) of a curve of steps: the least bubble
        of all schedules with this placement and at most that memory. Memory ascends,
        and the last corner is for unlimited memory.
    counts_microbatches : bool
        Whether memory is in microbatches, each counted for all layers of its rank.
    """

    num_ranks: int
    num_microbatches: int
    choices: tuple[TradeoffPoint, ...]
    bounds: Mapping[str, tuple[tuple[float, float], ...]]
    counts_microbatches: bool = True


def tradeoff(
    num_ranks: int, num_microbatches: int, costs: Costs | None = None
) -> Tradeoff:
    """Return time and memory of the named schedules that train, and lower bounds on
    both.

    Parameters
    ----------
    num_ranks : int
        At least 2: one rank has no bubble.
    num_microbatches : int
    costs : Costs, optional
        The costs of all layers of each rank, as for :func:`minipipe.schedules.table`.

    Raises
    ------
    ScheduleError
        Code ``value``, for fewer than two ranks or a count below 1, and if activations
        take no memory or actions no time.

    Notes
    -----
    The bounds are for makespans with a split backward, for straight stages and for a V.
    If stages hold different amounts, or I and W do, a step is an eighth of a microbatch
    long, and as high as the bound at its right end.

    Only the memory of activations counts. Schedules with replicas or updates are left
    out because they hold more weights, and schedules with slices because the bounds are
    for whole microbatches.

    Examples
    --------
    >>> of_four = tradeoff(4, 8)
    >>> [choice.name for choice in pareto_front(of_four.choices)]
    ['sequential', 'v-min', 'v-half', 'interleaved-zb']
    >>> memory, bubble = of_four.bounds["straight"][-1]
    >>> f"{memory:g} microbatches, {bubble:.1%}"
    '4 microbatches, 11.1%'
    """
    check_sizes(num_ranks, num_microbatches)
    _RANKS.check("num_ranks", num_ranks)
    costs = costs or Costs()
    if not any(costs.memory(num_ranks).activation):
        raise misuse("activation is 0; expected memory, to compare it with time.")
    rows = table(num_ranks, num_microbatches, costs)
    rows = [row for row in rows if row["error"] is None]
    work = _work(costs, num_ranks, num_microbatches)
    if not work:
        why = "F, I and W take no time; expected some, to compare it with memory."
        raise misuse(why)
    choices = [_choice(row["schedule"], row, work) for row in rows if _is_compared(row)]
    most = max(choice.memory for choice in choices)
    bounds = {}
    for name, placed in PLACEMENTS.items():
        corners = _bound(costs, placed(num_ranks), num_microbatches, most)
        bounds[name] = tuple(corners)
    held = costs.activation, costs.weight_activation, costs.transient_activation
    counts_microbatches = held == (1.0, None, 0.0)
    return Tradeoff(
        num_ranks, num_microbatches, tuple(choices), bounds, counts_microbatches
    )


def _is_compared(row: Mapping[str, Any]) -> bool:
    example = build(row["schedule"], 2, 2)
    is_replicated = row["placement"] == "replicas"
    holds_more_weights = is_replicated or ActionKind.UPDATE in example.kinds
    is_whole_step = not example.is_forward_only and example.num_slices == 1
    return is_whole_step and not holds_more_weights


def searched_choice(schedule: Schedule, costs: Costs) -> TradeoffPoint:
    """Return the point of a schedule that a search has found, under the costs of all
    layers of each rank.

    Examples
    --------
    >>> from minipipe import schedules
    >>> searched_choice(schedules.v_half(4, 8), Costs())[:3]
    ('v-half', 'V', 3.0)
    """
    work = _work(costs, schedule.num_ranks, schedule.num_microbatches)
    return _choice(schedule.name, figures(schedule, costs), work, is_searched=True)


def pareto_front(choices: Iterable[TradeoffPoint]) -> list[TradeoffPoint]:
    """Return the choices that no other choice beats in memory or bubble without being
    worse in the other.

    If several are at one point, it returns the first.

    Examples
    --------
    >>> drawn = (("a", 2, 0.3), ("b", 1, 0.4), ("c", 2, 0.4))
    >>> many = [
    ...     TradeoffPoint(name, "V", memory, bubble, 9)
    ...     for name, memory, bubble in drawn
    ... ]
    >>> [choice.name for choice in pareto_front(many)]
    ['b', 'a']
    """
    best: list[TradeoffPoint] = []
    for choice in sorted(choices, key=lambda choice: (choice.memory, choice.bubble)):
        if not best or choice.bubble < best[-1].bubble:
            best.append(choice)
    return best


def _choice(
    name: str, row: Mapping[str, Any], work: float, is_searched: bool = False
) -> TradeoffPoint:
    memory = max(row["peak_memory"])
    makespan = row["makespan"]
    bubble = 1 - work / makespan
    placement = row["placement"]
    return TradeoffPoint(name, placement, memory, bubble, makespan, is_searched)


def _work(costs: Costs, num_ranks: int, num_microbatches: int) -> float:
    """Return the time of the work of a rank by itself, the mean over all ranks."""
    workload = costs.workload(range(num_ranks), num_microbatches)
    return sum(map(workload.work, range(num_ranks))) / num_ranks


def _bound(
    costs: Costs, placement: Sequence[int], num_microbatches: int, most: float
) -> Iterator[tuple[float, float]]:
    """Yield the corners of the bound for one placement, for limits from a microbatch to
    the most memory of a choice.
    """
    num_ranks = 1 + max(placement)
    microbatch = max(costs.memory(num_ranks).activation)
    of_stages = costs.cut(len(placement) // num_ranks)
    activation, weight_activation, transient = of_stages.memory(len(placement))
    # If all amounts are equal, only their multiples are ever held. Otherwise a step has
    # the height of its right end.
    step = activation[0]
    holds = 0.0
    if len({*activation, *weight_activation}) > 1 or any(transient):
        step = microbatch / _PIECES
        holds = (1 - _ROUNDING) * microbatch / _PIECES
    work = _work(costs, num_ranks, num_microbatches)
    unlimited = _least_bubble(work, of_stages.workload(placement, num_microbatches))
    last = inf
    memory = microbatch
    while fits(memory, most) and last > unlimited:
        with suppress(ScheduleError):  # not even one microbatch fits
            limited = of_stages.workload(placement, num_microbatches, memory + holds)
            bubble = _least_bubble(work, limited)
            if bubble < last:
                yield memory, bubble
            last = min(last, bubble)
        memory += step


def _least_bubble(work: float, workload: Workload) -> float:
    return 1 - work / lower_bound(workload, Objective.MAKESPAN).value
