"""15 GPipe's time: find the bug; nobody does two things at once.

Lesson 05. How long does a step of GPipe take? Somebody follows the microbatches through the ranks: all forwards from
the first rank to the last, then all backwards from the last to the first, each microbatch after the one before it. For
4 ranks and 8 microbatches, a forward of one unit and a backward of two, the code below says 26. The simulator says 33,
and real ranks agree with that: 26 would mean that GPipe overlaps forwards and backwards, as many texts say. It does
not. In GPipe every backward of a rank follows all of its forwards, and a rank does one thing at a time.

Mend `gpipe_time(forward, backward, num_microbatches)`, which returns the time from the first start to the last end.
`forward[r]` and `backward[r]` are the times of rank r for one microbatch; they may differ from rank to rank. Messages
take no time. You may change `pass_through`, too, or do without it.

Where does a rank of this code do two things at once? Write down for two ranks and two microbatches what starts when.

Example: gpipe_time([1, 1], [2, 2], 2) is 9: three units until the last forward has ended, and six for the backwards.

Checked: 4 equal ranks, one rank alone, ranks that differ, against the simulator; where the slowest forward and the
slowest backward stand on different ranks; many microbatches.
"""

from collections.abc import Sequence


def gpipe_time(forward: Sequence[float], backward: Sequence[float], num_microbatches: int) -> float:
    """Return how long a step takes, in the unit of the times given."""
    ready = [0.0] * num_microbatches  # when the next rank can begin with a microbatch
    # SOLUTION
    free = [0.0] * len(forward)  # when a rank has done what it began
    pass_through(range(len(forward)), forward, ready, free)
    pass_through(reversed(range(len(backward))), backward, ready, free)
    # STUB
    # pass_through(forward, ready)
    # pass_through(reversed(backward), ready)
    # END
    return ready[-1]


# SOLUTION
def pass_through(ranks, times, ready, free):
    """Take all microbatches through the ranks, in the order given."""
    for rank in ranks:
        for k in range(len(ready)):
            free[rank] = ready[k] = max(ready[k], free[rank]) + times[rank]


# STUB
# def pass_through(times, ready):
#     """Take all microbatches through ranks that take these times."""
#     for time in times:
#         free = 0.0  # when this rank has done what it began
#         for k in range(len(ready)):
#             free = ready[k] = max(ready[k], free) + time
# END
