"""Puzzles: workloads with a proved optimum, to be reached by hand. The coursework uses
the last five.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from minipipe.io import package_text
from minipipe.schedules.analysis.bounds import Bound
from minipipe.schedules.analysis.workload import Objective
from minipipe.schedules.simulation.costs import Costs
from minipipe.search.gallery import known_bound


class Puzzle(NamedTuple):
    """A workload with one stage on each rank.

    Attributes
    ----------
    num_ranks, num_microbatches : int
    costs : str
        For :meth:`minipipe.Costs.parse`.
    memory_limit : int
        The most (stage, microbatch) pairs that a rank may hold.
    hint : str
    """

    num_ranks: int
    num_microbatches: int
    costs: str
    memory_limit: int
    hint: str

    @property
    def par(self) -> Bound:
        """The shortest possible makespan, which is proved."""
        placement = tuple(range(self.num_ranks))
        workload = Costs.parse(self.costs).workload(
            placement, self.num_microbatches, self.memory_limit
        )
        return known_bound(workload, Objective.MAKESPAN)


_TEXT = package_text("render/editor/puzzles.json")
PUZZLES = tuple(Puzzle(**each) for each in json.loads(_TEXT))
