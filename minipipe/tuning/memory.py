"""How much memory each rank of a plan will take, from shapes and from what was measured of each layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from minipipe.io import html_table, text_table
from minipipe.schedules.action_table import Schedule
from minipipe.schedules.analysis.dependencies import Direction, Value
from minipipe.schedules.analysis.walk import complete_walk

_HEAD = ("rank", "parameters", "gradients", "optimiser", "activations", "messages", "total bytes")


class RankMemory(NamedTuple):
    """The memory of one rank in a training step, in bytes.

    Attributes
    ----------
    parameters : int
        The values of its stages' parameters; a parameter that several stages share counts once.
    gradients : int
        One for each use of a trained parameter.
    optimiser_state : int
        The optimiser's state for these parameters.
    activations : int
        The most that graphs hold at once.
    messages : int
        The most that is in flight at once, if every action takes equally long. A rank with a late consumer holds more.

    Examples
    --------
    >>> RankMemory(8, 8, 16, 100, 20).total
    152
    """

    parameters: int
    gradients: int
    optimiser_state: int
    activations: int
    messages: int

    @property
    def total(self) -> int:
        """The sum: an upper bound, unless messages are blocked on a late consumer."""
        return sum(self)


class MemoryPrediction(tuple[RankMemory, ...]):
    """The memory of each rank in a training step: a tuple of :class:`RankMemory`, by rank, which prints as a table.

    :meth:`minipipe.Plan.memory` makes it, and lists what is not counted.

    Examples
    --------
    >>> print(MemoryPrediction([RankMemory(8, 8, 16, 1000, 20)]))
    rank  parameters  gradients  optimiser  activations  messages  total bytes
       0           8          8         16        1,000        20        1,052
    """

    __slots__ = ()

    def __str__(self) -> str:
        return text_table(self._table(), range(len(_HEAD)))

    def _repr_html_(self) -> str:
        return html_table(self._table(), range(len(_HEAD)))

    def _table(self) -> list[tuple[str, ...]]:
        rows = ((str(rank), *(f"{size:,}" for size in (*own, own.total))) for rank, own in enumerate(self))
        return [_HEAD, *rows]


def in_flight(schedule: Schedule, sizes: Sequence[tuple[int, int]]) -> list[int]:
    """Return, by rank, the most bytes that it has in flight: sent, and not yet consumed.

    Every action takes equally long. A message lives from its producer's action until its consumer's begins.

    Parameters
    ----------
    schedule : Schedule
    sizes : sequence of (int, int)
        By stage, the bytes of its activation, and of the gradient of that.

    Examples
    --------
    Eager forwards wait for their consumer, which runs backwards in between.

    >>> from minipipe import schedules
    >>> in_flight(schedules.one_f_one_b(2, 8), [(10, 10), (0, 0)])
    [10, 10]
    >>> in_flight(schedules.eager_1f1b(2, 8), [(10, 10), (0, 0)])
    [20, 10]
    """
    crosses = [schedule.crosses_ranks(stage) for stage in range(schedule.num_stages)]
    rank_of, held, most = schedule.placement, [0] * schedule.num_ranks, [0] * schedule.num_ranks

    walk = complete_walk(schedule)
    heads = [iter(row) for row in schedule.actions]
    for ranks in walk.rounds:
        actions = [next(heads[rank]) for rank in ranks]
        for sign, value_of in ((-1, Value.consumed_by), (1, Value.produced_by)):
            for value in map(value_of, actions):
                if value is not None and 0 <= value.cut < len(crosses) and crosses[value.cut]:
                    held[rank_of[value.stage]] += sign * sizes[value.cut][value.direction is Direction.BACKWARD]
        most = list(map(max, most, held))
    return most
