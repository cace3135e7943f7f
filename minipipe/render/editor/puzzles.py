"""Puzzles: workloads with a proved optimum, to be reached by hand. The coursework uses
the last five.
"""

from __future__ import annotations

from typing import NamedTuple

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


PUZZLES = (
    Puzzle(
        2,
        2,
        "F=1,I=1,W=1",
        2,
        "Split the backward: rank 1 has no time to lose, and W can wait.",
    ),
    Puzzle(
        3,
        4,
        "F=1,I=1,W=1",
        3,
        "The last rank begins last and must never wait. On rank 0, W fills the gaps.",
    ),
    Puzzle(
        4,
        8,
        "F=1,I=1,W=1",
        4,
        "1F1B takes 33 units with the same memory. Put W where its rank would be idle.",
    ),
    Puzzle(
        3,
        4,
        "F=1:2:1,I=2:4:2,W=0",
        3,
        "The middle rank has 24 units of work. It must never wait.",
    ),
    Puzzle(
        3,
        5,
        "F=2:2:1,I=1:2:2,W=2:2:1",
        3,
        "A W can wait until its rank would be idle, but its pair is held.",
    ),
    Puzzle(
        3,
        5,
        "F=1:2:1,I=1:2:1,W=2:2:1,latency=1",
        3,
        "Which rank has the most work? The others may wait.",
    ),
    Puzzle(
        4,
        6,
        "F=1:2:1:1,I=1:2:1:2,W=1,latency=1",
        4,
        "Rank 0 waits for 12 units before its first I.",
    ),
    Puzzle(
        4,
        8,
        "F=1,I=1,W=1",
        3,
        (
            "One microbatch less than 1F1B holds: every rank waits a little, none for "
            "long."
        ),
    ),
)
