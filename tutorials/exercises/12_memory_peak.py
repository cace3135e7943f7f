"""12 memory peak: the most that a rank holds.

Lesson 06. From its forward to its backward, a microbatch holds the activations of a
stage: one (stage, microbatch) pair. If the backward is split, I produces the gradient
for the previous stage, but the pair is held until W. The largest number of pairs that a
rank holds at once decides whether a model fits.

Write two functions. `peaks(schedule)` returns the largest number of pairs held at once
on each rank, for any schedule. `memory_ratio(num_ranks, num_microbatches, rank)` is the
peak of 1F1B on a rank divided by the peak of GPipe.

Beware: some lecture notes give this ratio as (p + m)/(p m). For 4 ranks and 8
microbatches that is 0.375. Count, and you get 1/2 on rank 0, and less on every rank
after it.

Example: GPipe with 4 ranks and 8 microbatches holds (8, 8, 8, 8), and 1F1B holds (4, 3,
2, 1).

Checked: the named schedules, with I and W, with several stages on a rank; the ratio by
rank; m < p.
"""

from minipipe import ActionKind, Schedule

F, B, W = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT


def peaks(schedule: Schedule) -> tuple[int, ...]:
    """Return the largest number of (stage, microbatch) pairs held at once, by rank."""
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
    # raise NotImplementedError("count up at F, down at B or W, and keep the maximum")
    # END


def memory_ratio(num_ranks: int, num_microbatches: int, rank: int) -> float:
    """Return the peak of 1F1B on a rank divided by the peak of GPipe."""
    # SOLUTION
    return min(num_ranks - rank, num_microbatches) / num_microbatches
    # STUB
    # raise NotImplementedError(
    #     "the peak of 1F1B on this rank divided by the peak of GPipe"
    # )
    # END
