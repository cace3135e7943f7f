"""A builder of one rank's actions, phase by phase as in the papers: ``row.repeat(3, "I W F")``."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from minipipe.schedules.action import Action, ActionKind


class Row:
    """The actions of one rank, appended phase by phase.

    A cell names a kind and a chunk of the rank: ``F0`` is the next forward of its first stage. The chunk may be omitted
    and is then 0. The exception is ``W``: without a chunk it completes the oldest pending I, whatever its chunk. The
    microbatches of each stage are counted separately for F, for B and I, and for W.

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
        self._count: Counter[tuple[int, str]] = Counter()
        self._pending: deque[Action] = deque()

    def repeat(self, times: int, cells: str) -> None:
        """Append the actions of the cells, ``times`` times over."""
        for _ in range(times):
            for cell in cells.split():
                self.actions.append(self._next(cell))

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

    Some patterns need a minimum number of microbatches. For fewer, the schedule is built with the minimum and then cut.
    The rest stays legal, because no microbatch depends on another one.

    Examples
    --------
    >>> row = Row([0])
    >>> row.repeat(3, "F I W")
    >>> print(*first_microbatches([row], num_microbatches=2)[0])
    0F0 0I0 0W0 0F1 0I1 0W1
    """
    return tuple(tuple(a for a in row.actions if a.microbatch < num_microbatches) for row in rows)
