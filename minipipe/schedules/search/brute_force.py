"""Branch and bound in plain Python: all orders of a small workload, but for those that cannot be the best.

It needs no package, and checks the solver of ``exact.py``, with which it shares neither model nor bound. The actions
are placed one by one; what is placed has its time, as early as its order allows, as in the simulator::

    next rank: the one whose ready action can start first
      |-- its next action is this ready one        (a branch for each)
      `-- its next action is none of the ready ones: they are refused until it has done another one

So each order of each rank comes up once. A branch is left where

    [1] bound      the rest takes so long, even if every rank may do what it has in the best order for itself, that no
                   better schedule comes of it;
    [2] gap        another ready I or W, or F where memory has no limit, would be over before the action that is to be
                   next can start: in the gap before that one it delays nothing, and memory is given back sooner;
    [3] dominance  the same actions are done and refused elsewhere, where every rank is free and every value is there no
                   later.

The stages take their microbatches in ascending order; see
:func:`minipipe.schedules.search.list_scheduling.in_microbatch_order`.
"""

from __future__ import annotations

from collections import defaultdict
from math import inf, isinf
from time import perf_counter
from typing import NamedTuple

from minipipe.errors import ScheduleCode, ScheduleError
from minipipe.schedules.action import Action, F, I, W
from minipipe.schedules.action_table import Schedule
from minipipe.schedules.analysis.workload import ROUNDING, Objective, Workload, fits
from minipipe.schedules.search.certificate import Certificate
from minipipe.schedules.search.list_scheduling import Cell, Facts, one_after_another
from minipipe.schedules.simulation.evaluation import evaluate

NAME = "branch and bound"


