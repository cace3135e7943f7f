"""Branch and bound in plain Python: all orders that can be the best.

It needs no package, and checks the solver of ``exact.py``, with which it shares neither
model nor bound. Actions are placed one by one. Each placed action starts as early as
its order allows, as in the simulator::

    next rank: the one whose ready action can start first
      |-- its next action is this ready one        (a branch for each)
      `-- its next action is none of the ready ones: they are refused until it has
          done another one

So each order of each rank comes up once. A branch is abandoned if

    [1] bound      the remaining actions take too long for a better schedule, even if
                   every rank runs its own in the order that suits it best;
    [2] gap        another ready I or W (or F, if memory has no limit) would end before
                   the chosen next action can start: run in the gap before that action,
                   it delays nothing and frees memory sooner;
    [3] dominance  another branch has done and refused the same actions, and there every
                   rank is free, and every value available, no later.

The stages take their microbatches in ascending order; see
:func:`minipipe.search.clock.in_microbatch_order`.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import product
from math import inf, isinf
from time import perf_counter

from minipipe.core.schedules.action import F, I, W
from minipipe.errors import misuse
from minipipe.schedules.analysis.workload import ROUNDING, Objective, Workload
from minipipe.schedules.simulation.evaluation import evaluate
from minipipe.search.certificate import Certificate
from minipipe.search.clock import (
    Clock,
    Op,
    Order,
    ProblemData,
    one_after_another,
    orders_of,
    schedule_of,
)

NAME = "branch and bound"


def solve_by_branch_and_bound(
    workload: Workload, objective: Objective, seconds: float = inf
) -> Certificate:
    """Return the best schedule of a small workload, such as 4 ranks and 6 microbatches.

    It minimises a span only if the first p stages are on the p different ranks, as in
    straight and V placements: the first F of all ranks then have the same times in all
    schedules. With other placements a rank may gain by beginning late, and the order
    that makes it do so depends on more than the placed actions. If the search is
    stopped early, it has proved no more than its first bound. The value is the
    simulated one.

    Raises
    ------
    ScheduleError
        Code ``value``, if no schedule fits the memory, or for a span over another
        placement.

    References
    ----------
    Giffler and Thompson 1960, "Algorithms for solving production-scheduling problems"
    (gaps).

    Examples
    --------
    >>> from minipipe import Costs
    >>> workload = Costs(forward=[1, 2]).workload((0, 1), 3, memory_limit=2)
    >>> found = solve_by_branch_and_bound(workload, Objective.MAKESPAN)
    >>> found.value, found.bound, found.bound_by
    (13.0, 13.0, 'branch and bound')
    """
    began = perf_counter()
    first = one_after_another(workload)
    leading = workload.placement[: workload.num_ranks]
    if objective is Objective.SPAN and len(set(leading)) < workload.num_ranks:
        raise misuse(
            f"The first stages are on ranks {', '.join(map(str, leading))}; for a span "
            "each must be on another rank. Use the makespan, or exact search."
        )
    search = _Search(workload, objective, began + seconds)
    search.best = evaluate(first, workload, objective)
    least = search.bound()
    search.explore()
    name = NAME if search.best_orders else first.name
    orders = search.best_orders or orders_of(first)
    schedule = schedule_of(orders, workload, f"found by {name}")
    value = evaluate(schedule, workload, objective)
    bound = value
    if search.is_late:
        bound = min(least, value)
    seconds = perf_counter() - began
    return Certificate(schedule, workload, objective, value, bound, NAME, name, seconds)


class _Search(Clock):
    """The actions placed so far, and the best schedule so far."""

    def __init__(
        self, workload: Workload, objective: Objective, deadline: float
    ) -> None:
        super().__init__(ProblemData(workload))
        self.workload = workload
        self.objective = objective
        self.deadline = deadline
        self.best = inf
        self.is_late = False
        self.best_orders: list[Order] | None = None
        self.shortest = min(step.time for step in self.problem.steps.values())
        self.refused: list[frozenset[Op]] = [frozenset() for _ in self.rows]
        self.seen: defaultdict[tuple, list[list[float]]] = defaultdict(list)

    # -- branches ----------------------------------------------------------------------

    def explore(self) -> None:
        """Visit all schedules that continue the placed actions."""
        self.is_late = self.is_late or perf_counter() > self.deadline
        bound = self.bound()
        if self.is_late or bound >= self.best * (1 - ROUNDING):  # [1]
            return
        if set(self.done.values()) == {self.workload.num_microbatches}:
            self.best, self.best_orders = bound, self.orders  # the bound is the value
            return
        if self._is_dominated():
            return
        options = [self._options(rank) for rank in range(len(self.rows))]
        soonest = [min(choices, default=(inf,))[0] for choices in options]
        rank = soonest.index(min(soonest))
        if isinf(soonest[rank]):  # all wait for a refused action
            return
        ready = options[rank]
        harmless = ((end, op) for _, end, op in ready if self._gives_back(rank, op))
        over, soonest_over = min(harmless, default=(inf, None))
        ready.sort(key=lambda option: (option[0], "IFW".index(option[2][0])))
        for start, _, op in ready:
            if start < over or op == soonest_over:  # [2]; it may take no time
                self._branch(rank, op, start)
        others = min(soonest[:rank] + soonest[rank + 1 :], default=inf)
        if others + self.shortest < over:  # [2]
            refused = self.refused[rank]
            self.refused[rank] = refused | {op for _, _, op in ready}
            self.explore()
            self.refused[rank] = refused

    def _options(self, rank: int) -> list[tuple[float, float, Op]]:
        """Return (start, end and overhead, op) of what a rank may run next."""
        options = []
        for stage, kind in product(self.problem.stages_of[rank], (F, I, W)):
            op = kind, stage
            step = self.problem.steps[op]
            start = max(self.free[rank], self.next_at(op))
            is_refused = op in self.refused[rank]
            if start < inf and not is_refused and self.fits(rank, step.during):
                options.append((start, start + step.time + self.problem.overhead, op))
        return options

    def _gives_back(self, rank: int, op: Op) -> bool:
        """Tell whether memory permits running an action sooner."""
        is_freed = op[0] is not F and self.problem.steps[op].change <= 0
        return is_freed or isinf(self.workload.memory_limit[rank])

    def _branch(self, rank: int, op: Op, start: float) -> None:
        """Place an action, visit the continuations, and undo the placement."""
        held = self.held[rank]
        refused = self.refused[rank]
        self.run(rank, [op], start)
        self.refused[rank] = frozenset()
        self.explore()
        self.undo(rank, held)
        self.refused[rank] = refused

    # -- bound and dominance -----------------------------------------------------------

    def bound(self) -> float:
        """Return a lower bound on the objective, or the value of a whole schedule."""
        heads = self._heads()
        ends = self.ends
        longest = 0.0
        for rank, stages in enumerate(self.problem.stages_of):
            left = []
            for op in heads:
                if op[1] in stages:
                    time = self.problem.steps[op].time
                    left += [(head, time) for head in heads[op]]
            left.sort()
            begin = min([self.begins[rank], *(head for head, _ in left[:1])])
            end = ends[rank]
            free = self.free[rank]
            for head, time in left:
                end = max(free, head) + time
                free = end + self.workload.overhead
            if self.objective is Objective.SPAN:
                end -= begin
            longest = max(longest, end)
        return longest

    def _heads(self) -> dict[Op, list[float]]:
        """Return, by op, the earliest starts of its remaining actions."""
        heads: dict[Op, list[float]] = {}
        ended = self.ended[:]
        for op in self.problem.ops:
            step = self.problem.steps[op]
            soonest = self.free[self.problem.rank_of[op[1]]]
            heads[op] = []
            for k in range(self.done[op], self.workload.num_microbatches):
                head = max(soonest, self._available_at(op, k, ended))
                heads[op].append(head)
                ended[step.event + k] = head + step.time
                soonest = head + step.time + self.workload.overhead
        return heads

    def _available_at(self, op: Op, k: int, ended: list[float]) -> float:
        """Return when the values for an action exist."""
        time = 0.0
        for needed, delay in self.problem.steps[op].needs:
            time = max(time, ended[needed + k] + delay)
        return time

    def _is_dominated(self) -> bool:  # [3]
        """Tell whether another branch placed and refused the same actions, and there no
        rank is free later, and no value available later.
        """
        state = list(self.free)
        for op in product((F, I), range(self.workload.num_stages)):
            free = self.free[self.problem.rank_of[op[1]]]
            for k in range(self.done[op], self.workload.num_microbatches):
                available_at = self._available_at(op, k, self.ended)
                if available_at == inf:
                    break
                state.append(max(free, available_at))
        known = self.seen[tuple(self.done.values()), tuple(self.refused)]
        if any(all(a <= b for a, b in zip(other, state)) for other in known):
            return True
        later = [other for other in known if all(b <= a for a, b in zip(other, state))]
        for other in later:
            known.remove(other)
        known.append(state)
        return False
