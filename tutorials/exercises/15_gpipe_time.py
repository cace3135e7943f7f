"""15 GPipe's time: find the bug; no rank does two things at once.

Lesson 05. How long does a step of GPipe take? Somebody follows the microbatches through
the ranks: all forwards from the first rank to the last, then all backwards from the
last to the first, each microbatch after the one before it. For 4 ranks and 8
microbatches, with a forward of one unit and a backward of two, the code below returns
26. The simulator says 33, and real ranks agree: 26 would mean that GPipe overlaps
forwards and backwards, as many texts claim. It does not. In GPipe every backward of a
rank comes after all of its forwards, and a rank does one thing at a time.

Fix `gpipe_time(forward, backward, num_microbatches)`, which returns the time from the
first start to the last end. `forward[r]` and `backward[r]` are the times of rank r for
one microbatch; they may differ from rank to rank. Messages take no time. You may change
`pass_through` as well, or do without it.

Where does a rank in this code do two things at once? For two ranks and two
microbatches, write down when each action starts.

Example: gpipe_time([1, 1], [2, 2], 2) is 9: three units until the last forward has
ended, and six for the backwards.

Checked: 4 equal ranks, a single rank, unequal ranks against the simulator, the slowest
forward and the slowest backward on different ranks, and many microbatches.
"""

from collections.abc import Sequence


def gpipe_time(
    forward: Sequence[float], backward: Sequence[float], num_microbatches: int
) -> float:
    """Return the duration of a step, in the same unit as the given times."""
    ready = [0.0] * num_microbatches  # when the next rank can start on each microbatch
    # SOLUTION
    free = [0.0] * len(forward)  # when each rank finishes its current action
    pass_through(range(len(forward)), forward, ready, free)
    pass_through(reversed(range(len(backward))), backward, ready, free)
    # STUB
    # pass_through(forward, ready)
    # pass_through(reversed(backward), ready)
    # END
    return ready[-1]


# SOLUTION
def pass_through(ranks, times, ready, free):
    """Pass all microbatches through the ranks, in the given order."""
    for rank in ranks:
        for k in range(len(ready)):
            free[rank] = ready[k] = max(ready[k], free[rank]) + times[rank]


# STUB
# def pass_through(times, ready):
#     """Pass all microbatches through ranks that take these times."""
#     for time in times:
#         free = 0.0  # when this rank finishes its current action
#         for k in range(len(ready)):
#             free = ready[k] = max(ready[k], free) + time
# END
