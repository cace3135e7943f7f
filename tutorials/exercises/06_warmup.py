"""06 warm-up: the rows of 1F1B.

Lesson 06. 1F1B starts with forwards to fill the pipeline. Then each rank alternates
between one forward and one backward, and finishes with the remaining backwards. It
takes as long as GPipe, but rank r of p never holds more than min(p - r, m)
microbatches: no more than there are ranks from r to the end.

Write `rows(num_ranks, num_microbatches)`, which returns the list of actions of each
rank as text: `"0F3"` is stage 0, forward, microbatch 3, and `"0B3"` is the
corresponding backward. There is one stage on each rank.

How long is the warm-up? Many authors write p - r forwards. Followed by pairs of a
forward and a backward, that is one too many: nothing deadlocks and the time is the
same, but every rank holds one microbatch more than it needs.

Example: rows(2, 3) is
    [["0F0", "0F1", "0B0", "0F2", "0B1", "0B2"],
     ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"]]

Checked: these rows, that the schedule is legal, its memory by rank, its time, and fewer
microbatches than ranks.
"""


def rows(num_ranks: int, num_microbatches: int) -> list[list[str]]:
    """Return the actions of 1F1B by rank, in order."""
    # SOLUTION
    result = []
    for rank in range(num_ranks):
        warmup = min(num_ranks - 1 - rank, num_microbatches)
        row = [f"{rank}F{k}" for k in range(warmup)]
        for k in range(num_microbatches - warmup):
            row += [f"{rank}F{warmup + k}", f"{rank}B{k}"]
        row += [
            f"{rank}B{k}" for k in range(num_microbatches - warmup, num_microbatches)
        ]
        result.append(row)
    return result
    # STUB
    # raise NotImplementedError("warm-up, pairs, and the remaining backwards")
    # END
