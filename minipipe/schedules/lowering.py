"""Lowering: from what is computed to what is computed, sent and received."""

from __future__ import annotations

from minipipe.errors import Problem, ScheduleError
from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.order import walk
from minipipe.schedules.schedule import Schedule

__all__ = ["lower", "message_of"]


def message_of(schedule: Schedule, action: Action) -> tuple[Action, Action] | None:
    """Return the SEND and the RECV that carry an action's result to another rank, or None where none is needed."""
    stage, kind, microbatch = action
    if kind is ActionKind.FORWARD and schedule.crosses_ranks(stage):
        return Action(stage, ActionKind.SEND_F, microbatch), Action(stage + 1, ActionKind.RECV_F, microbatch)
    if kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT) and stage > 0 and schedule.crosses_ranks(stage - 1):
        return Action(stage, ActionKind.SEND_B, microbatch), Action(stage - 1, ActionKind.RECV_B, microbatch)
    return None


def lower(schedule: Schedule) -> Schedule:
    """Add a SEND and a RECV for every value that crosses ranks, in pairs.

    Roughly: ``for rank, action in walk(schedule): run it; its SEND goes here, its RECV to the consumer, now``.

    There is one global order of all actions. Each pair is put at one place of that order, so the first unfinished
    item of the order can always run: no deadlock, even when every send blocks until it is received. The naive rule
    (receive just before use, send just after) has 1F1B wait in a circle: both neighbours send, neither receives.

    Parameters
    ----------
    schedule : Schedule
        One that already holds SEND and RECV is returned as it is.

    Returns
    -------
    Schedule

    Raises
    ------
    ScheduleError
        Code ``deadlock``, when the schedule cannot run to its end; :func:`minipipe.verify` says why.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(lower(schedules.gpipe(2, 1)))
    # gpipe: 2 ranks, 2 stages, 1 microbatch
    rank 0: 0F0 0SEND_F0 0RECV_B0 0B0
    rank 1: 1RECV_F0 1F0 1B0 1SEND_B0
    """
    if schedule.has_communication:
        return schedule
    steps = walk(schedule)
    if steps.blocked:
        stuck = steps.blocked[0]
        message = f"{stuck.action} on rank {stuck.rank} waits for ever for {stuck.awaited}; verify(schedule) says why."
        raise ScheduleError([Problem("deadlock", message, stuck.rank, stuck.position)])
    programs: list[list[Action]] = [[] for _ in range(schedule.num_ranks)]
    for rank, action in steps.order:
        programs[rank].append(action)
        message_pair = message_of(schedule, action)
        if message_pair is not None:
            send, receive = message_pair
            programs[rank].append(send)
            programs[schedule.placement[receive.stage]].append(receive)
    return Schedule(schedule.name, schedule.placement, schedule.num_microbatches, tuple(map(tuple, programs)))
