"""What a schedule holds in memory, after each action and at most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from numbers import Integral

from minipipe.errors import Problem, ScheduleError
from minipipe.schedules.action import ActionKind
from minipipe.schedules.costs import Costs
from minipipe.schedules.schedule import Schedule, check_range

__all__ = ["held_after", "memory_after", "peak_activations", "peak_memory", "per_rank"]

F, B, I, W = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT
_CHANGE = {F: 1, B: -1, W: -1}


def held_after(schedule: Schedule, rank: int) -> Iterator[int]:
    """Yield, for each action of a rank, how many (stage, microbatch) pairs it holds.

    A pair is held from F until B, or until W where the backward is split. In a forward-only schedule only while its F
    runs.

    Examples
    --------
    >>> from minipipe import schedules
    >>> list(held_after(schedules.one_f_one_b(2, 3), rank=0))
    [1, 2, 1, 2, 1, 0]
    """
    if schedule.is_forward_only:
        yield from (int(action.kind is F) for action in schedule.actions[rank])
        return
    held = 0
    for _, kind, _ in schedule.actions[rank]:
        held += _CHANGE.get(kind, 0)
        yield held


def peak_activations(schedule: Schedule) -> tuple[int, ...]:
    """Return, by rank, the most (stage, microbatch) pairs held at once: from F until B, or until W where split.

    In a forward-only schedule F gives its memory back when it ends.

    Examples
    --------
    >>> from minipipe import schedules
    >>> peak_activations(schedules.gpipe(4, 8))
    (8, 8, 8, 8)
    """
    return tuple(max(held_after(schedule, rank), default=0) for rank in range(schedule.num_ranks))


def memory_after(schedule: Schedule, costs: Costs) -> tuple[tuple[float, ...], ...]:
    """Return, by rank, the memory held after each of its actions, in the unit of the costs.

    F adds a stage's ``activation``, I exchanges it for its ``weight_activation``, W gives that back, and B gives back
    the activation. In a forward-only schedule it is what F holds while it runs, and gives back when it ends. Not
    counted: parameters, gradients, what an operation needs while it runs.

    Examples
    --------
    >>> from minipipe import Costs, schedules
    >>> memory_after(schedules.zb_h1(2, 2), Costs(activation=10, weight_activation=4))[0]
    (10.0, 20.0, 14.0, 10.0, 4.0, 0.0)
    """
    check_range(schedule)
    activation, weight_activation = costs.memory(schedule.num_stages)
    change = {
        F: activation,
        B: [-held for held in activation],
        I: [later - held for held, later in zip(activation, weight_activation)],
        W: [-held for held in weight_activation],
    }
    if schedule.is_forward_only:
        return tuple(tuple(activation[a.stage] if a.kind is F else 0.0 for a in row) for row in schedule.actions)
    nothing = [0.0] * schedule.num_stages
    return tuple(
        tuple(accumulate(change.get(kind, nothing)[stage] for stage, kind, _ in row)) for row in schedule.actions
    )


def peak_memory(schedule: Schedule, costs: Costs) -> tuple[float, ...]:
    """Return, by rank, the most memory held at once: the largest of :func:`memory_after`.

    Parameters
    ----------
    schedule : Schedule
    costs : Costs

    Returns
    -------
    tuple of float
        By rank, in the memory unit of the costs.

    Examples
    --------
    >>> from minipipe import Costs, schedules
    >>> peak_memory(schedules.one_f_one_b(2, 4), Costs(activation=[10, 20]))
    (20.0, 20.0)
    """
    return tuple(max((0.0, *held)) for held in memory_after(schedule, costs))


def per_rank(name: str, given: int | Sequence[int], num_ranks: int) -> tuple[int, ...]:
    """Return a whole number for each rank: one for all alike, or those given.

    Raises
    ------
    ScheduleError
        Code ``parameters``.

    Examples
    --------
    >>> per_rank("memory_limit", 4, num_ranks=3)
    (4, 4, 4)
    """
    values: tuple = tuple(given) if isinstance(given, Sequence) else (given,) * num_ranks
    if len(values) != num_ranks or not all(isinstance(value, Integral) and int(value) >= 1 for value in values):
        message = f"{name} is {given!r}; expected a whole number, at least 1, or one for each of {num_ranks} ranks."
        raise ScheduleError([Problem("parameters", message)])
    return tuple(map(int, values))
