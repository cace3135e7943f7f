"""Exact search with CP-SAT of OR-tools: the best schedule of a workload, with a proof.

F, I and W of every microbatch and stage are intervals with a variable start. The tags
are repeated at the code:

    [1] order     F, I and W of a stage each take their microbatches in ascending order.
                  Renumbering loses nothing: see
                  :func:`minipipe.search.clock.in_microbatch_order`.
    [2] values    F(s,k) ends, and its message arrives, before F(s + 1,k) starts;
                  I(s + 1,k) likewise before I(s,k); F(s,k) before I(s,k), and I(s,k)
                  before W(s,k).
    [3] ranks     A rank computes one action at a time, with the overhead between two.
    [4] memory    Each pair (stage, microbatch) takes, as in
                  ``analysis/activations.py``, M_B from the start of F until I ends and
                  M_W from then until W ends; while I runs, it takes M_B and the
                  transient memory, or M_W if that is more. If the rank has one stage
                  and its memory is L whole activations, F(s, k + L) simply starts after
                  W(s,k) has ended. F allocates memory at its start; I and W free memory
                  at their end. Memory held for no time is not counted, so a workload
                  whose actions take no time may keep a gap. A few actions with
                  different amounts become a reservoir constraint, so that CP-SAT
                  decides which comes first; otherwise it tries times, which takes
                  minutes if these are long numbers.
    [5] objective The end of the last W: from time 0, or from the start of the rank's
                  first F.

A simulated rank starts as early as its order allows, and its own span is counted from
there. A solver that lets a rank wait before its first F finds shorter spans than any
order has. To prevent this, the starts of the first F are constants [6] as long as each
stage is on a new rank: these F follow one another with nothing in between. This covers
all ranks of straight, looped and V placements. For other placements ranks may wait in
the model, so its bound is lower but still valid; the value is always the simulated one.

A window is a part of the order that is optimised again, while the rest keeps its order
(large-neighbourhood search). It has a few dozen actions, on all ranks or on two, around
a point in time::

    rank 0:  F0 F1 F2 | I0 W0 F3 I1 | W1 I2 W2       the order between the bars is free;
    rank 1:     F0 F1 | I0 F2 I1 W0 | F3 I2 W1       other actions stay

The effort of a window is limited in CP-SAT's own count of its work, not by a clock.

References
----------
Shaw 1998, "Using constraint programming and local search methods to solve vehicle
routing problems".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from importlib.metadata import version
from itertools import chain, pairwise, product
from math import floor, gcd, isinf, lcm
from random import Random
from time import perf_counter
from typing import Any, NamedTuple

from minipipe.core.schedules.action import Action, F, I, W
from minipipe.core.schedules.action_table import Schedule
from minipipe.errors import ArgumentError, ScheduleError
from minipipe.schedules.analysis.activations import Footprint
from minipipe.schedules.analysis.bounds import lower_bound
from minipipe.schedules.analysis.workload import ROUNDING, Objective, Workload
from minipipe.schedules.simulation.evaluation import costs_of, evaluate, value_of
from minipipe.schedules.simulation.simulator import simulate
from minipipe.schedules.simulation.timeline import Timeline
from minipipe.search.certificate import Certificate
from minipipe.search.clock import (
    Clock,
    Order,
    ProblemData,
    in_microbatch_order,
    one_after_another,
    orders_of,
    schedule_of,
)

_TIMES = "forward", "backward_input", "backward_weight", "message"
# The time of all actions and messages: the solver tells its bound as a float.
_MOST_TIME = 2**52
_MOST_MEMORY = 10**6
_MOST_PRODUCT = 2**62  # of the two: the solver multiplies them in 64 bits
# Other floats differ from all such fractions by more than their precision.
_MOST_DENOMINATOR = 10**4
_EXACT = Fraction(1, 10**12)
# `fits` of schedules/analysis/workload.py allows half of it for the rounding of sums.
_ROUNDING = Fraction(2, 10**9)


def in_whole_numbers(workload: Workload) -> tuple[Workload, Fraction]:
    """Return a workload of whole numbers, which a solver needs, and its scale.

    It is the same problem, or an easier one.
    Times and memory are multiplied by a scale and rounded **down**. Every schedule of
    the workload is also one of the rounded workload, and takes no longer there, so a
    lower bound of the rounded workload is a lower bound of the workload. Fractions of
    small denominators, such as 18.522 and 1/3, are not rounded. Other numbers keep
    enough digits that the loss is below the rounding of sums, unless there are too many
    actions for that.

    Examples
    --------
    >>> from minipipe import Costs
    >>> costs = Costs(forward=18.522, backward_weight=9.337)
    >>> whole, scale = in_whole_numbers(costs.workload((0, 1), 4, 2.5))
    >>> whole.forward, whole.backward_input, scale
    ((18522, 18522), (1000, 1000), Fraction(1000, 1))
    >>> whole.footprint.activation, whole.memory_limit
    ((2, 2), (5, 5))
    """
    stages = range(workload.num_stages)
    held = [tuple(amounts[s] for s in stages) for amounts in workload.footprint]
    limits = [limit for limit in workload.memory_limit if not isinf(limit)]
    amounts = [*chain(*held), *limits]
    most_held = max(amounts)
    memory = scale_of(amounts, most_held, _MOST_MEMORY)
    times: list[tuple[float, ...]] = [getattr(workload, name) for name in _TIMES]
    overheads = 3 * workload.num_stages * workload.overhead
    one = sum(chain(*times)) + sum(workload.message) + overheads
    whole_time = workload.num_microbatches * one
    most_time = min(_MOST_TIME, _MOST_PRODUCT / (1 + most_held * memory))
    scale = scale_of([*chain(*times), workload.overhead], whole_time, floor(most_time))
    rounded_up = memory * (1 + _ROUNDING)
    whole_limits = list(workload.memory_limit)
    for rank, limit in enumerate(whole_limits):
        if not isinf(limit):
            whole_limits[rank] = _floor(limit, rounded_up)
    whole: dict[str, Any] = {
        name: _floors(amounts, scale) for name, amounts in zip(_TIMES, times)
    }
    whole["overhead"] = _floor(workload.overhead, scale)
    whole["footprint"] = Footprint(*(_floors(amounts, memory) for amounts in held))
    return workload._replace(**whole, memory_limit=tuple(whole_limits)), scale


def scale_of(amounts: Iterable[float], largest: float, most: int) -> Fraction:
    """Return the least scale that makes all amounts whole.

    With it the largest one may exceed ``most``; then the scale makes it equal to that.
    An amount counts as the nearby fraction with a small denominator, or as the decimal
    number that is printed for it: 0.1 is a tenth, and ``1 / 3`` a third.

    Examples
    --------
    >>> scale_of([0.5, 0.75, 1 / 3], 9.0, most=1000), scale_of([20, 40, 0], 40, 1000)
    (Fraction(12, 1), Fraction(1, 20))
    >>> scale_of([1e-9, 1e3], 1e3, 10**6)
    Fraction(1000, 1)
    """
    parts = [_exact(amount) for amount in amounts if amount]
    if not parts:
        return Fraction(1)
    denominator = lcm(*(part.denominator for part in parts))
    scale = Fraction(denominator, gcd(*(int(part * denominator) for part in parts)))
    return min(scale, most / _exact(largest))


def _exact(amount: float) -> Fraction:
    printed = Fraction(repr(float(amount)))
    near = printed.limit_denominator(_MOST_DENOMINATOR)
    if abs(near - printed) > _EXACT * printed:
        return printed
    return near


def _floor(amount: float, scale: Fraction) -> int:
    return int(_exact(amount) * scale)


def _floors(amounts: Sequence[float], scale: Fraction) -> tuple[int, ...]:
    return tuple(_floor(amount, scale) for amount in amounts)


# Actions: up to this number, one strategy proves sooner than several in turns.
_MANY = 1000
# Actions: up to this number, a variable orders each two of them, so that long times
# need not be tried.
_FEW = 120


def solve(
    workload: Workload,
    objective: Objective,
    seconds: float,
    hint: Schedule | None = None,
) -> Certificate:
    """Return the best schedule that CP-SAT finds in a time limit, with a lower bound.

    It begins with the hint, a solution of the workload, if there is one, and ends early
    if the schedule is proved optimal. A single thread lets the solver's strategies take
    turns if the workload is large; large-neighbourhood searches are among them. The
    value is the simulated one. The bound is the larger one of the solver's bound and
    the bounds of ``schedules/analysis/bounds.py``.

    Raises
    ------
    ArgumentError
        Code ``value``, if OR-tools are not installed.
    ScheduleError
        Code ``value``, if no schedule fits the memory; the codes of
        :func:`~minipipe.schedules.simulation.evaluation.evaluate`, if the hint is not a
        solution.

    References
    ----------
    Qi et al. 2023, "Zero bubble pipeline parallelism", appendix G, states the problem
    as an integer program.

    Examples
    --------
    >>> from importlib.util import find_spec
    >>> from minipipe import Costs
    >>> workload = Costs().workload((0, 1, 2, 3), num_microbatches=8, memory_limit=4)
    >>> if find_spec("ortools"):
    ...     found = solve(workload, Objective.MAKESPAN, seconds=10)
    ...     assert (found.value, found.bound) == (27.0, 27.0)
    """
    cp_model = solver_module()
    began = perf_counter()
    first = hint or one_after_another(workload)
    value = evaluate(first, workload, objective)
    bound, name, _ = lower_bound(workload, objective)
    best = Certificate(
        first, workload, objective, value, bound, name, first.name, seconds
    )
    if value > bound * (1 + ROUNDING):  # otherwise no solver is needed
        best = _solved(cp_model, best, began + seconds)
    # The value is a sum of floats, which may be a little more or less.
    if best.value <= best.bound * (1 + ROUNDING):
        best = best._replace(bound=best.value)
    return best._replace(seconds=perf_counter() - began)


def _solved(cp_model: Any, best: Certificate, deadline: float) -> Certificate:
    """Let the solver improve a schedule and its bound."""
    workload = best.workload
    whole, scale = in_whole_numbers(workload)
    model = Model(cp_model, whole, best.objective)
    timeline = simulate(in_microbatch_order(best.schedule), costs_of(whole))
    model.begin_with(timeline, least=floor(best.bound * scale))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(deadline - perf_counter(), 0.01)
    solver.parameters.num_workers = 1
    solver.parameters.interleave_search = len(model.spans) > _MANY
    status = solver.solve(model.cp)
    # The first schedule is a solution.
    assert status not in (cp_model.INFEASIBLE, cp_model.MODEL_INVALID)
    name = f"CP-SAT {version('ortools')}"
    proved = float(floor(solver.best_objective_bound + 1e-6) / scale)
    if proved > best.bound:
        best = best._replace(bound=proved, bound_by=name)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        schedule = model.schedule(solver.value)
        # It may fit only rounded memory, or have actions of length 0 at one time.
        with suppress(ScheduleError):
            value = evaluate(schedule, workload, best.objective)
            if value < best.value:
                best = best._replace(schedule=schedule, value=value, found_by=name)
    return best


def solver_module() -> Any:
    """Return the module of CP-SAT.

    Raises
    ------
    ArgumentError
        Code ``value``, if OR-tools are not installed.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        remedy = "run `pip install -e '.[search]'` in minipipe's folder"
        remedy += ", or search without it (without --exact)"
        raise ArgumentError(
            f"Exact search needs OR-tools, which is not installed; {remedy}."
        ) from None
    return cp_model


