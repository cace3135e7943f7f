"""Lowering: from what is computed to what is computed, sent and received."""

from __future__ import annotations

from minipipe.schedules.action import Action, ActionKind
from minipipe.schedules.order import complete_walk
from minipipe.schedules.schedule import Schedule, check_schedule

__all__ = ["lower"]


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
    check_schedule(schedule)
    if schedule.has_communication:
        return schedule
    programs: list[list[Action]] = [[] for _ in range(schedule.num_ranks)]
    messages = _message_kinds(schedule)
    for rank, action in complete_walk(schedule).order():
        stage, kind, k = action
        programs[rank].append(action)
        message = messages[stage].get(kind)
        if message is not None:
            send, consumer, receive = message
            programs[rank].append(Action(stage, send, k))
            programs[schedule.placement[consumer]].append(Action(consumer, receive, k))
    return Schedule(schedule.name, schedule.placement, schedule.num_microbatches, tuple(map(tuple, programs)))


def _message_kinds(schedule: Schedule) -> list[dict[ActionKind, tuple[ActionKind, int, ActionKind]]]:
    """Return, by stage and then by kind, the message that follows: the kind of SEND, the consumer, the kind of RECV."""
    messages: list[dict[ActionKind, tuple[ActionKind, int, ActionKind]]] = [{} for _ in schedule.placement]
    for stage in range(schedule.num_stages - 1):
        if schedule.crosses_ranks(stage):
            messages[stage][ActionKind.FORWARD] = (ActionKind.SEND_F, stage + 1, ActionKind.RECV_F)
            for kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT):
                messages[stage + 1][kind] = (ActionKind.SEND_B, stage, ActionKind.RECV_B)
    return messages
