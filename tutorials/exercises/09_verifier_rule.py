"""09 verifier rule: which ranks get stuck, and where.

Lesson 07. It is possible to write a schedule that never finishes: an action comes
before its data dependency, or several ranks wait for each other in a cycle. On real
ranks that is a silent hang. A verifier finds it before anything runs, and names the
rank and the position.

The dependencies of an action (stage s, microbatch k, S stages):
    F(s, k)            F(s - 1, k), unless s = 0
    B(s, k), I(s, k)   F(s, k); and B(s + 1, k) or I(s + 1, k), unless s = S - 1
    W(s, k)            I(s, k)
A rank runs its actions one after the other. It is stuck if its next action depends on
one that never completes.

Write `stuck(schedule)`, which returns a list of pairs (rank, position), sorted by rank,
one for every rank that cannot finish. The position is the index, from 0, of the action
that cannot run. An empty list means that the schedule runs to completion.

`schedule.actions[rank]` is a tuple of actions; each is (stage, kind, microbatch).
`schedule.num_ranks` and `schedule.num_stages` help. The schedule contains no SEND or
RECV, and every action exactly once.

Example: with
    rank 0: 0F0 0B0 0F1 0B1
    rank 1: 1F1 1B1 1F0 1B0
rank 0 cannot run 0B0 (position 1), which depends on 1B0, and rank 1 cannot run 1F1
(position 0), which depends on 0F1. The result is [(0, 1), (1, 0)].

Checked: the named schedules, cycles of two and of three ranks, a wrong order on one
rank, W before I, several stages on a rank, and long schedules.
"""

from minipipe import Action, ActionKind, Schedule

F, B, I, W = (
    ActionKind.FORWARD,
    ActionKind.BACKWARD,
    ActionKind.BACKWARD_INPUT,
    ActionKind.BACKWARD_WEIGHT,
)


def stuck(schedule: Schedule) -> list[tuple[int, int]]:
    """Return (rank, position) for every rank that cannot finish."""
    # SOLUTION
    done: set[Action] = set()
    steps = [0] * schedule.num_ranks
    is_moving = True
    while is_moving:
        is_moving = False
        for rank, row in enumerate(schedule.actions):
            while steps[rank] < len(row) and is_ready(
                row[steps[rank]], done, schedule.num_stages
            ):
                done.add(row[steps[rank]])
                steps[rank] += 1
                is_moving = True
    return [
        (rank, step)
        for rank, step in enumerate(steps)
        if step < len(schedule.actions[rank])
    ]
    # STUB
    # raise NotImplementedError(
    #     "let every rank run as far as it can, repeatedly, until none makes progress"
    # )
    # END


# SOLUTION
def is_ready(action, done, num_stages):
    """Tell whether the dependencies of an action are done."""
    stage, kind, k = action
    if kind is F:
        return stage == 0 or Action(stage - 1, F, k) in done
    if kind is W:
        return Action(stage, I, k) in done
    if Action(stage, F, k) not in done:
        return False
    return (
        stage == num_stages - 1
        or Action(stage + 1, B, k) in done
        or Action(stage + 1, I, k) in done
    )


# STUB
# END
