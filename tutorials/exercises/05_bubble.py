"""05 bubble: how much of the time ranks are idle, and how many microbatches help.

Lesson 05. With p ranks and m microbatches the last rank begins p - 1 steps late and the first one ends as much early:
the bubble. In GPipe, and just so in 1F1B, each rank works for m steps of m + p - 1.

Write two functions. `bubble_fraction(num_ranks, num_microbatches)` is idle time over all time, of all ranks together.
`microbatches_for(num_ranks, bubble)` is the least number of microbatches, at least 1, for which the bubble is at most
as large as wanted.

Beware: on the web stands (p - 1)/(2(m - 1) + p) as 1F1B's bubble. It is not; 1F1B saves memory, not time.

Example: 4 ranks and 8 microbatches give a bubble of 3/11; for at most 20 % of it 4 ranks need 12 microbatches.

Checked: known values, the simulator's 1F1B and GPipe, one rank, that one microbatch fewer would be too few, large
numbers, wanted bubbles that are met exactly, or nearly so.
"""

# SOLUTION
import math

# STUB
# END


def bubble_fraction(num_ranks: int, num_microbatches: int) -> float:
    """Return idle time over all time, of all ranks together, for GPipe and for 1F1B."""
    # SOLUTION
    return (num_ranks - 1) / (num_microbatches + num_ranks - 1)
    # STUB
    # raise NotImplementedError("idle time over all time")
    # END


def microbatches_for(num_ranks: int, bubble: float) -> int:
    """Return the least number of microbatches whose bubble is at most ``bubble``, which lies between 0 and 1."""
    # SOLUTION
    enough = max(1, math.floor((num_ranks - 1) * (1 - bubble) / bubble) - 1)
    while bubble_fraction(num_ranks, enough) > bubble:  # the quotient is rounded, so the last step is made by asking
        enough += 1
    return enough
    # STUB
    # raise NotImplementedError("the formula, solved for m and rounded up")
    # END
