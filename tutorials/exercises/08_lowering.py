"""08 lowering: where the sends and receives go.

Lesson 07. A schedule says what is computed. Before ranks can run it, every value that crosses ranks needs a SEND on one
of them and a RECV on the other. The obvious rule is to receive just before use and to send right after: with 1F1B all
ranks then wait for ever as soon as a send blocks until it is received, as it does with large messages. Small ones pass,
so the mistake is found late.

A rule that never deadlocks: go through all actions of all ranks in one order in which each comes after what it needs.
Where a value is made, put the SEND on its rank and, at this very moment, the RECV on the rank that will use it. Each
pair stands at one place of one order, so the first unfinished pair can always go on.

Write `add_messages(schedule)`: for each rank its actions with SEND and RECV among them. `global_order(schedule)`, given
below, yields (rank, action) in such an order. A forward of stage s sends its activation (SEND_F, named after stage s)
to stage s + 1 (RECV_F, named after stage s + 1, which uses it); a backward, B or I, of stage s sends its gradient
(SEND_B of s) to stage s - 1 (RECV_B of s - 1). Neighbouring stages on one rank need no message: ask
`schedule.crosses_ranks(s)` whether one is needed between s and s + 1. `schedule.placement[s]` is the rank of stage s.

Example: two ranks, one microbatch:
    rank 0: 0F0 0SEND_F0 0RECV_B0 0B0
    rank 1: 1RECV_F0 1F0 1B0 1SEND_B0

Checked: legal where every send blocks, the computations unchanged, schedules with several stages on a rank, with I and
W, with neighbours on one rank.
"""

from collections.abc import Iterator

from minipipe import Action, ActionKind, Schedule
from minipipe.analysis.dependencies import walk

F, B, I = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT


def global_order(schedule: Schedule) -> Iterator[tuple[int, Action]]:
    """Yield (rank, action) so that each action comes after all that it needs."""
    return walk(schedule).order()


def add_messages(schedule: Schedule) -> list[list[Action]]:
    """Return the program of each rank, with SEND and RECV."""
    # SOLUTION
    programs = [[] for _ in range(schedule.num_ranks)]
    for rank, action in global_order(schedule):
        stage, kind, k = action
        programs[rank].append(action)
        if kind is F and schedule.crosses_ranks(stage):
            programs[rank].append(Action(stage, ActionKind.SEND_F, k))
            programs[schedule.placement[stage + 1]].append(Action(stage + 1, ActionKind.RECV_F, k))
        if kind in (B, I) and stage > 0 and schedule.crosses_ranks(stage - 1):
            programs[rank].append(Action(stage, ActionKind.SEND_B, k))
            programs[schedule.placement[stage - 1]].append(Action(stage - 1, ActionKind.RECV_B, k))
    return programs
    # STUB
    # raise NotImplementedError("put each SEND and its RECV where the value is made")
    # END
