"""Lowering: from a schedule to the program that the ranks run.

There is one global order of all actions (``Walk.order`` in
``core/schedules/analysis/walk.py``): round after round, every rank whose next action is
ready runs it, lowest rank first. Each message is put at one position of this order,
right after the action that produces the value. For three ranks::

    global order    0F0   0SEND_F0   1RECV_F0   0F1   0SEND_F1   1RECV_F1   1F0   1SEND_F0   2RECV_F0   …
    rank 0          0F0   0SEND_F0              0F1   0SEND_F1                                          …
    rank 1                           1RECV_F0                    1RECV_F1   1F0   1SEND_F0              …
    rank 2                                                                                   2RECV_F0   …

The program of 1F1B for two ranks and three microbatches::

    rank 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0F2 0SEND_F2 0RECV_B1 0B1 0RECV_B2 0B2
    rank 1: 1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0 1F1 1RECV_F2 1B1 1SEND_B1 1F2 1B2 1SEND_B2

Each rank's row is a part of that order. Every item comes after its dependencies, and
each SEND is next to its RECV. So the first unfinished item can always run: no deadlock,
even when every send blocks until it is received. The naive rule (receive just before
use, send just after) makes 1F1B deadlock on two ranks: rank 0 is at 0SEND_F1 and rank 1
at 1SEND_B0, and each RECV comes after the other rank's SEND.

File 4 of 13 on the first path through the code (README.md):
after ``core/schedules/analysis/dependencies.py``, before ``core/execution/executor.py``.
"""

from __future__ import annotations

from minipipe.core.flow import flow_of
from minipipe.core.lowering import with_messages
from minipipe.core.schedules.action import new_action
from minipipe.core.schedules.action_table import ActionTable, Program, check_table
from minipipe.core.schedules.analysis.walk import complete_walk
from minipipe.core.schedules.collector import collector_paused


def lower(schedule: ActionTable) -> Program:
    """Add a SEND and a RECV for every value that crosses ranks, in pairs.

    Local; no messages. Roughly: ``for rank, action in complete_walk(schedule).order():
    run it; its SEND goes here, its RECV to the rank of its consumer, now``.

    Parameters
    ----------
    schedule : Schedule or Program
        A program is returned unchanged.

    Returns
    -------
    Program

    Raises
    ------
    ScheduleError
        Code ``deadlock``, if the schedule cannot run to its end;
        :func:`minipipe.verify` says why.

    Examples
    --------
    >>> from minipipe import schedules
    >>> print(lower(schedules.gpipe(2, 1)))
    # gpipe: 2 ranks, 2 stages, 1 microbatch
    rank 0: 0F0 0SEND_F0 0RECV_B0 0B0
    rank 1: 1RECV_F0 1F0 1B0 1SEND_B0
    """
    check_table(schedule)
    if isinstance(schedule, Program):
        return schedule
    walked = complete_walk(schedule)
    with collector_paused():
        rows = with_messages(flow_of(schedule), walked.rounds, new_action)
    return schedule.with_rows(Program, rows)
