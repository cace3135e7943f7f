"""The heuristic: many list schedules, then many small changes of policies and orders.

1. Seeds. Sweeps, the list scheduler under a grid of policies, the same for less memory,
and the named schedules. 2. Policies. Change the policies of a few ranks at a time. 3.
Orders. Move one action, or a few, and time the new order; accept a worse order less and
less often. 4. Windows. Let CP-SAT, if it is installed, reorder a part of the best
schedule. Then repeat from 3.

A change is kept if it makes the schedule better or, with a small probability, slightly
worse (simulated annealing). Half of the moves concern the critical path: with random
moves alone the search got stuck. Work is counted in evaluations, of one schedule each.
A clock may end a search but chooses nothing: the same number of evaluations gives the
same result on any machine.

References
----------
Qi et al. 2024, "Zero Bubble Pipeline Parallelism", section 3.1, has a heuristic of this
kind for one stage on each rank: warm-up as far as memory allows, W in gaps. Kirkpatrick
et al. 1983, "Optimization by simulated annealing".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from math import exp, inf
from random import Random
from time import perf_counter
from typing import Any, NamedTuple

from minipipe.core.schedules.action import F, W
from minipipe.errors import ArgumentError, ScheduleError, counted
from minipipe.schedules.analysis.workload import ROUNDING, Objective, Workload, fits
from minipipe.schedules.features import rank_of_each_stage
from minipipe.schedules.registry import REGISTRY, build
from minipipe.schedules.transforms import split_backward
from minipipe.search.clock import (
    Clock,
    Order,
    OutOfTime,
    ProblemData,
    orders_of,
    schedule_of,
)
from minipipe.search.exact import WindowSearch
from minipipe.search.list_scheduling import ListScheduler, Policy
from minipipe.search.sweeps import Sweeps

_REACH = 6  # places by which an action is moved, at most


def moved(order: Order, position: int, target: int) -> Order:
    """Return a rank's order with the action at one position moved to another.

    Examples
    --------
    >>> moved([(F, 0), (F, 1), (F, 2)], 2, 0)[0]
    (<ActionKind.FORWARD: 'F'>, 2)
    """
    others = [*order[:position], *order[position + 1 :]]
    others.insert(min(max(target, 0), len(others)), order[position])
    return others


def with_any_move(order: Order, random: Random) -> Order:
    """Return a rank's order with one action moved by a few places."""
    position = random.randrange(len(order))
    distance = random.choice((-1, 1)) * random.randint(1, _REACH)
    return moved(order, position, position + distance)


