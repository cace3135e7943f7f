"""The named schedules side by side: time, bubble and memory of each."""

from __future__ import annotations

from numbers import Real
from typing import Any

from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.printable import quoted
from minipipe.schedules.placement import check_sizes
from minipipe.schedules.registry import REGISTRY, TRADES, build
from minipipe.simulation.costs import Costs
from minipipe.simulation.simulator import check_costs, simulate

_KEYS = (
    *("num_stages", "num_microbatches", "chunks_per_rank", "makespan", "bubble_fraction", "bubble_over_ideal"),
    *("span_bubble_rate", "peak", "peak_activations", "peak_memory", "is_reproducible", "trades", "error"),
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
        ``makespan``, ``bubble_fraction``, ``bubble_over_ideal``, ``span_bubble_rate``, ``peak`` (of all ranks),
        ``peak_activations`` and ``peak_memory`` (by rank), ``is_reproducible``, ``trades`` and ``error``. Where these
        sizes do not fit a schedule, ``error`` says why, and the figures are None.

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


def _row(name: str, num_ranks: int, num_microbatches: int, costs: Costs) -> dict[str, Any]:
    row: dict[str, Any] = {"schedule": name, "num_ranks": num_ranks, **dict.fromkeys(_KEYS), "trades": TRADES[name]}
    try:
        schedule = build(name, num_ranks, num_microbatches)
        chunks = schedule.num_stages // num_ranks
        summary = simulate(schedule, costs.cut(chunks)).summary()
    except ScheduleError as error:
        if not error.problems[0].code.is_misuse:
            raise
        return {**row, "error": error.problems[0].message}
    peaks = [peak / chunks for peak in summary["peak_activations"]]
    return {
        **row,
        "num_stages": schedule.num_stages,
        "num_microbatches": num_microbatches,
        "chunks_per_rank": chunks,
        **{key: summary[key] for key in ("makespan", "bubble_fraction", "bubble_over_ideal", "span_bubble_rate")},
        "peak": max(peaks),
        "peak_activations": peaks,
        "peak_memory": summary["peak_memory"],
        "is_reproducible": schedule.is_reproducible,
    }
