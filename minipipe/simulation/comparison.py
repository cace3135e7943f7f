"""The named schedules side by side: time, bubble and memory of each, for one choice of sizes and costs or for many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from numbers import Real
from types import MappingProxyType
from typing import Any

from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.printable import quoted
from minipipe.schedules.placement import check_sizes, looped_placement, neighbouring_placement, v_placement
from minipipe.schedules.registry import REGISTRY, TRADES, build, builder_of
from minipipe.schedules.schedule import Schedule
from minipipe.simulation.costs import Costs
from minipipe.simulation.gap import gaps
from minipipe.simulation.simulator import check_costs, simulate

_KEYS = (
    *("num_stages", "num_microbatches", "chunks_per_rank", "placement", "makespan", "bubble_fraction"),
    *("bubble_over_ideal", "span_bubble_rate", "peak", "peak_activations", "peak_memory", "bound", "gap"),
    *("is_reproducible", "trades", "error"),
)


def table(
    num_ranks: int, num_microbatches: int, costs: Costs | None = None, memory_limit: float | None = None
) -> list[dict[str, Any]]:
    """Return a plain dictionary for each named schedule, in the order of the registry: for csv, JSON or a data frame.

    Times and peaks are of a rank's whole share: where it holds v chunks, each takes 1/v of the time and of the memory.
    So schedules with different numbers of chunks compare.

    Parameters
    ----------
    num_ranks, num_microbatches : int
    costs : Costs, optional
        Of each rank's whole share, so of as many stages as there are ranks; by default F, I and W take one unit each.
        A message takes its time, however many chunks there are.
    memory_limit : float, optional
        Only schedules whose ranks hold at most so many microbatches, each counted for all layers of its rank.

    Returns
    -------
    list of dict
        The same keys in each: ``schedule``, ``num_ranks``, ``num_stages``, ``num_microbatches``, ``chunks_per_rank``,
        ``placement``, ``makespan``, ``bubble_fraction``, ``bubble_over_ideal``, ``span_bubble_rate``, ``peak`` (of all
        ranks) and ``peak_activations`` (by rank) in microbatches, each counted for all layers of its rank (a timeline's
        are pairs of stage and microbatch: v times as many), ``peak_memory`` (by rank), ``bound`` and ``gap`` (below
        which no makespan is for the same stages and memory, and how far this one is above it, relatively:
        :func:`minipipe.simulation.gap.gaps`), ``is_reproducible``, ``trades`` and ``error``. Where these sizes do not
        fit a schedule, ``error`` says why, and the figures are None; so are ``bound`` and ``gap`` of one that does not
        train.

    Raises
    ------
    ScheduleError
        Code ``parameters``, for a count below 1 or a limit that is not above 0; ``costs``, for costs of another number
        of stages.

    Examples
    --------
    >>> rows = table(4, 8, memory_limit=3)
    >>> [(row["schedule"], row["makespan"]) for row in rows]
    [('sequential', 96.0), ('v-half', 26.5), ('v-min', 29.5), ('forward-only', 11.0)]
    """
    check_sizes(num_ranks, num_microbatches)
    check_costs(costs)
    if not (memory_limit is None or (isinstance(memory_limit, Real) and memory_limit > 0)):
        message = f"memory_limit is {quoted(memory_limit)}; expected a number of microbatches, above 0."
        raise ScheduleError.of(ScheduleCode.PARAMETERS, message)
    costs = costs or Costs()
    costs.durations(num_ranks)  # which refuses costs by stage that are not as many as ranks
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
) -> list[dict[str, Any]]:
    """Return a row of :func:`table` for every combination of sizes, schedules, chunks and costs.

    Parameters
    ----------
    num_ranks, num_microbatches : iterable of int
    schedules : iterable of str
        Names of ``REGISTRY``; by default all.
    chunks_per_rank : iterable of (int or None)
        Stages on each rank; None is the default of each schedule.
    costs : mapping of str to Costs
        By a name of your choice, each as for :func:`table`. By default one, whose name is empty: F, I and W take one
        unit each.

    Returns
    -------
    list of dict
        The keys of :func:`table`, and first ``costs``, the name of the costs. Schedules vary fastest, then chunks,
        microbatches, ranks and costs. Where sizes or costs do not fit, ``error`` says why, and the figures are None.

    Raises
    ------
    ScheduleError
        Code ``unknown``, for a schedule; ``parameters`` and ``too-large``, for a count that fits no combination, and
        where there is nothing to combine; ``costs``, for what is no Costs.

    Examples
    --------
    >>> rows = sweep([2, 4], [8, 16], ["1f1b", "v-half"], costs={"near": Costs(), "far": Costs(latency=1)})
    >>> len(rows), [(row["costs"], row["schedule"], row["makespan"]) for row in rows[-2:]]
    (16, [('far', '1f1b', 85.0), ('far', 'v-half', 101.5)])
    """
    ranks, microbatches = _values("num_ranks", num_ranks), _values("num_microbatches", num_microbatches)
    names, chunks = _values("schedules", schedules), _values("chunks_per_rank", chunks_per_rank)
    for given in ranks:
        check_sizes(given, 1)
    for given in microbatches:
        check_sizes(1, given)
    for given in chunks:
        check_sizes(1, 1, 1 if given is None else given)
    for name in names:
        builder_of(name)  # which refuses an unknown one
    if not isinstance(costs, Mapping):
        message = f"costs is {quoted(costs)}; expected a mapping, such as {{'near': Costs(), 'far': Costs(latency=1)}}."
        raise ScheduleError.of(ScheduleCode.COSTS, message)
    for own in costs.values():
        check_costs(own)
    combinations = product(_values("costs", costs), ranks, microbatches, chunks, names)
    return [{"costs": label, **_row(name, p, m, costs[label], v)} for label, p, m, v, name in combinations]


def _values(name: str, given: Iterable[Any]) -> list[Any]:
    values = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else []
    if not values:
        message = f"{name} is {quoted(given)}; expected at least one value, in a list."
        raise ScheduleError.of(ScheduleCode.PARAMETERS, message)
    return values


def _row(name: str, num_ranks: int, num_microbatches: int, costs: Costs, given: int | None = None) -> dict[str, Any]:
    """Return the row of a schedule with as many chunks as are given, or its default number of them."""
    row: dict[str, Any] = {"schedule": name, "num_ranks": num_ranks, **dict.fromkeys(_KEYS), "trades": TRADES[name]}
    row |= {"num_microbatches": num_microbatches, "chunks_per_rank": given}
    try:
        costs.durations(num_ranks)  # which refuses costs by stage that are not as many as ranks
        return row | figures(build(name, num_ranks, num_microbatches, given), costs)
    except ScheduleError as error:
        if not error.problems[0].code.is_misuse:
            raise
        return {**row, "error": error.problems[0].message}


def figures(schedule: Schedule, costs: Costs) -> dict[str, Any]:
    """Return the figures of a schedule, as in :func:`table`, under the costs of each rank's whole share.

    Parameters
    ----------
    schedule : Schedule
        With equally many stages on each rank.
    costs : Costs

    Raises
    ------
    ScheduleError
        Code ``costs``, for costs of another number of stages; the verifier's codes, for a schedule that is not legal.

    Examples
    --------
    >>> figures(build("v-half", 4, 8), Costs())["peak"]
    3.0
    """
    chunks = schedule.num_stages // schedule.num_ranks
    of_stages = costs.cut(chunks)
    timeline = simulate(schedule, of_stages)
    summary, found = timeline.summary(), gaps(schedule, of_stages, timeline)
    peaks = [peak / chunks for peak in summary["peak_activations"]]
    return {
        "num_stages": schedule.num_stages,
        "chunks_per_rank": chunks,
        "placement": _shape(schedule, chunks),
        **{key: summary[key] for key in ("makespan", "bubble_fraction", "bubble_over_ideal", "span_bubble_rate")},
        "peak": max(peaks),
        "peak_activations": peaks,
        "peak_memory": summary["peak_memory"],
        "bound": found[0].bound.value if found else None,
        "gap": found[0].relative if found else None,
        "is_reproducible": schedule.is_reproducible,
    }


def _shape(schedule: Schedule, chunks: int) -> str:
    """Return the name of a placement: ``"straight"``, ``"looped"``, ``"V"`` or, for all others, ``"other"``."""
    shapes = {
        "straight": neighbouring_placement(schedule.num_ranks, chunks),
        "looped": looped_placement(schedule.num_ranks, chunks),
        "V": v_placement(schedule.num_ranks),
    }
    return next((name for name, placement in shapes.items() if placement == schedule.placement), "other")