def without_delay(order: Order, position: int, random: Random) -> Order:
    """Return a rank's order in which an action comes before the one that delays it.

    It moves forward by a few places, or a W that delays it moves back, possibly far:
    only memory makes a W urgent.
    """
    if order[position - 1][0] is W and random.random() < 0.7:
        return moved(order, position - 1, random.randint(position, len(order) - 1))
    return moved(order, position, position - random.randint(1, _REACH // 2))


def is_possible(order: Order, rank: int, problem: ProblemData) -> bool:
    """Tell whether a rank alone can run an order within its memory."""
    alone = Clock(problem)
    alone.ended = [0.0] * len(alone.ended)
    m = problem.num_microbatches
    for op in set(order):
        event = problem.steps[op].event
        alone.ended[event : event + m] = [inf] * m
    alone.run(rank, order)
    return len(alone.rows[rank]) == len(order)


class TimedOrder(Clock):
    """An order in which every action starts as early as it can, as in the simulator.

    Attributes
    ----------
    is_complete : bool
        Whether all actions ran; otherwise the ranks deadlock, or one lacks memory.
    """

    def __init__(self, orders: Sequence[Order], problem: ProblemData) -> None:
        super().__init__(problem)
        self._orders = list(orders)
        ready = [*range(len(orders))]
        while ready:
            rank = ready.pop()
            ready += self.run(rank, orders[rank][len(self.rows[rank]) :])
        self.is_complete = list(map(len, self.rows)) == list(map(len, orders))

    @property
    def orders(self) -> list[Order]:
        """The orders of all ranks, whether they ran or not."""
        return self._orders

    def delays(self, rank: int) -> list[tuple[int, int]]:
        """Return (rank, position) of critical actions that waited for their rank.

        The critical path leads from the last action of a rank to the action that it
        waited for, and so on. To shorten it, one of these actions has to come earlier,
        or the one before it later.
        """
        m = self.problem.num_microbatches
        waits = []
        position = len(self.rows[rank]) - 1
        while position >= 0:
            event = self.rows[rank][position]
            source = self.awaited[event]
            if source is not None:
                rank = self.problem.rank_of[self.problem.op_of(source)[1]]
                position = self.rows[rank].index(source)
                continue
            if position and event // m != self.rows[rank][position - 1] // m:
                waits.append((rank, position))
            position -= 1
        return waits


_WINDOW = 250  # evaluations that a window counts, as it takes as long
_WAITS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5)  # parts of an action's time


class SearchState(NamedTuple):
    """The order of each rank, and its value.

    Attributes
    ----------
    energy : float
        The quantity that annealing minimises: the value plus half of the mean over
        ranks, so that all ranks count.
    value : float
        The objective.
    slowest : int
        The rank that has this value.
    run : ListScheduler or TimedOrder
        The run that produced the order.
    policies : tuple of Policy
        The policies that made it; empty if none did.
    found_by : str
    """

    energy: float
    value: float
    slowest: int
    run: ListScheduler | TimedOrder
    policies: tuple[Policy, ...]
    found_by: str


class Search:
    """A search for one workload and objective.

    It is a sequence of candidates, the same on every machine, and the best of them.
    The number of evaluated candidates depends only on the limits of :meth:`run`; the
    choice of candidates, on the seed.

    Attributes
    ----------
    best : SearchState or None
    evaluations : int
        How many candidates were evaluated.
    progress : list of (int, float)
        After how many evaluations each best was found, and its value.
    is_late : bool
        Whether the clock ended it.
    """

    def __init__(
        self, workload: Workload, objective: Objective, bound: float, seed: int
    ) -> None:
        self.problem = ProblemData(workload, look_at_clock=self._look_at_clock)
        self.objective = objective
        self.bound = bound
        self.random = Random(seed)
        self._deadline = inf
        actions = 3 * workload.num_stages * workload.num_microbatches
        self.mean_time = sum(map(workload.work, range(workload.num_ranks))) / actions
        self.best: SearchState | None = None
        self.evaluations = 0
        self.is_late = False
        try:
            self.windows: WindowSearch | None = WindowSearch(workload, objective)
        except ArgumentError:  # OR-tools are not installed
            self.windows = None
        self.progress: list[tuple[int, float]] = []
        self._coming = self.candidates()

    def run(self, evaluations: float, seconds: float = inf) -> SearchState:
        """Evaluate at least one and at most ``evaluations`` candidates.

        It stops at the bound or at the time limit.
        Another call continues, unless the clock ended the last one.
        """
        self._deadline = perf_counter() + seconds
        try:
            for candidate in self._coming:
                self.evaluations += 1
                self.note(candidate)
                if self.best is None:
                    continue
                is_proved = self.best.value <= self.bound * (1 + ROUNDING)
                if is_proved or self.evaluations >= evaluations:
                    break
                self._look_at_clock()
        except OutOfTime:
            self.is_late = True
        assert self.best is not None
        return self.best

    def _look_at_clock(self) -> None:
        """End the search if its time is over and it has found something."""
        if self.best is not None and perf_counter() >= self._deadline:
            raise OutOfTime

    def describe(self, evaluations: float) -> str:
        """Return a progress message: evaluations, their limit, and the best value."""
        limit = ""
        if evaluations < inf:
            limit = f", of {evaluations:,} at most"
        best = "none fits yet"
        if self.best is not None:
            best = f"the best has {self.best.value:g}"
        tried = counted(self.evaluations, "schedule")
        return f"tried {tried}{limit}; {best}, the bound is {self.bound:g}"

    def candidates(self) -> Iterator[SearchState | None]:
        """Yield candidates without end; None stands for an illegal order."""
        yield from self.seeds()
        yield from self.anneal(Search.with_other_policies, 2000, 1 / 16, 1 / 16)
        while True:
            yield from self.anneal(Search.with_other_order, 4000, 1, 1 / 16)
            yield from self.reorder(40)

    def note(self, candidate: SearchState | None) -> None:
        """Keep a candidate that is better than the best so far."""
        if candidate is None:
            return
        best = self.best
        value = (candidate.value, candidate.energy)
        if best is None or value < (best.value, best.energy):
            self.progress.append((self.evaluations, candidate.value))
            self.best = candidate

    def candidate(
        self,
        run: ListScheduler | TimedOrder,
        found_by: str,
        policies: tuple[Policy, ...] = (),
    ) -> SearchState:
        """Return the order of a run with its value."""
        times = run.ends
        if self.objective is Objective.SPAN:
            times = [end - begin for begin, end in zip(run.begins, times)]
        value = max(times)
        energy = value + sum(times) / len(times) / 2
        return SearchState(energy, value, times.index(value), run, policies, found_by)

    def anneal(
        self, change: Change, number: int, hot: float, cold: float
    ) -> Iterator[SearchState | None]:
        """Walk from candidate to candidate, from the best one on.

        Heat is in mean times of an action.
        """
        now = self.best
        for done in range(number):
            assert now is not None
            other = change(self, now)
            if other is not None:
                rise = other.energy - now.energy
                heat = hot * (cold / hot) ** (done / number) * self.mean_time
                if rise <= 0 or self.random.random() < exp(-rise / heat):
                    now = other
            yield other

    def reorder(self, number: int) -> Iterator[SearchState | None]:
        """Let CP-SAT, if it is installed, reorder windows of the best candidate."""
        if self.windows is None:
            return
        now = self.best
        for _ in range(number):
            assert now is not None
            orders = self.windows.reordered(now.run.orders, self.random)
            other = self.order_of(orders, "CP-SAT on windows")
            if other is not None and other.energy <= now.energy:
                now = other
            self.evaluations += _WINDOW - 1
            yield other

    # -- seeds -------------------------------------------------------------------------

    def seeds(self) -> Iterator[SearchState | None]:
        """Yield the schedules to start from."""
        yield from self.built(self.problem)
        yield from self.named()
        for problem in self.with_less_memory():
            yield from self.built(problem)

    def built(self, problem: ProblemData) -> Iterator[SearchState | None]:
        """Yield the schedules of sweeps and list scheduler within a memory."""
        for decisions in product((True, False), repeat=3):
            sweeps = Sweeps(problem, *decisions)
            candidate = None
            if sweeps.is_complete:
                candidate = self.order_of(sweeps.orders, "sweeps")
            yield candidate
        for policies in self.grid():
            run = ListScheduler(problem, policies)
            yield self.candidate(run, "list scheduling", policies)

    def with_less_memory(self) -> Iterator[ProblemData]:
        """Yield the problem with memory for one microbatch less, two less, and so on.

        Greedy construction may use more memory than it needs. A schedule built for a
        smaller limit is also legal.
        """
        problem = self.problem
        workload = self.problem.workload
        unit = max(workload.footprint.activation)
        held = []
        for stages in problem.stages_of:
            size = sum(problem.steps[F, stage].change for stage in stages)
            held.append(workload.num_microbatches * size)
        limits = tuple(map(min, workload.memory_limit, held))
        while unit:
            limits = tuple(limit - unit for limit in limits)
            if not all(map(fits, problem.least, limits)):
                return
            less = workload._replace(memory_limit=limits)
            yield ProblemData(less, look_at_clock=self._look_at_clock)

    def grid(self) -> Iterator[tuple[Policy, ...]]:
        """Yield policies for all ranks, the simplest first."""
        p = len(self.problem.stages_of)
        m = self.problem.num_microbatches
        ahead = [lambda r: p - r, lambda r: 2 * (p - r) - 1, lambda r: 2 * (p - r)]
        depths: list[Callable[[int], int]] = [lambda _: m, lambda _: p, *ahead]
        waits = product((0.0, 1.0), (0.0, 0.25), (0.0, 0.5, 1.0), (0.0, 1.0))
        for wait, depth in product(waits, depths):
            yield tuple(Policy(min(depth(rank), m), *wait) for rank in range(p))

    def named(self) -> Iterator[SearchState]:
        """Yield the named schedules with this placement that keep the limits.

        Their backwards are split.
        """
        workload = self.problem.workload
        for name in REGISTRY:
            try:
                built = build(name, workload.num_ranks, workload.num_microbatches)
                schedule = split_backward(built)
                rank_of_each_stage(schedule, "a search")
            except ScheduleError:  # it needs other sizes, or has replicas or updates
                continue
            orders = orders_of(schedule)
            is_same = schedule.placement == workload.placement
            if not is_same or schedule.is_forward_only:
                continue
            if schedule_of(orders, workload, name) == schedule:
                candidate = self.order_of(orders, name)
                if candidate is not None:
                    yield candidate

    # -- changes -----------------------------------------------------------------------

    def with_other_policies(self, now: SearchState) -> SearchState:
        """Change the policies of one to three ranks a little."""
        random = self.random
        num_ranks = len(self.problem.stages_of)
        policies = list(now.policies or next(self.grid()))
        for _ in range(random.choice((1, 1, 2, 3))):
            rank = random.randrange(num_ranks)
            policies[rank] = self.changed(policies[rank])
        run = ListScheduler(self.problem, policies)
        return self.candidate(run, "list scheduling, annealed", tuple(policies))

    def changed(self, policy: Policy) -> Policy:
        """Change one part of a policy."""
        field = self.random.choice(Policy._fields)
        if field == "in_flight":
            depth = policy.in_flight + self.random.choice((-2, -1, 1, 2))
            most = self.problem.num_microbatches
            return policy._replace(in_flight=min(max(depth, 1), most))
        wait = self.random.choice((*_WAITS, self.random.random()))
        changed: dict[str, Any] = {field: wait}
        return policy._replace(**changed)

    def with_other_order(self, now: SearchState) -> SearchState | None:
        """Move one to three actions, each on its rank: of the critical path, or any."""
        orders = list(now.run.orders)
        random = self.random
        changed = set()
        delays: list[tuple[int, int]] = []
        if isinstance(now.run, TimedOrder) and random.random() < 0.5:
            delays = now.run.delays(now.slowest)
        numbers: Sequence[int] = (1, 1, 1, 2, 3)
        if delays:
            rank, position = random.choice(delays)
            orders[rank] = without_delay(orders[rank], position, random)
            changed.add(rank)
            numbers = (0, 0, 1)
        for _ in range(random.choice(numbers)):
            rank = random.randrange(len(orders))
            orders[rank] = with_any_move(orders[rank], random)
            changed.add(rank)
        return self.order_of(orders, "annealing of the order", changed)

    def order_of(
        self, orders: list[Order], found_by: str, ranks: Iterable[int] = ()
    ) -> SearchState | None:
        """Time an order; None if it is not legal, or a rank takes too much memory.

        It saves time to look first at the ranks that may be wrong.
        """
        if not all(is_possible(orders[rank], rank, self.problem) for rank in ranks):
            return None
        timed = TimedOrder(orders, self.problem)
        if not timed.is_complete:
            return None
        return self.candidate(timed, found_by)


Change = Callable[[Search, SearchState], SearchState | None]
