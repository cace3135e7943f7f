"""06 warm-up: the rows of 1F1B.

Lesson 06. 1F1B begins with forwards to fill the pipeline, then each rank does one forward and one backward in turn, and
at the end the backwards that are left. It takes as long as GPipe, but a rank never holds more microbatches than there
are ranks from it to the end: min(p - r, m) on rank r of p.

Write `rows(num_ranks, num_microbatches)`: for each rank the list of its actions, as text: `"0F3"` is stage 0, forward,
microbatch 3, and `"0B3"` its backward. There is one stage on each rank.

How long is the warm-up? Many write p - r forwards. With pairs of a forward and a backward after it, that is one too
many: nothing deadlocks, the time is the same, and every rank holds one microbatch more than it needs.

Example: rows(2, 3) is
    [["0F0", "0F1", "0B0", "0F2", "0B1", "0B2"],
     ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"]]

Checked: these rows, that the schedule is legal, its memory by rank, its time, fewer microbatches than ranks.
"""


def rows(num_ranks: int, num_microbatches: int) -> list[list[str]]:
    """Return by rank the actions of 1F1B, in order."""
    # SOLUTION
    result = []
    for rank in range(num_ranks):
        warmup = min(num_ranks - 1 - rank, num_microbatches)
        row = [f"{rank}F{k}" for k in range(warmup)]
        for k in range(num_microbatches - warmup):
            row += [f"{rank}F{warmup + k}", f"{rank}B{k}"]
        row += [f"{rank}B{k}" for k in range(num_microbatches - warmup, num_microbatches)]
        result.append(row)
    return result
    # STUB
    # raise NotImplementedError("warm-up, pairs, and what is left")
    # END
