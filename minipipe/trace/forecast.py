"""The costs of a recorded run, and the time of other schedules with these costs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from minipipe.core.schedules.action import I
from minipipe.core.schedules.action_table import Schedule
from minipipe.core.specs import SCHEDULE_NUMBER
from minipipe.errors import ScheduleError
from minipipe.schedules.features import check_known
from minipipe.schedules.placements import one_rank_each, stages_by_rank
from minipipe.schedules.registry import REGISTRY, TRADES, build
from minipipe.schedules.simulation.comparison import figures
from minipipe.schedules.simulation.costs import Costs
from minipipe.trace.runs import RecordedRun

WEIGHT_PART = 0.5
"""The part of a whole backward that is its W, unless the trace tells: a matrix product
of the same size for the gradients of its inputs and of its weights.
"""
_PART = SCHEDULE_NUMBER._replace(maximum=1, expected="a number from 0 to 1")


class Forecast(NamedTuple):
    """The predicted time of a schedule.

    Attributes
    ----------
    schedule : str
    makespan : float
        In seconds.
    bubble_fraction : float
    peak : float
        The most microbatches that a rank holds, each over all stages of the rank.
    change : float
        The makespan relative to the prediction for the recorded schedule, minus 1.
    trades : str
        What the schedule trades for its time.

    Examples
    --------
    >>> Forecast("gpipe", 0.033, 0.27, 8, 0.0, "simple").schedule
    'gpipe'
    """

    schedule: str
    makespan: float
    bubble_fraction: float
    peak: float
    change: float
    trades: str


def costs_of(run: RecordedRun, weight_part: float = WEIGHT_PART) -> Costs:
    """Return the costs of a recorded run, for ``--costs`` of other verbs.

    Times are means within a step and medians over the steps, as
    :meth:`minipipe.Costs.measured` fits them. Memory is unknown, so activations count
    as one unit for each stage.

    Parameters
    ----------
    run : RecordedRun
    weight_part : float
        The part of a whole backward that becomes its W if a schedule splits it. It has
        no effect on stages whose backwards are split in the trace.

    Raises
    ------
    ScheduleError
        Code ``value``, if the part is not a number from 0 to 1.

    Examples
    --------
    A whole backward of 2 units becomes I and W.

    >>> from minipipe import schedules, simulate
    >>> schedule = schedules.gpipe(2, 4)
    >>> run = RecordedRun(schedule, (simulate(schedule),))
    >>> costs_of(run, weight_part=0.25).backward_weight
    [0.5, 0.5]
    """
    part = _PART.check("weight_part", weight_part)
    costs = Costs.measured(*run.timelines)
    stages = run.schedule.num_stages
    inputs = costs.by_stage("backward_input", stages)
    weights = costs.by_stage("backward_weight", stages)
    split = {it.stage for it in run.spreads() if it.kind == I}
    for stage in set(range(stages)) - split:
        weights[stage] = part * inputs[stage]
        inputs[stage] -= weights[stage]
    return replace(costs, backward_input=inputs, backward_weight=weights)


def of_ranks(costs: Costs, schedule: Schedule) -> Costs:
    """Return the costs of all stages of each rank together, as if it had one stage.

    Examples
    --------
    >>> from minipipe import schedules
    >>> of_ranks(Costs(forward=[1, 2, 3, 4]), schedules.zb_v(2, 4)).forward
    [5.0, 5.0]
    """
    if schedule.num_stages == schedule.num_ranks:
        return costs
    ranks = stages_by_rank(schedule.placement, schedule.num_ranks)
    one_rank_each(schedule.placement, schedule.num_ranks)
    sums: dict[str, Any] = {}
    for name in ("forward", "backward_input", "backward_weight"):
        times = costs.by_stage(name, schedule.num_stages)
        sums[name] = [sum(times[stage] for stage in stages) for stages in ranks]
    return replace(costs, **sums, message_size=0.0)


def forecasts(run: RecordedRun, costs: Costs) -> list[Forecast]:
    """Return the predicted time of the recorded schedule and of each named schedule
    with as many ranks and microbatches, the fastest first.

    The layers of a rank are taken to be alike: schedules with several stages on a rank
    divide its time equally. Schedules that do not train any model step by step, such as
    ``pipedream``, are left out.

    Parameters
    ----------
    run : RecordedRun
    costs : Costs
        By stage, such as :func:`costs_of` returns.

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> schedule = schedules.gpipe(4, 8)
    >>> run = RecordedRun(schedule, (simulate(schedule),))
    >>> best = forecasts(run, costs_of(run))[0]
    >>> best.schedule, best.makespan, f"{best.change:.0%}"
    ('dualpipe', 25.0, '-24%')
    """
    recorded = run.schedule
    whole = of_ranks(costs, recorded)
    rows = {recorded.name: figures(recorded, whole)}
    for name in REGISTRY:
        # sizes may not fit a schedule
        with suppress(ScheduleError):
            schedule = build(name, recorded.num_ranks, recorded.num_microbatches)
            check_known(schedule, "the forecast", "replicas", "overlap")
            if not schedule.is_forward_only:
                rows[name] = figures(schedule, whole)
    base = rows[recorded.name]["makespan"]
    result = []
    for name, row in sorted(rows.items(), key=lambda item: item[1]["makespan"]):
        change = row["makespan"] / base - 1
        shown = (row["makespan"], row["bubble_fraction"], row["peak"], change)
        result.append(Forecast(name, *shown, TRADES.get(name, "")))
    return result
