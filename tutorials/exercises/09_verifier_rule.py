"""09 verifier rule: who waits for ever, and at which step.

Lesson 07. A schedule may be written so that it never ends: an action stands before one that it needs, or several ranks
wait for each other in a circle. On real ranks that is a hang without a word. A verifier finds it before anything runs,
and names rank and step.

What an action needs (stage s, microbatch k, S stages):
    F(s, k)            F(s - 1, k), unless s = 0
    B(s, k), I(s, k)   F(s, k); and B(s + 1, k) or I(s + 1, k), unless s = S - 1
    W(s, k)            I(s, k)
A rank does its actions one after the other. It is stuck where its next action needs one that never gets done.

Write `stuck(schedule)`: a list with a pair (rank, step) for every rank that cannot finish, by rank, where step is the
index, from 0, of the action that it cannot do. An empty list says that the schedule runs to its end.

`schedule.actions[rank]` is a tuple of actions; each is (stage, kind, microbatch). `schedule.num_ranks`,
`schedule.num_stages` help. The schedule holds no SEND and no RECV, and every action once.

Example: with
    rank 0: 0F0 0B0 0F1 0B1
    rank 1: 1F1 1B1 1F0 1B0
rank 0 cannot do 0B0 (step 1), which needs 1B0; rank 1 cannot do 1F1 (step 0), which needs 0F1: [(0, 1), (1, 0)].

Checked: the named schedules, circles of two and of three ranks, a wrong order on one rank, W before I, several stages
on a rank, long schedules.
"""

from minipipe import Action, ActionKind, Schedule

F, B, I, W = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT


def stuck(schedule: Schedule) -> list[tuple[int, int]]:
    """Return (rank, step) for every rank that cannot finish."""
    # SOLUTION
    done: set[Action] = set()
    steps = [0] * schedule.num_ranks
    is_moving = True
    while is_moving:
        is_moving = False
        for rank, row in enumerate(schedule.actions):
            while steps[rank] < len(row) and is_ready(row[steps[rank]], done, schedule.num_stages):
                done.add(row[steps[rank]])
                steps[rank] += 1
                is_moving = True
    return [(rank, step) for rank, step in enumerate(steps) if step < len(schedule.actions[rank])]
    # STUB
    # raise NotImplementedError("let every rank go as far as it can, again and again, until none can move")
    # END


# SOLUTION
def is_ready(action, done, num_stages):
    """Tell whether what an action needs is done."""
    stage, kind, k = action
    if kind is F:
        return stage == 0 or Action(stage - 1, F, k) in done
    if kind is W:
        return Action(stage, I, k) in done
    if Action(stage, F, k) not in done:
        return False
    return stage == num_stages - 1 or Action(stage + 1, B, k) in done or Action(stage + 1, I, k) in done


# STUB
# END
