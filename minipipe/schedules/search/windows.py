"""Windows: CP-SAT orders a part of a schedule anew, while the rest keeps its order (large-neighbourhood search).

A window is about so many actions, on all ranks or on two, around a point in time::

    rank 0:  F0 F1 F2 | I0 W0 F3 I1 | W1 I2 W2       the order between the bars is free,
    rank 1:     F0 F1 | I0 F2 I1 W0 | F3 I2 W1       what is before them stays before, what is behind stays behind

The effort of a window is limited in CP-SAT's own count of its work, not by a clock.

References
----------
Shaw 1998, "Using constraint programming and local search methods to solve vehicle routing problems".
"""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

from minipipe.schedules.analysis.workload import Objective, Workload
from minipipe.schedules.search.exact import Model, in_whole_numbers, solver_module
from minipipe.schedules.search.list_scheduling import Word, schedule_of, words_of
from minipipe.schedules.simulation.evaluation import costs_of
from minipipe.schedules.simulation.simulator import simulate
from minipipe.schedules.simulation.timeline import Timeline

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
        self._cp_model, self._objective = solver_module(), objective
        self._workload = in_whole_numbers(workload)[0]

    def reordered(self, words: list[Word], random: Random) -> list[Word]:
        """Return the words with a random window in the best order for the objective and the mean over ranks.

        Where numbers had to be rounded, it may be too large for the memory.
        """
        timeline = simulate(schedule_of(words, self._workload, "window"), costs_of(self._workload))
        model, ranks = Model(self._cp_model, self._workload, self._objective), range(len(words))
        model.begin_with(timeline)
        near, times = self._near(timeline, random), []
        for rank, row in enumerate(timeline.spans):
            places = [place for owner, place in near if owner == rank]
            self._keep_order(model, [span.action for span in row], places)
            if row:
                first = model.spans[row[0].action].start if self._objective is Objective.SPAN else 0
                times.append(model.spans[row[-1].action].end - first)
        model.cp.minimize(2 * len(ranks) * model.objective_variable + sum(times))
        solver = self._cp_model.CpSolver()
        solver.parameters.num_workers, solver.parameters.max_deterministic_time = 1, _EFFORT
        if solver.solve(model.cp) not in (self._cp_model.OPTIMAL, self._cp_model.FEASIBLE):
            return words
        return words_of(model.schedule(solver.value))

    def _near(self, timeline: Timeline, random: Random) -> list[tuple[int, int]]:
        """Return the (rank, position) of the actions nearest to a point in time, on all ranks or on two."""
        middle, ranks = 2 * random.uniform(0, timeline.makespan), range(len(timeline.spans))
        chosen = random.sample(ranks, min(2, len(ranks))) if random.random() < 0.5 else ranks
        distances = [
            (abs(start + end - middle), rank, position)
            for rank in chosen
            for position, (_, start, end) in enumerate(timeline.spans[rank])
        ]
        return [(rank, position) for _, rank, position in sorted(distances)[: random.choice(_SIZES)]]

    def _keep_order(self, model: Any, row: list[Any], window: list[int]) -> None:
        """Let the actions outside of a window follow each other, and those inside follow what is before it."""
        low, high = (min(window), max(window)) if window else (0, 0)
        overhead = self._workload.overhead
        for position, (action, following) in enumerate(pairwise(row)):
            if not low <= position < high:
                model.follow(action, following, overhead)
        for action in row[low : high + 1]:
            if low:
                model.follow(row[low - 1], action, overhead)
            if high + 1 < len(row):
                model.follow(action, row[high + 1], overhead)
