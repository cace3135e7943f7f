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
    Cell,
    Clock,
    Facts,
    Word,
    one_after_another,
    schedule_of,
    words_of,
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
    name = NAME if search.best_words else first.name
    words = search.best_words or words_of(first)
    schedule = schedule_of(words, workload, f"found by {name}")
    value = evaluate(schedule, workload, objective)
    bound = min(least, value) if search.is_late else value
    seconds = perf_counter() - began
    return Certificate(schedule, workload, objective, value, bound, NAME, name, seconds)


class _Search(Clock):
    """The actions placed so far, and the best schedule so far."""

    def __init__(
        self, workload: Workload, objective: Objective, deadline: float
    ) -> None:
        super().__init__(Facts(workload))
        self.workload = workload
        self.objective = objective
        self.deadline = deadline
        self.best = inf
        self.is_late = False
        self.best_words: list[Word] | None = None
        self.shortest = min(step.time for step in self.facts.steps.values())
        self.refused: list[frozenset[Cell]] = [frozenset() for _ in self.rows]
        self.seen: defaultdict[tuple, list[list[float]]] = defaultdict(list)

    # -- branches ----------------------------------------------------------------------

    def explore(self) -> None:
        """Visit all schedules that continue the placed actions."""
        self.is_late = self.is_late or perf_counter() > self.deadline
        bound = self.bound()
        if self.is_late or bound >= self.best * (1 - ROUNDING):  # [1]
            return
        if set(self.done.values()) == {self.workload.num_microbatches}:
            self.best, self.best_words = bound, self.words  # the bound is the value
            return
        if self._is_dominated():
            return
        options = [self._options(rank) for rank in range(len(self.rows))]
        soonest = [min(choices, default=(inf,))[0] for choices in options]
        rank = soonest.index(min(soonest))
        if isinf(soonest[rank]):  # all wait for a refused action
            return
        own = options[rank]
        harmless = ((end, cell) for _, end, cell in own if self._gives_back(rank, cell))
        over, soonest_over = min(harmless, default=(inf, None))
        own.sort(key=lambda option: (option[0], "IFW".index(option[2][0])))
        for start, _, cell in own:
            if start < over or cell == soonest_over:  # [2]; it may take no time
                self._branch(rank, cell, start)
        others = min(soonest[:rank] + soonest[rank + 1 :], default=inf)
        if others + self.shortest < over:  # [2]
            refused = self.refused[rank]
            self.refused[rank] = refused | {cell for _, _, cell in own}
            self.explore()
            self.refused[rank] = refused

    def _options(self, rank: int) -> list[tuple[float, float, Cell]]:
        """Return (start, end and overhead, cell) of what a rank may run next."""
        found = []
        for stage, kind in product(self.facts.own[rank], (F, I, W)):
            cell = kind, stage
            step = self.facts.steps[cell]
            start = max(self.free[rank], self.next_at(cell))
            is_refused = cell in self.refused[rank]
            if start < inf and not is_refused and self.fits(rank, step.during):
                found.append((start, start + step.time + self.facts.overhead, cell))
        return found

    def _gives_back(self, rank: int, cell: Cell) -> bool:
        """Tell whether memory permits running an action sooner."""
        is_freed = cell[0] is not F and self.facts.steps[cell].change <= 0
        return is_freed or isinf(self.workload.memory_limit[rank])

    def _branch(self, rank: int, cell: Cell, start: float) -> None:
        """Place an action, visit the continuations, and undo the placement."""
        held = self.held[rank]
        refused = self.refused[rank]
        self.run(rank, [cell], start)
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
        for rank, own in enumerate(self.facts.own):
            left = []
            for cell in heads:
                if cell[1] in own:
                    time = self.facts.steps[cell].time
                    left += [(head, time) for head in heads[cell]]
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

    def _heads(self) -> dict[Cell, list[float]]:
        """Return, by cell, the earliest starts of its remaining actions."""
        heads: dict[Cell, list[float]] = {}
        ended = self.ended[:]
        for cell in self.facts.cells:
            step = self.facts.steps[cell]
            soonest = self.free[self.facts.rank_of[cell[1]]]
            heads[cell] = []
            for k in range(self.done[cell], self.workload.num_microbatches):
                head = max(soonest, self._there(cell, k, ended))
                heads[cell].append(head)
                ended[step.event + k] = head + step.time
                soonest = head + step.time + self.workload.overhead
        return heads

    def _there(self, cell: Cell, k: int, ended: list[float]) -> float:
        """Return when the values for an action exist."""
        there = 0.0
        for needed, delay in self.facts.steps[cell].needs:
            there = max(there, ended[needed + k] + delay)
        return there

    def _is_dominated(self) -> bool:  # [3]
        """Tell whether another branch placed and refused the same actions, no later.

        That is said of the times of all ranks and values.
        """
        state = list(self.free)
        for cell in product((F, I), range(self.workload.num_stages)):
            free = self.free[self.facts.rank_of[cell[1]]]
            for k in range(self.done[cell], self.workload.num_microbatches):
                there = self._there(cell, k, self.ended)
                if there == inf:
                    break
                state.append(max(free, there))
        known = self.seen[tuple(self.done.values()), tuple(self.refused)]
        if any(all(a <= b for a, b in zip(other, state)) for other in known):
            return True
        later = [other for other in known if all(b <= a for a, b in zip(other, state))]
        for other in later:
            known.remove(other)
        known.append(state)
        return False
