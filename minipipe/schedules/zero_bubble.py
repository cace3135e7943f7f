"""Zero-bubble schedules: the backward is split, so that I passes the gradient on early and W fills idle time.

The papers write B for our I.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.action_table import Schedule
from minipipe.schedules.placement import check_sizes
from minipipe.schedules.transforms import straight


class Row:
    """The actions of one rank, appended phase by phase.

    A cell names a kind and a chunk of the rank: ``F0`` is the next forward of its first stage. The chunk may be omitted
    and is then 0. The exception is ``W``: without a chunk it completes the oldest pending I, whatever its chunk. The
    microbatches of each stage are counted separately for F, for B and I, and for W. ``F0+B1`` are two overlapped
    actions, and ``overlaps`` has the forward.

    Parameters
    ----------
    stages : sequence of int
        The stages of the rank, chunk 0 first.

    Examples
    --------
    >>> row = Row([3])
    >>> row.repeat(2, "F")
    >>> row.repeat(2, "I W")
    >>> print(*row.actions)
    3F0 3F1 3I0 3W0 3I1 3W1
    """

    def __init__(self, stages: Sequence[int]) -> None:
        self.stages = stages
        self.actions: list[Action] = []
        self.overlaps: list[Action] = []
        self._count: Counter[tuple[int, str]] = Counter()
        self._pending: deque[Action] = deque()

    def repeat(self, times: int, cells: str) -> None:
        """Append the actions of the cells, ``times`` times over."""
        for _ in range(times):
            for cell in cells.split():
                joined = [self._next(part) for part in cell.split("+")]
                self.actions += joined
                self.overlaps += joined[:-1]

    def _next(self, cell: str) -> Action:
        if cell == "W":
            return self._pending.popleft()
        stage = self.stages[int(cell[1:] or 0)]
        series = "B" if cell[0] in "BI" else cell[0]  # a microbatch has a B or an I, never both
        action = Action(stage, ActionKind(cell[0]), self._count[stage, series])
        self._count[stage, series] += 1
        if action.kind is ActionKind.BACKWARD_INPUT:
            self._pending.append(action._replace(kind=ActionKind.BACKWARD_WEIGHT))
        return action


def first_microbatches(rows: Sequence[Row], num_microbatches: int) -> tuple[tuple[Action, ...], ...]:
    """Return the actions of the first ``num_microbatches`` microbatches.

    Some patterns need a minimum number of microbatches. For fewer, the schedule is built with the minimum and then
    truncated. The rest stays legal, because no microbatch depends on another one.

    Examples
    --------
    >>> row = Row([0])
    >>> row.repeat(3, "F I W")
    >>> print(*first_microbatches([row], num_microbatches=2)[0])
    0F0 0I0 0W0 0F1 0I1 0W1
    """
    return tuple(tuple(a for a in row.actions if a.microbatch < num_microbatches) for row in rows)


def zb_h1(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 1) -> Schedule:
    """Return ZB-H1: 1F1B's memory and a third of its bubble.

    ::

        rank 0: F0 F1    I0 W0 F2 I1 W1 I2 W2
        rank 1:    F0 I0 F1 I1 W0 F2 I2 W1 W2

    For tW <= tF the makespan is m(tF + tI + tW) + (p - 1)(tF + max(0, tI - tW)); at unit costs it is 3m + p - 1. At its
    peak, rank r holds the activations of p - r microbatches and, for r more, the part that W needs.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1. For fewer microbatches than ranks, the schedule for p is truncated.
    chunks_per_rank : int
        At least 1. Rank r has that many adjacent stages, from ``r * chunks_per_rank`` on, and runs them as one.

    Returns
    -------
    Schedule

    References
    ----------
    Qi et al. 2023, "Zero bubble pipeline parallelism", figure 3 (top).

    Examples
    --------
    1F1B takes 33 units.

    >>> from minipipe import schedules, simulate
    >>> timeline = simulate(schedules.zb_h1(4, 8))
    >>> timeline.makespan, timeline.peak_activations
    (27.0, (4, 4, 4, 4))
    """
    check_sizes(num_ranks, num_microbatches, chunks_per_rank)
    p, m = num_ranks, max(num_microbatches, num_ranks)
    rows = [Row([rank]) for rank in range(p)]
    for r, row in enumerate(rows):
        row.repeat(p - r, "F")
        row.repeat(r, "I F")
        row.repeat(m - p, "I W F")
        row.repeat(p - r, "I W")
        row.repeat(r, "W")
    return straight("zb-h1", first_microbatches(rows, num_microbatches), num_microbatches, chunks_per_rank)


def zb_h2(num_ranks: int, num_microbatches: int, chunks_per_rank: int = 1) -> Schedule:
    """Return ZB-H2: no bubble within a rank's own span, at twice the memory of 1F1B.

    ::

        rank 0: F0 F1 F2 I0 W0 I1 W1 I2 W2
        rank 1:    F0 I0 F1 I1 F2 I2 W0 W1 W2

    For tW <= tF and 2 tW <= tF + tI the makespan is m(tF + tI + tW) + (p - 1) max(tF, tF + tI - 2tW). At unit costs
    that is ZB-H1's, but no rank is idle between its first and its last action, so the next training step could follow
    without a gap. At its peak, rank r holds the activations of 2(p - r) - 1 microbatches and, for 2r more, the part
    that W needs.

    Parameters
    ----------
    num_ranks, num_microbatches : int
        At least 1. For fewer than 2p - 1 microbatches, the schedule for 2p - 1 is truncated.
    chunks_per_rank : int
        At least 1. Rank r has that many adjacent stages, from ``r * chunks_per_rank`` on, and runs them as one.

    Returns
    -------
    Schedule

    References
    ----------
    Qi et al. 2023, "Zero bubble pipeline parallelism", figure 3 (bottom).

    Examples
    --------
    >>> from minipipe import schedules, simulate
    >>> timeline = simulate(schedules.zb_h2(4, 8))
    >>> timeline.makespan, [timeline.idle_within_span(rank) for rank in range(4)], timeline.peak_activations
    (27.0, [0.0, 0.0, 0.0, 0.0], (7, 7, 7, 7))
    """
    check_sizes(num_ranks, num_microbatches, chunks_per_rank)
    p, m = num_ranks, max(num_microbatches, 2 * num_ranks - 1)
    rows = [Row([rank]) for rank in range(p)]
    for r, row in enumerate(rows):
        ahead = 2 * (p - r) - 1
        row.repeat(ahead, "F")
        row.repeat(2 * r, "I F")
        row.repeat(m - 2 * p + 1, "I W F")
        row.repeat(ahead, "I W")
        row.repeat(2 * r, "W")
    return straight("zb-h2", first_microbatches(rows, num_microbatches), num_microbatches, chunks_per_rank)
