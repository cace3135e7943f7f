"""08 lowering: insert the sends and receives.

Lesson 07. A schedule contains only computations. Before it can run, every value that
crosses ranks needs a SEND on the producer's rank and a RECV on the consumer's. The
obvious rule is to receive just before use and to send just after. With 1F1B that
deadlocks as soon as a send blocks until it is received, as large messages do. Small
messages get through, so the mistake is found late.

Here is a rule that never deadlocks. Go through the actions of all ranks in one
topological order, so that each action comes after its data dependencies. Where a value
is produced, append the SEND to the producer's rank and, at the same moment, the RECV to
the consumer's rank. Each pair then has a single position in one global order, so the
first pair that has not completed can always make progress.

Write `add_messages(schedule)`, which returns the actions of each rank with SEND and
RECV inserted. `global_order(schedule)`, given below, yields (rank, action) in such an
order. A forward of stage s sends its activation (SEND_F, named after stage s) to stage
s + 1 (RECV_F, named after the consumer, stage s + 1). A backward of stage s, B or I,
sends its gradient (SEND_B of s) to stage s - 1 (RECV_B of s - 1). Neighbouring stages
on the same rank need no message: `schedule.crosses_ranks(s)` says whether one is needed
between s and s + 1. `schedule.placement[s]` is the rank of stage s.

Example: two ranks, one microbatch:
    rank 0: 0F0 0SEND_F0 0RECV_B0 0B0
    rank 1: 1RECV_F0 1F0 1B0 1SEND_B0

Checked: legal even if every send blocks, computations unchanged, schedules with several
stages on a rank, with I and W, and with neighbouring stages on one rank.
"""

from collections.abc import Iterator

from minipipe import Action, ActionKind, Schedule
from minipipe.core.schedules.analysis.walk import walk

F, B, I = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT


def global_order(schedule: Schedule) -> Iterator[tuple[int, Action]]:
    """Yield (rank, action) in topological order: each action comes after its data
    dependencies.
    """
    return walk(schedule).order()


def add_messages(schedule: Schedule) -> list[list[Action]]:
    """Return the program of each rank: computations, sends and receives."""
    # SOLUTION
    programs = [[] for _ in range(schedule.num_ranks)]
    for rank, action in global_order(schedule):
        stage, kind, k = action
        programs[rank].append(action)
        if kind is F and schedule.crosses_ranks(stage):
            programs[rank].append(Action(stage, ActionKind.SEND_F, k))
            programs[schedule.placement[stage + 1]].append(
                Action(stage + 1, ActionKind.RECV_F, k)
            )
        if kind in (B, I) and stage > 0 and schedule.crosses_ranks(stage - 1):
            programs[rank].append(Action(stage, ActionKind.SEND_B, k))
            programs[schedule.placement[stage - 1]].append(
                Action(stage - 1, ActionKind.RECV_B, k)
            )
    return programs
    # STUB
    # raise NotImplementedError(
    #     "insert each SEND and its RECV right after the value is produced"
    # )
    # END
