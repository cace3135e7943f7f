"""05 bubble: how long ranks are idle, and how many microbatches help.

Lesson 05. With p ranks and m microbatches, every rank of GPipe works for m forwards and
m backwards. It is idle for the time of p - 1 forwards and p - 1 backwards, at the
start, in the middle or at the end. The same holds for 1F1B. The idle time is the
bubble.

Write two functions. `bubble_fraction(num_ranks, num_microbatches)` is the idle fraction
of total rank time. `microbatches_for(num_ranks, bubble)` is the smallest number of
microbatches, at least 1, whose bubble is at most `bubble`.

Beware: you can find (p - 1)/(2(m - 1) + p) on the web as the bubble of 1F1B. That is
wrong; 1F1B saves memory, not time.

Example: 4 ranks and 8 microbatches have a bubble of 3/11.
For a bubble of at most 20 %, 4 ranks need 12 microbatches.

Checked: known values, the simulator's 1F1B and GPipe, one rank, that one microbatch
fewer would be too few, large numbers, and bubbles that are met exactly, or nearly so.
"""

# SOLUTION
import math

# STUB
# END


def bubble_fraction(num_ranks: int, num_microbatches: int) -> float:
    """Return the idle fraction of total rank time, for GPipe and for 1F1B."""
    # SOLUTION
    return (num_ranks - 1) / (num_microbatches + num_ranks - 1)
    # STUB
    # raise NotImplementedError("idle time divided by total time")
    # END


def microbatches_for(num_ranks: int, bubble: float) -> int:
    """Return the smallest number of microbatches whose bubble is at most ``bubble``, a
    number between 0 and 1.
    """
    # SOLUTION
    enough = max(1, math.floor((num_ranks - 1) * (1 - bubble) / bubble) - 1)
    # the quotient is rounded, so compare bubbles to finish
    while bubble_fraction(num_ranks, enough) > bubble:
        enough += 1
    return enough
    # STUB
    # raise NotImplementedError("the formula, solved for m and rounded up")
    # END
