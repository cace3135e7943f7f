"""Branch and bound in plain Python: all orders of a small workload, except orders that cannot be the best.

It needs no package, and checks the solver of ``exact.py``, with which it shares neither model nor bound. Actions are
placed one by one. Each placed action starts as early as its order allows, as in the simulator::

    next rank: the one whose ready action can start first
      |-- its next action is this ready one        (a branch for each)
      `-- its next action is none of the ready ones: they are refused until it has done another one

So each order of each rank comes up once. A branch is abandoned if

    [1] bound      the remaining actions take too long for a better schedule, even if every rank runs its own in the
                   order that suits it best;
    [2] gap        another ready I or W (or F, if memory has no limit) would end before the chosen next action can
                   start: run in the gap before that action, it delays nothing and frees memory sooner;
    [3] dominance  another branch has done and refused the same actions, and there every rank is free, and every value
                   available, no later.

The stages take their microbatches in ascending order; see
:func:`minipipe.search.clock.in_microbatch_order`.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import product
from math import inf, isinf
from time import perf_counter

from minipipe.errors import misuse
from minipipe.schedules.action import F, I, W
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


def solve_by_branch_and_bound(workload: Workload, objective: Objective, seconds: float = inf) -> Certificate:
    """Return the best schedule of a small workload, such as 4 ranks and 6 microbatches.

    It minimises a span only if the first p stages are on the p different ranks, as in straight and V placements: the
    first F of all ranks then have the same times in all schedules. With other placements a rank may gain by beginning
    late, and the order that makes it do so depends on more than the placed actions. If the search is stopped early, it
    has proved no more than its first bound. The value is the simulated one.

    Raises
    ------
    ScheduleError
        Code ``parameters``, if no schedule fits the memory, or for a span over another placement.

    References
    ----------
    Giffler and Thompson 1960, "Algorithms for solving production-scheduling problems" (gaps).

    Examples
    --------
    >>> from minipipe import Costs
    >>> workload = Costs(forward=[1, 2]).workload((0, 1), num_microbatches=3, memory_limit=2)
    >>> found = solve_by_branch_and_bound(workload, Objective.MAKESPAN)
    >>> found.value, found.bound, found.bound_by
    (13.0, 13.0, 'branch and bound')
    """
    began = perf_counter()
    first = one_after_another(workload)
    leading = workload.placement[: workload.num_ranks]
    if objective is Objective.SPAN and len(set(leading)) < workload.num_ranks:
        message = (
            f"The first stages are on ranks {', '.join(map(str, leading))}; for a span each must be on another rank"
        )
        raise misuse(f"{message}. Use the makespan, or exact search.")
    search = _Search(workload, objective, began + seconds)
    search.best = evaluate(first, workload, objective)
    least = search.bound()
    search.explore()
    name = NAME if search.best_words else first.name
    schedule = schedule_of(search.best_words or words_of(first), workload, f"found by {name}")
    value = evaluate(schedule, workload, objective)
    bound = min(least, value) if search.is_late else value
    return Certificate(schedule, workload, objective, value, bound, NAME, name, perf_counter() - began)


class _Search(Clock):
    """The actions placed so far, and the best schedule so far."""

    def __init__(self, workload: Workload, objective: Objective, deadline: float) -> None:
        super().__init__(Facts(workload))
        self.workload, self.objective, self.deadline = workload, objective, deadline
        self.best, self.is_late = inf, False
        self.best_words: list[Word] | None = None
        self.shortest = min(step.time for step in self.facts.steps.values())
        self.refused: list[frozenset[Cell]] = [frozenset() for _ in self.rows]
        self.seen: defaultdict[tuple, list[list[float]]] = defaultdict(list)

    # -- branches -----------------------------------------------------------------------------------------------------

    def explore(self) -> None:
        """Visit all schedules that continue the placed actions."""
        self.is_late = self.is_late or perf_counter() > self.deadline
        bound = self.bound()
        if self.is_late or bound >= self.best * (1 - ROUNDING):  # [1]
            return
        if all(self.done[cell] == self.workload.num_microbatches for cell in self.facts.cells):
            self.best, self.best_words = bound, self.words  # complete: the bound is the value
            return
        if self._is_dominated():
            return
        options = [self._options(rank) for rank in range(len(self.rows))]
        soonest = [min((start for start, _, _ in choices), default=inf) for choices in options]
        rank = min(range(len(soonest)), key=soonest.__getitem__)
        if isinf(soonest[rank]):  # all wait for a refused action
            return
        harmless = ((end, cell) for _, end, cell in options[rank] if self._gives_back(rank, cell))
        over, soonest_over = min(harmless, default=(inf, None))
        for start, _, cell in sorted(options[rank], key=lambda option: (option[0], "IFW".index(option[2][0]))):
            if start < over or cell == soonest_over:  # [2]; it may take no time
                self._branch(rank, cell, start)
        others = min((start for other, start in enumerate(soonest) if other != rank), default=inf)
        if others + self.shortest < over:  # [2]
            refused = self.refused[rank]
            self.refused[rank] = refused | {cell for _, _, cell in options[rank]}
            self.explore()
            self.refused[rank] = refused

    def _options(self, rank: int) -> list[tuple[float, float, Cell]]:
        """Return (start, end and overhead, cell) of the ready actions of a rank that are not refused."""
        found, facts = [], self.facts
        for cell in ((kind, stage) for stage in facts.own[rank] for kind in (F, I, W)):
            start = max(self.free[rank], self.next_at(cell))
            if start < inf and cell not in self.refused[rank] and self.fits(rank, facts.steps[cell].during):
                found.append((start, start + facts.steps[cell].time + self.workload.overhead, cell))
        return found

    def _gives_back(self, rank: int, cell: Cell) -> bool:
        """Tell whether memory permits running an action sooner."""
        return isinf(self.workload.memory_limit[rank]) or (cell[0] is not F and self.facts.steps[cell].change <= 0)

    def _branch(self, rank: int, cell: Cell, start: float) -> None:
        """Place an action, visit the continuations, and undo the placement."""
        held, refused = self.held[rank], self.refused[rank]
        self.run(rank, [cell], start)
        self.refused[rank] = frozenset()
        self.explore()
        self.undo(rank, held)
        self.refused[rank] = refused

    # -- bound and dominance ------------------------------------------------------------------------------------------

    def bound(self) -> float:
        """Return a lower bound on the objective, or its value if the schedule is complete."""
        heads, ends = self._heads(), self.ends
        longest = 0.0
        for rank, own in enumerate(self.facts.own):
            own_cells = [cell for cell in self.facts.cells if cell[1] in own]
            left = sorted((head, self.facts.steps[cell].time) for cell in own_cells for head in heads[cell])
            begin = min([self.begins[rank], *(head for head, _ in left[:1])])
            end, free = ends[rank], self.free[rank]
            for head, time in left:
                end = max(free, head) + time
                free = end + self.workload.overhead
            longest = max(longest, end - (begin if self.objective is Objective.SPAN else 0.0))
        return longest

    def _heads(self) -> dict[Cell, list[float]]:
        """Return, by cell, the times before which its remaining actions cannot start."""
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
        """Tell whether another branch placed and refused the same actions, with all ranks and values no later."""
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
        known[:] = [other for other in known if not all(b <= a for a, b in zip(other, state))]
        known.append(state)
        return False