class _Span(NamedTuple):
    """The variables of an action in the solver."""

    start: Any
    end: Any


class Model:
    """A workload of whole numbers as variables and constraints."""

    def __init__(self, cp_model: Any, workload: Workload, objective: Objective) -> None:
        self.cp = cp_model.CpModel()
        self.workload = workload
        self.objective = objective
        self.problem = ProblemData(workload)
        self.microbatches = range(workload.num_microbatches)
        steps = self.problem.steps
        self.times = {(s, kind): int(step.time) for (kind, s), step in steps.items()}
        # No schedule that starts everything as early as possible takes longer than all
        # actions and messages together.
        waits = 2 * sum(workload.message) + len(self.times) * workload.overhead
        one = int(sum(self.times.values()) + waits)
        self.horizon = workload.num_microbatches * one
        # Each action comes after its inputs: those that take no time keep this order.
        self.spans = {}
        for k in self.microbatches:
            for op, time in self.times.items():
                self.spans[Action(*op, k)] = self._span(time)
        self._order_stages()
        self._pass_values()
        for rank, stages in enumerate(self.problem.stages_of):
            self._occupy(stages)
            if not isinf(workload.memory_limit[rank]):
                self._hold(stages, int(workload.memory_limit[rank]))
        self.objective_variable = self.cp.new_int_var(0, self.horizon, "objective")
        self._aim()

    def _span(self, time: int) -> _Span:
        start = self.cp.new_int_var(0, self.horizon - time, "")
        return _Span(start, start + time)

    def _order_stages(self) -> None:  # [1]
        for stage, kind in self.times:
            for k, following in pairwise(self.microbatches):
                first = Action(stage, kind, k)
                then = Action(stage, kind, following)
                self.follow(first, then, self.workload.overhead)

    def _pass_values(self) -> None:  # [2]
        rank_of = self.problem.rank_of
        for (kind, stage), step in self.problem.steps.items():
            for event, delay in step.needs:
                before, source = self.problem.op_of(event)
                if rank_of[source] == rank_of[stage]:
                    delay = self.problem.overhead
                for k in self.microbatches:
                    self.follow(
                        Action(source, before, k), Action(stage, kind, k), delay
                    )

    def follow(self, first: Action, then: Action, gap: float) -> None:
        """Let an action start only a given time after the end of another one."""
        self.cp.add(self.spans[then].start >= self.spans[first].end + int(gap))

    def _occupy(self, stages: list[int]) -> None:  # [3]
        overhead = int(self.workload.overhead)
        busy = []
        for action in self.spans:
            if action.stage in stages:
                time = self.times[action[:2]] + overhead
                start = self.spans[action].start
                busy.append(self.cp.new_fixed_size_interval_var(start, time, ""))
        self.cp.add_no_overlap(busy)

    def _hold(self, stages: list[int], limit: int) -> None:  # [4]
        activation, weight_activation, transient = self.workload.footprint
        amounts = {activation[s] for s in stages} | {
            weight_activation[s] for s in stages
        }
        if len(stages) == 1 and len(amounts) == 1 and not transient[stages[0]]:
            (stage,) = stages
            (amount,) = amounts
            if amount:
                most = int(limit // amount)
                for k in self.microbatches[most:]:
                    self.follow(Action(stage, W, k - most), Action(stage, F, k), 0)
            return
        pairs = product(stages, self.microbatches)
        held = [part for pair in pairs for part in self._parts(*pair) if part[2]]
        if held and len(self.spans) <= _FEW and len(amounts) > 1:
            starts, ends, taken = zip(*held)
            changes = [*taken, *(-amount for amount in taken)]
            self.cp.add_reservoir_constraint([*starts, *ends], changes, 0, limit)
            return
        intervals = []
        for start, end, _ in held:
            length = self.cp.new_int_var(0, self.horizon, "")
            intervals.append(self.cp.new_interval_var(start, length, end, ""))
        self.cp.add_cumulative(intervals, [amount for _, _, amount in held], limit)

    def _parts(self, stage: int, k: int) -> Iterator[tuple[Any, Any, int]]:
        """Yield the intervals in which a pair holds memory, each with its amount."""
        sizes = (size[stage] for size in self.workload.footprint)
        before, after, transient = map(int, sizes)
        actions = (Action(stage, kind, k) for kind in (F, I, W))
        forward, inputs, weights = map(self.spans.__getitem__, actions)
        yield forward.start, weights.end, min(before, after)
        yield forward.start, inputs.end, max(before - after, 0)
        yield inputs.start, weights.end, max(after - before, 0)
        yield inputs.start, inputs.end, max(transient - max(after - before, 0), 0)

    def _aim(self) -> None:  # [5]
        constants = dict(_first_starts(self.problem))
        for stage, time in constants.items():  # [6]
            self.cp.add(self.spans[Action(stage, F, 0)].start == time)
        for stages in filter(None, self.problem.stages_of):
            first = 0
            if self.objective is Objective.SPAN:
                first = self.spans[Action(stages[0], F, 0)].start
            for stage in stages:
                last = self.spans[Action(stage, W, self.microbatches[-1])].end
                self.cp.add(self.objective_variable >= last - first)
        self.cp.minimize(self.objective_variable)

    def begin_with(self, timeline: Timeline, least: int = 0) -> None:
        """Give the solver a solution, and search between a bound and its value."""
        value = int(value_of(timeline, self.objective))
        self.cp.add(self.objective_variable <= value)
        self.cp.add(self.objective_variable >= min(least, value))
        self.cp.add_hint(self.objective_variable, value)
        for row in timeline.spans:
            for action, start, _ in row:
                self.cp.add_hint(self.spans[action].start, int(start))

    def schedule(self, value: Any) -> Schedule:
        """Return the actions of every rank in the order of their starts."""
        rows: list[list[Action]] = [[] for _ in self.problem.stages_of]
        for action in self.spans:
            rows[self.workload.placement[action.stage]].append(action)
        for row in rows:
            row.sort(key=lambda action: [value(time) for time in self.spans[action]])
        placement = self.workload.placement
        m = self.workload.num_microbatches
        return Schedule("found by CP-SAT", placement, m, tuple(map(tuple, rows)))


def _first_starts(problem: ProblemData) -> Iterator[tuple[int, int]]:
    """Yield (stage, time) of the first F of each rank, up to a stage on no new rank."""
    clock = Clock(problem)
    for stage, rank in enumerate(problem.rank_of):
        if clock.rows[rank]:
            return
        clock.run(rank, [(F, stage)])
        yield stage, int(clock.begins[rank])


# -- windows of an order ---------------------------------------------------------------


_SIZES = 30, 45, 60, 80  # actions of a window
_EFFORT = 0.3  # in CP-SAT's deterministic time, roughly seconds


class WindowSearch:
    """The windows of the schedules of one workload.

    Raises
    ------
    ArgumentError
        Code ``value``, if OR-tools are not installed.
    """

    def __init__(self, workload: Workload, objective: Objective) -> None:
        self._cp_model = solver_module()
        self._objective = objective
        self._workload = in_whole_numbers(workload)[0]

    def reordered(self, orders: list[Order], random: Random) -> list[Order]:
        """Return the order with a random window in the best order.

        It is the best for the objective and the mean over ranks.
        If numbers had to be rounded, the result may exceed the memory.
        """
        schedule = schedule_of(orders, self._workload, "window")
        timeline = simulate(schedule, costs_of(self._workload))
        model = Model(self._cp_model, self._workload, self._objective)
        model.begin_with(timeline)
        near = self._near(timeline, random)
        times = []
        for rank, row in enumerate(timeline.spans):
            places = [place for owner, place in near if owner == rank]
            self._keep_order(model, [span.action for span in row], places)
            if row:
                first = 0
                if self._objective is Objective.SPAN:
                    first = model.spans[row[0].action].start
                times.append(model.spans[row[-1].action].end - first)
        model.cp.minimize(2 * len(orders) * model.objective_variable + sum(times))
        solver = self._cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = _EFFORT
        status = solver.solve(model.cp)
        if status not in (self._cp_model.OPTIMAL, self._cp_model.FEASIBLE):
            return orders
        return orders_of(model.schedule(solver.value))

    def _near(self, timeline: Timeline, random: Random) -> list[tuple[int, int]]:
        """Return (rank, position) of the actions nearest to a point in time."""
        middle = 2 * random.uniform(0, timeline.makespan)
        chosen: Sequence[int] = range(len(timeline.spans))
        if random.random() < 0.5:
            chosen = random.sample(chosen, min(2, len(chosen)))
        distances = []
        for rank in chosen:
            for position, (_, start, end) in enumerate(timeline.spans[rank]):
                distances.append((abs(start + end - middle), rank, position))
        nearest = sorted(distances)[: random.choice(_SIZES)]
        return [(rank, position) for _, rank, position in nearest]

    def _keep_order(self, model: Any, row: list[Any], window: list[int]) -> None:
        """Let the actions outside of a window keep their order.

        Those inside follow the actions before it.
        """
        low = min(window, default=0)
        high = max(window, default=0)
        overhead = self._workload.overhead
        for position, (action, following) in enumerate(pairwise(row)):
            if not low <= position < high:
                model.follow(action, following, overhead)
        for action in row[low : high + 1]:
            if low:
                model.follow(row[low - 1], action, overhead)
            if high + 1 < len(row):
                model.follow(action, row[high + 1], overhead)
