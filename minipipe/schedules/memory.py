"""What a schedule holds in memory, after each action and at most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Integral

from minipipe.errors import Problem, ScheduleError
from minipipe.schedules.action import ActionKind
from minipipe.schedules.costs import Costs
from minipipe.schedules.schedule import Schedule, check_range

__all__ = ["held_after", "peak_activations", "peak_memory", "per_rank"]

F, B, I, W = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT
_CHANGE = {F: 1, B: -1, W: -1}


def held_after(schedule: Schedule, rank: int) -> Iterator[int]:
    """Yield, for each action of a rank, how many (stage, microbatch) pairs it holds.

    A pair is held from F until B, or until W where the backward is split. In a forward-only schedule only while its F
    runs.
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


def peak_memory(schedule: Schedule, costs: Costs) -> tuple[float, ...]:
    """Return, by rank, the most memory held after any action, in the unit of the costs.

    F adds a stage's ``activation``, I exchanges it for its ``weight_activation``, W gives that back, and B gives back
    the activation. Not counted: parameters, gradients, what an operation needs while it runs.
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
        return tuple(max((activation[a.stage] for a in row if a.kind is F), default=0.0) for row in schedule.actions)
    peaks = []
    for row in schedule.actions:
        held = peak = 0.0
        for stage, kind, _ in row:
            if kind in change:
                held += change[kind][stage]
                if held > peak:
                    peak = held
        peaks.append(peak)
    return tuple(peaks)


def per_rank(name: str, given: int | Sequence[int], num_ranks: int) -> tuple[int, ...]:
    """Return a whole number for each rank: one for all alike, or those given.

    Raises
    ------
    ScheduleError
        Code ``parameters``.
    """
    values: tuple = tuple(given) if isinstance(given, Sequence) else (given,) * num_ranks
    if len(values) != num_ranks or not all(isinstance(value, Integral) and int(value) >= 1 for value in values):
        message = f"{name} is {given!r}; expected a whole number, at least 1, or one for each of {num_ranks} ranks."
        raise ScheduleError([Problem("parameters", message)])
    return tuple(map(int, values))