def solve_by_branch_and_bound(workload: Workload, objective: Objective, seconds: float = inf) -> Certificate:
    """Return the best schedule of a small workload, such as 4 ranks and 6 microbatches.

    A span only where the first stages are on as many ranks as there are, as in straight and V placements: the first F
    of all ranks then have the same times in all schedules. Elsewhere a rank may gain by beginning late, and which order
    makes it do so depends on more than what is placed. Stopped before the end, it has proved no more than its first
    bound. The value is the simulated one.

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
        raise ScheduleError.of(ScheduleCode.PARAMETERS, f"{message}. Use the makespan, or exact search.")
    search = _Search(workload, objective, began + seconds)
    search.best = evaluate(first, workload, objective)
    least = search.bound()
    search.explore()
    schedule = first if search.rows is None else first.with_rows(Schedule, search.rows)
    name = NAME if search.rows else first.name
    schedule = Schedule(f"found by {name}", schedule.placement, schedule.num_microbatches, schedule.actions)
    value = evaluate(schedule, workload, objective)
    bound = min(least, value) if search.is_late else value
    return Certificate(schedule, workload, objective, value, bound, NAME, name, perf_counter() - began)


class _Placed(NamedTuple):
    """What is restored when an action is taken back."""

    action: Action
    free: float
    held: float
    refused: frozenset[Cell]


class _Search:
    """The actions placed so far, and the best schedule found."""

    def __init__(self, workload: Workload, objective: Objective, deadline: float) -> None:
        self.workload, self.objective, self.deadline = workload, objective, deadline
        self.best, self.is_late = inf, False
        self.rows: list[list[Action]] | None = None
        self.facts, ranks = Facts(workload), range(workload.num_ranks)
        self.own = self.facts.own
        stages = range(workload.num_stages)
        # Each after those that it needs.
        self.cells = [*((F, s) for s in stages), *((kind, s) for s in reversed(stages) for kind in (I, W))]
        self.shortest = min(self.facts.times[cell] for cell in self.cells)
        # By cell, the one on a neighbouring stage whose value it needs, and the time in flight.
        values = ((cell, *use) for cell, use in self.facts.consumer.items())
        self.source = {user: (cell, in_flight) for cell, user, in_flight in values if cell[1] != user[1]}
        self.ends: dict[Cell, list[float]] = {cell: [] for cell in self.cells}  # of what is placed
        self.placed: list[list[Action]] = [[] for _ in ranks]
        self.first_start = [0.0 for _ in ranks]
        self.free, self.held = [0.0 for _ in ranks], [0.0 for _ in ranks]
        self.refused: list[frozenset[Cell]] = [frozenset() for _ in ranks]
        self.seen: defaultdict[tuple, list[list[float]]] = defaultdict(list)

    # -- branches -----------------------------------------------------------------------------------------------------

    def explore(self) -> None:
        """Look at all schedules that go on from what is placed."""
        self.is_late = self.is_late or perf_counter() > self.deadline
        bound = self.bound()
        if self.is_late or bound >= self.best * (1 - ROUNDING):  # [1]
            return
        if all(len(ends) == self.workload.num_microbatches for ends in self.ends.values()):
            self.best, self.rows = bound, [list(row) for row in self.placed]  # nothing is left: the bound is the value
            return
        if self._is_dominated():
            return
        options = [self._options(rank) for rank in range(len(self.own))]
        soonest = [min((start for start, _, _ in choices), default=inf) for choices in options]
        rank = min(range(len(soonest)), key=soonest.__getitem__)
        if isinf(soonest[rank]):  # all wait for what was refused
            return
        harmless = ((end, cell) for _, end, cell in options[rank] if self._gives_back(rank, cell))
        over, soonest_over = min(harmless, default=(inf, None))
        for start, _, cell in sorted(options[rank], key=lambda option: (option[0], "IFW".index(option[2][0]))):
            if start < over or cell == soonest_over:  # [2]; it may take no time
                taken_back = self._place(rank, cell, start)
                self.explore()
                self._take_back(rank, cell, taken_back)
        others = min((start for other, start in enumerate(soonest) if other != rank), default=inf)
        if others + self.shortest < over:  # [2]
            refused = self.refused[rank]
            self.refused[rank] = refused | {cell for _, _, cell in options[rank]}
            self.explore()
            self.refused[rank] = refused

    def _options(self, rank: int) -> list[tuple[float, float, Cell]]:
        """Return (start, end and overhead, cell) of the ready actions of a rank that are not refused."""
        found, limit = [], self.workload.memory_limit[rank]
        for cell in ((kind, stage) for stage in self.own[rank] for kind in (F, I, W)):
            k, needs = len(self.ends[cell]), self._needs(cell)
            is_ready = k < self.workload.num_microbatches and all(len(self.ends[need]) > k for need, _ in needs)
            if is_ready and cell not in self.refused[rank] and fits(self.held[rank] + self.facts.during[cell], limit):
                start = max([self._next_start(rank), *(self.ends[need][k] + delay for need, delay in needs)])
                found.append((start, start + self.facts.times[cell] + self.workload.overhead, cell))
        return found

    def _needs(self, cell: Cell) -> list[tuple[Cell, float]]:
        """Return the cells whose values a cell needs, and for how long those are in flight."""
        own = self.facts.before[cell]
        return [*([(own, 0.0)] if own else []), *([self.source[cell]] if cell in self.source else [])]

    def _next_start(self, rank: int) -> float:
        return self.free[rank] + (self.workload.overhead if self.placed[rank] else 0.0)

    def _gives_back(self, rank: int, cell: Cell) -> bool:
        """Tell whether an action may come sooner for all that memory says."""
        return isinf(self.workload.memory_limit[rank]) or (cell[0] is not F and self.facts.change[cell] <= 0)

    def _place(self, rank: int, cell: Cell, start: float) -> _Placed:
        action = Action(cell[1], cell[0], len(self.ends[cell]))
        before = _Placed(action, self.free[rank], self.held[rank], self.refused[rank])
        if not self.placed[rank]:
            self.first_start[rank] = start
        self.held[rank] += self.facts.change[cell]
        self.free[rank] = start + self.facts.times[cell]
        self.ends[cell].append(self.free[rank])
        self.placed[rank].append(action)
        self.refused[rank] = frozenset()
        return before

    def _take_back(self, rank: int, cell: Cell, before: _Placed) -> None:
        self.ends[cell].pop()
        self.placed[rank].pop()
        _, self.free[rank], self.held[rank], self.refused[rank] = before

    # -- what cannot be the best --------------------------------------------------------------------------------------

    def bound(self) -> float:
        """Return a time below which the objective cannot be: of a complete schedule its value."""
        heads = self._heads()
        longest = 0.0
        for rank, own in enumerate(self.own):
            own_cells = [cell for cell in self.cells if cell[1] in own]
            left = sorted((head, self.facts.times[cell]) for cell in own_cells for head in heads[cell])
            end, is_first = self.free[rank], not self.placed[rank]
            begin = left[0][0] if left and is_first else self.first_start[rank]
            for head, time in left:
                end = max(end + (0.0 if is_first else self.workload.overhead), head) + time
                is_first = False
            longest = max(longest, end - (begin if self.objective is Objective.SPAN else 0.0))
        return longest

    def _heads(self) -> dict[Cell, list[float]]:
        """Return by cell the times before which its actions that are left cannot start."""
        heads: dict[Cell, list[float]] = {}
        for cell in self.cells:
            soonest = self._next_start(self.workload.placement[cell[1]])
            found: list[float] = []
            for k in range(len(self.ends[cell]), self.workload.num_microbatches):
                for need, delay in self._needs(cell):
                    placed = self.ends[need]
                    end = placed[k] if k < len(placed) else heads[need][k - len(placed)] + self.facts.times[need]
                    soonest = max(soonest, end + delay)
                found.append(soonest)
                soonest += self.facts.times[cell] + self.workload.overhead
            heads[cell] = found
        return heads

    def _is_dominated(self) -> bool:  # [3]
        """Tell whether the same actions were placed and refused before, and all ranks and values there no later."""
        done = tuple(map(len, self.ends.values()))
        state = list(self.free)
        for cell, (source, _) in self.source.items():
            state += self.ends[source][len(self.ends[cell]) :]
        known = self.seen[done, tuple(self.refused)]
        if any(all(a <= b for a, b in zip(other, state)) for other in known):
            return True
        known[:] = [other for other in known if not all(b <= a for a, b in zip(other, state))]
        known.append(state)
        return False
