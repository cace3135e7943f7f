"""12 memory peak: what a rank holds at most.

Lesson 06. From its forward until its backward, a microbatch holds a stage's activations: one (stage, microbatch) pair.
Where the backward is split, I gives the gradient for the stage before, but the pair is held on until W. The most pairs
that a rank holds at once decide whether a model fits.

Write two functions. `peaks(schedule)` returns by rank the most pairs held at once, for any schedule, after any of its
actions. `memory_ratio(num_ranks, num_microbatches, rank)` is what 1F1B holds on a rank over what GPipe holds there.

Beware: (p + m)/(p m) stands in lecture notes as that ratio. For 4 ranks and 8 microbatches it says 0.375; count, and
you find 1/2 on rank 0, and less on every rank after it.

Example: GPipe with 4 ranks and 8 microbatches holds (8, 8, 8, 8), 1F1B (4, 3, 2, 1).

Checked: the named schedules, with I and W, with several stages on a rank, the ratio by rank, m < p.
"""

from minipipe import ActionKind, Schedule

F, B, W = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT


def peaks(schedule: Schedule) -> tuple[int, ...]:
    """Return by rank the most (stage, microbatch) pairs held at once."""
    # SOLUTION
    result = []
    for row in schedule.actions:
        held = peak = 0
        for action in row:
            if action.kind is F:
                held += 1
            elif action.kind in (B, W):
                held -= 1
            peak = max(peak, held)
        result.append(peak)
    return tuple(result)
    # STUB
    # raise NotImplementedError("count up at F, down at B or W, and note the largest")
    # END


def memory_ratio(num_ranks: int, num_microbatches: int, rank: int) -> float:
    """Return what 1F1B holds at most on a rank over what GPipe holds there."""
    # SOLUTION
    return min(num_ranks - rank, num_microbatches) / num_microbatches
    # STUB
    # raise NotImplementedError("1F1B's peak on this rank over GPipe's")
    # END
