"""The simulator: the start and the end of each action, given the times of actions and
messages.

`minipipe/core/times.py` finds them, with the rules; `minipipe/simulation/shared.py`
does if ranks share cores or links.

An O or L takes its rank no time. The copy runs concurrently, after earlier copies in
the same direction, and whatever needs what an L loads waits for it. A REDUCE_GRAD also
takes its rank no time. The all-reduce begins when all replicas have arrived and takes
the time of its two rounds of messages. Only a U waits for it: the rank continues
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf

from minipipe.core.flow import flow_of
from minipipe.core.memory import Level
from minipipe.core.schedules.action import REDUCE_GRAD, Action
from minipipe.core.schedules.action_table import ActionTable, check_table
from minipipe.core.schedules.analysis.dependencies import Transfer
from minipipe.core.schedules.analysis.verifier import verify
from minipipe.core.schedules.analysis.walk import complete_walk
from minipipe.core.schedules.collector import collector_paused
from minipipe.core.specs import Spec
from minipipe.core.times import Rates, Times, times
from minipipe.core.values import KINDS
from minipipe.errors import Code, ScheduleError, misuse
from minipipe.schedules.analysis.activations import (
    memory_levels,
    peak_activations,
    peaks,
    without_copies,
)
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.slice_work import relative_work
from minipipe.schedules.simulation.span import (
    GradientSum,
    Span,
    StepChange,
    with_copies,
)
from minipipe.schedules.simulation.timeline import Timeline
from minipipe.schedules.transforms import steps_of
from minipipe.simulation.hosts import Hosts

_COSTS = Spec(
    Costs | None,
    expected="Costs, such as Costs(forward=2) or Costs.parse('F=2,latency=0.1')",
    error=ScheduleError.of,
)
TIMES_TOO_LARGE = (
    "The sum of the times is too large for a number; choose a larger unit."
)
MEMORY_TOO_LARGE = (
    "The sum of the memory is too large for a number; choose a larger unit."
)
# The constructor of a NamedTuple takes twice as long; a large schedule has a million
# spans.
_new_span: Callable[[tuple[Action, float, float]], Span] = partial(tuple.__new__, Span)


def simulate(
    schedule: ActionTable,
    costs: Costs | None = None,
    num_steps: int = 1,
    wait: bool = False,
) -> Timeline:
    """Predict the timeline of a schedule: each action starts once its rank is free and
    its value is available.

    Local; no messages. The result is exact; the time is linear in the number of
    actions. If ranks share cores or links (``costs.cores``, ``costs.hosts``), actions
    and messages take longer while they share; ``minipipe/simulation/hosts.py`` has the
    rules.

    Parameters
    ----------
    schedule : Schedule or Program
        A legal schedule. In a program a value is sent when its SEND is reached, in a
        schedule when it is computed.
    costs : Costs, optional
        By default F, I and W take one unit each, and messages take no time.
    num_steps : int
        Training steps, one after another. Between them each rank takes ``costs.update``
        for its stages.
    wait : bool
        Whether a rank waits for the loss at the end of a step, as in ``Pipeline.step``:
        until the rank of the last stage has also ended the step. Otherwise it continues
        at once, as with ``Pipeline.step(…, wait=False)``.

    Returns
    -------
    Timeline
        Its spans are computations and, if sends block, SEND and RECV.

    Raises
    ------
    ScheduleError
        If the schedule is not legal, with the codes of :func:`minipipe.verify`
        (``rendezvous-deadlock`` only if sends block); code ``value``, if the costs do
        not fit.

    Examples
    --------
    >>> from minipipe import schedules
    >>> timeline = simulate(schedules.one_f_one_b(4, 8))
    >>> timeline.makespan, round(timeline.bubble_fraction, 4), timeline.peak_activations
    (33.0, 0.2727, (4, 3, 2, 1))
    """
    check_table(schedule)
    check_costs(costs)
    costs = (costs or Costs()).sliced(schedule.num_slices)
    _check_legal(schedule, costs)
    hosts = costs.hosts_of(schedule)
    step = schedule
    if costs.sends_block:
        # on demand: most sends do not block
        from minipipe.core.schedules.analysis.lowering import lower

        step = lower(schedule)
    with collector_paused():
        return timeline_of(step, costs, num_steps, wait, hosts)


def timeline_of(
    step: ActionTable, costs: Costs, num_steps: int, wait: bool, hosts: Hosts | None
) -> Timeline:
    """Return the timeline of several steps of a table; without hosts, ranks share
    nothing.

    Parameters
    ----------
    step : Schedule or Program
        Legal; if sends block, with its messages.
    costs : Costs
        Of a slice, if the table has slices.
    num_steps, wait
        As for :func:`simulate`.
    hosts : Hosts or None
    """
    table = steps_of(step, num_steps)
    rates = _rates(table, costs)
    result = _times(step, table, rates, num_steps, wait, hosts)
    # the idle time of all ranks is a part of this sum
    if not result.latest * table.num_ranks < inf:
        raise misuse(TIMES_TOO_LARGE)
    spans, copies, sent = _parts(table, result, rates)
    # Everything that takes its rank time has a span, and messages do if sends block.
    ran = table.without_kinds(
        lambda kind: not kind.lane and not (kind.message and costs.sends_block)
    )
    if copies:
        ran = ran.with_rows(type(ran), map(with_copies, spans, copies))
    levels = _levels(ran, costs)
    shown = levels
    if copies:
        shown = list(map(without_copies, ran.actions, levels))
    title = table.title
    if num_steps > 1 and wait:
        title += ", each with its loss"
    return Timeline(
        title,
        tuple(map(tuple, spans)),
        peak_activations(ran),
        peaks(levels),
        memory=tuple(tuple(held for _, held in row) for row in shown),
        memory_during=tuple(tuple(held for held, _ in row) for row in shown),
        unit=costs.unit,
        memory_unit=costs.memory_unit,
        message_times=tuple(rates.message_times),
        sent=sent,
        arrived=_arrived(result),
        step_changes=_step_changes(result),
        sums=_sums(table, result, costs),
        copies=tuple(map(tuple, copies)),
        num_slices=step.num_slices,
    )


def _times(
    step: ActionTable,
    table: ActionTable,
    rates: Rates,
    num_steps: int,
    wait: bool,
    hosts: Hosts | None,
) -> Times:
    """Return the times of a table of several steps."""
    flow = flow_of(table)
    if hosts is None:
        rounds = complete_walk(step, sends_are_buffered=not rates.sends_block).rounds
        return times(flow, rates, rounds, num_steps, wait, _new_span)
    for kind in sorted(table.kinds - {REDUCE_GRAD}):
        if not (kind.declaration.lane or kind.is_communication):
            message = (
                f"{kind} runs beside the lanes of its rank, which is not simulated"
            )
            raise misuse(
                f"{message} with shared cores or links: leave out cores, hosts."
            )
    # on demand: most ranks share nothing
    from minipipe.simulation.shared import SharedClock

    return SharedClock(flow, rates, _new_span, hosts).run(num_steps, wait)


def _rates(table: ActionTable, costs: Costs) -> Rates:
    of_kinds = costs.durations(table.num_stages).items()
    durations: dict[str, list[float]] = {str(kind): time for kind, time in of_kinds}
    for time in {kind.declaration.time for kind in table.rank_kinds} - {""}:
        durations[time] = costs.by_stage(time, table.num_ranks)
    if any(kind.declaration.time == "latency" for kind in table.kinds):
        count = max(table.num_ranks, table.num_stages)
        durations["latency"] = costs.by_stage("latency", count)
    durations["copy"] = costs.copy_times(table.num_stages)
    sum_parts, durations["sum"] = map(list, zip(*costs.sum_times(table)))
    if "gather" not in (costs.other or {}):
        # the second of its two rounds
        durations["gather"] = [time / 2 for time in durations["sum"]]
    parts: Sequence[float] = relative_work(costs.slice_work, table.num_slices)
    if len(set(parts)) == 1:
        parts = ()  # all slices take the same time
    return Rates(
        durations,
        costs.message_times(table),
        float(costs.overhead),
        costs.sends_block,
        costs.pair_times(table),
        parts,
        costs.update_times(table),
        float(costs.latency),
        sum_parts,
    )


Sent = dict[Transfer, tuple[float, int, int]]


def _parts(
    table: ActionTable, result: Times, rates: Rates
) -> tuple[list[list[Span]], list[list[Span]], Sent]:
    """Return, by rank, its spans and its copies, if there are any; and
    :attr:`Timeline.sent`.
    """
    copies: list[list[Span]] = [[] for _ in result.tasks]
    if all(KINDS[kind].lane == "compute" for kind in table.kinds):
        return result.tasks, [], {}
    spans: list[list[Span]] = [[] for _ in result.tasks]
    sent: Sent = {}
    for rank, tasks in enumerate(result.tasks):
        for task in tasks:
            kind = KINDS[task.action.kind]
            if kind.lane == "compute":
                spans[rank].append(task)
            elif kind.lane:
                copies[rank].append(task)
            elif kind.message and rates.sends_block:
                if kind.message == "receive":
                    task = task._replace(end=task.start)
                spans[rank].append(task)
            elif kind.message == "send":
                value = Transfer.carried_by(task.action)
                arrival = task.end + rates.message_times[value.cut]
                time = result.arrived.get(task.action, arrival)
                sent[value] = time, rank, len(spans[rank]) - 1
    if not any(copies):
        copies = []
    return spans, copies, sent


def _step_changes(result: Times) -> tuple[tuple[StepChange, ...], ...]:
    """Return, by rank, its changes of step; nothing for a single step."""
    if not any(result.changes):
        return ()
    return tuple(tuple(StepChange(*it) for it in row) for row in result.changes)


def _arrived(result: Times) -> dict[Transfer, float]:
    """Return when each activation and gradient arrived; a timeline has no values of
    declared kinds.
    """
    arrived = {}
    for action, time in result.arrived.items():
        value = Transfer.produced_by(action)
        if action.kind.is_communication:
            value = Transfer.carried_by(action)
        if value is not None:
            arrived[value] = time
    return arrived


def _sums(table: ActionTable, result: Times, costs: Costs) -> tuple[GradientSum, ...]:
    sums = []
    sizes = costs.by_stage("gradient_size", table.num_stages)
    for places in result.sums:
        spans = {rank: result.tasks[rank][position] for rank, position in places}
        stage, kind, _ = spans[places[0][0]].action
        if kind is not REDUCE_GRAD:
            continue  # another sum than one of gradients
        ranks = tuple(rank for rank in table.ranks_of(stage) if rank in spans)
        actions, came, ends = zip(*map(spans.__getitem__, ranks))
        sums.append(GradientSum(actions, ranks, came, ends[0], sizes[stage]))
    return tuple(sorted(sums, key=lambda each: each.actions[0].microbatch))


def check_costs(costs: object) -> None:
    """Refuse a value that is neither None nor Costs."""
    _COSTS.check("costs", costs)


def _check_legal(schedule: ActionTable, costs: Costs) -> None:
    """Refuse an illegal schedule. A deadlock that buffered sends avoid counts only if
    sends block.
    """
    try:
        verify(schedule)
    except ScheduleError as error:
        if costs.sends_block or error.problems[0].code is not Code.RENDEZVOUS_DEADLOCK:
            raise


def peak_memory(schedule: ActionTable, costs: Costs) -> tuple[float, ...]:
    """Return, by rank, the most memory that activations take at once, and further
    versions of weights.

    Parameters
    ----------
    schedule : Schedule or Program
    costs : Costs

    Returns
    -------
    tuple of float
        By rank, in the memory unit of the costs.

    Examples
    --------
    >>> from minipipe import Costs, schedules
    >>> peak_memory(schedules.one_f_one_b(2, 4), Costs(activation=[10, 20]))
    (20.0, 20.0)
    """
    check_table(schedule)
    check_costs(costs)
    return peaks(_levels(schedule, costs.sliced(schedule.num_slices)))


def _levels(table: ActionTable, costs: Costs) -> list[list[Level]]:
    n = table.num_stages
    levels = memory_levels(
        table, costs.memory(n), costs.weight_memory(n), costs.by_stage("keys_values", n)
    )
    if not sum(peaks(levels)) < inf:  # nor for nan, which is inf - inf
        raise misuse(MEMORY_TOO_LARGE)
    return levels
