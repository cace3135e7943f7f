"""10 interleaved order: find the bug; two chunks on each rank, and slower than one.

Lesson 08. With several chunks of layers on each rank (chunk j of rank r is stage j p +
r), the pipeline fills in smaller increments, so the bubble shrinks. Somebody
implemented it like this: each rank runs all its chunks of microbatch 0, then all its
chunks of microbatch 1, and so on; then all backwards in the same way. That is legal.
But for 4 ranks, 8 microbatches and 2 chunks it takes 86 units where 38 would do (with
one unit each for the forward and the backward of a chunk). Chunk 1 of microbatch 0
cannot start before the other ranks have run their chunk 0. Meanwhile the rank waits,
although it could run chunk 0 of the next microbatches.

Fix `order(num_ranks, num_microbatches, num_chunks)`: the sequence of (chunk,
microbatch) in which every rank runs its forwards. `rows`, which is correct, turns it
into a schedule; the backwards follow the same sequence with the chunks reversed.

While a microbatch is on the other p - 1 ranks, a rank has time for p - 1 other
microbatches.

Example: for 2 ranks, 4 microbatches and 2 chunks: chunk 0 of microbatches 0 and 1,
chunk 1 of both, then the same for microbatches 2 and 3.

Checked: that the schedules are legal, and that they take no more than (m v + p - 1)(tF
+ tB) for p ranks, m microbatches and v chunks, if p divides m, where tF and tB are the
times of one chunk. For m < p, where each chunk waits for the trip around the ranks: no
more than ((v - 1) p + m + p - 1)(tF + tB).
"""


def order(
    num_ranks: int, num_microbatches: int, num_chunks: int
) -> list[tuple[int, int]]:
    """Return the (chunk, microbatch) pairs of a rank's forwards, in order."""
    # SOLUTION
    return [
        (chunk, k)
        for first in range(0, num_microbatches, num_ranks)
        for chunk in range(num_chunks)
        for k in range(first, min(first + num_ranks, num_microbatches))
    ]
    # STUB
    # microbatches = range(num_microbatches)
    # return [(chunk, k) for k in microbatches for chunk in range(num_chunks)]
    # END


def rows(num_ranks: int, num_microbatches: int, num_chunks: int) -> list[list[str]]:
    """Return all forwards, then all backwards, of each rank."""
    pairs = list(order(num_ranks, num_microbatches, num_chunks))
    result = []
    for rank in range(num_ranks):
        forwards = [f"{chunk * num_ranks + rank}F{k}" for chunk, k in pairs]
        backwards = [
            f"{(num_chunks - 1 - chunk) * num_ranks + rank}B{k}" for chunk, k in pairs
        ]
        result.append(forwards + backwards)
    return result
