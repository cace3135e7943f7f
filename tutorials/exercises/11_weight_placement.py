"""11 weight placement: fill idle time with work that is not urgent.

Lesson 09. A backward has two halves. I computes the gradient that the previous stage
waits for. W computes the gradient of the weights, which nothing waits for, so W can run
while the rank would be idle. That is the whole idea of zero-bubble schedules. The lazy
way puts each W right after its I. Then other ranks wait for the W, and with 4 ranks and
8 microbatches a step takes 30 units where 27 would do.

But a microbatch is held until its W, so memory limits how long W can be postponed: from
F to W, a rank may hold at most `memory_limit` (stage, microbatch) pairs.

Write `place_weights(rows, memory_limit)`. `rows[rank]` contains the F and I of a rank
in the order of 1F1B; each rank has one stage, with the same number. F, I and W take one
unit of time each, and messages take none. Return the rows with every W inserted. The
order of F and I must not change. The W of each stage must be in ascending order, so
that gradients add as in one process. No rank may hold more than the limit, and the step
may take no more than 3 m + p - 1 units.

One way is to simulate time unit by unit. A rank whose next action is ready and fits
into memory runs it. Otherwise it runs the oldest W that is due, or stays idle. F
depends on the F of the previous stage; I depends on its own F and on the I of the next
stage. A dependency must have completed before the current unit.

Example: with 2 ranks, 2 microbatches and memory for 2
    rank 0: 0F0 0F1 0I0 0I1           0F0 0F1 0I0 0W0 0I1 0W1
    rank 1: 1F0 1I0 1F1 1I1           1F0 1I0 1F1 1I1 1W0 1W1

Checked: that the schedule is legal, its order, memory and time, for rows of 1F1B and of
others; limits of p and more.
"""

from collections.abc import Sequence

from minipipe import Action, ActionKind

F, I, W = ActionKind.FORWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT


def place_weights(
    rows: Sequence[Sequence[Action]], memory_limit: int
) -> list[list[Action]]:
    """Return the rows with the W of every I added."""
    # SOLUTION
    num_ranks = len(rows)
    left = [list(row) for row in rows]
    # the W of each completed I, oldest first
    due: list[list[Action]] = [[] for _ in rows]
    held = [0] * num_ranks
    placed: list[list[Action]] = [[] for _ in rows]
    ended: set[Action] = set()
    while any(left) or any(due):
        running = []
        for rank in range(num_ranks):
            action = left[rank][0] if left[rank] else None
            is_full = held[rank] == memory_limit
            is_ready = action is not None and can_run(action, ended, num_ranks)
            if is_ready and not (action.kind is F and is_full):
                left[rank].pop(0)
                if action.kind is F:
                    held[rank] += 1
                else:
                    due[rank].append(action._replace(kind=W))
            elif due[rank]:
                action = due[rank].pop(0)
                held[rank] -= 1
            else:
                continue
            running.append(action)
            placed[rank].append(action)
        ended.update(running)
    return placed
    # STUB
    # raise NotImplementedError(
    #     "simulate time; if a rank would be idle, or memory is full, run a W that is "
    #     "due"
    # )
    # END


# SOLUTION
def can_run(action, ended, num_ranks):
    """Tell whether the dependencies of an F or I have completed."""
    stage, kind, k = action
    if kind is F:
        return stage == 0 or Action(stage - 1, F, k) in ended
    return Action(stage, F, k) in ended and (
        stage == num_ranks - 1 or Action(stage + 1, I, k) in ended
    )


# STUB
# END
