"""Which activations a rank holds while each of its actions runs, and after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from minipipe.schedules.action import ActionKind
from minipipe.schedules.costs import Costs
from minipipe.schedules.schedule import Schedule

__all__ = ["Held", "Holding", "holdings"]

F, B, I, W = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT


class Held(NamedTuple):
    """(stage, microbatch) pairs, in the order of their F, and the memory that they take."""

    pairs: tuple[tuple[int, int], ...]
    memory: float


class Holding(NamedTuple):
    """What a rank holds while an action runs, and after it."""

    during: Held
    after: Held


def holdings(schedule: Schedule, costs: Costs) -> list[list[Holding]]:
    """Return, by rank, what it holds while each of its actions runs, and after it.

    A pair is held from the start of its F until the end of its B, or of its W where the backward is split; in a
    forward-only schedule until the end of its F. Its memory changes when I ends. The numbers are those of
    :func:`minipipe.schedules.memory.memory_after`; here the schedule may be illegal.

    Examples
    --------
    >>> from minipipe import Costs, schedules
    >>> [holding.during.pairs for holding in holdings(schedules.one_f_one_b(2, 2), Costs())[1]]
    [((1, 0),), ((1, 0),), ((1, 1),), ((1, 1),)]
    """
    return [list(_of_rank(schedule, rank, *costs.memory(schedule.num_stages))) for rank in range(schedule.num_ranks)]


def _of_rank(schedule: Schedule, rank: int, until_input: list[float], until_weight: list[float]) -> Iterator[Holding]:
    taken: dict[tuple[int, int], float] = {}
    for stage, kind, k in schedule.actions[rank]:
        if kind is F:
            taken[stage, k] = until_input[stage]
        during = _snapshot(taken)
        if kind is I and (stage, k) in taken:
            taken[stage, k] = until_weight[stage]
        elif kind in (B, W) or (kind is F and schedule.is_forward_only):
            taken.pop((stage, k), None)
        yield Holding(during, _snapshot(taken))


def _snapshot(taken: dict[tuple[int, int], float]) -> Held:
    return Held(tuple(taken), sum(taken.values()))
