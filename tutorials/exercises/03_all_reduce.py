"""03 all-reduce: the sum over all ranks, with messages to one neighbour only.

Lesson 03. Ranks that train copies of the same model have to add up their gradients: an
all-reduce. The ranks form a ring, and each sends only to the next one: rank r to rank r
+ 1, and the last rank to rank 0. In each round every rank passes on the array that it
has just received. After p - 1 rounds every rank has seen every array.

Write `all_reduce(group, array)`. It returns the sum of the arrays of all ranks, on
every rank. `group.rank` is this rank and `group.size` the number of ranks. Beyond that
you need only `group.send(array, destination)` and `group.recv(source)`, which returns
an array.

Note three things. Any send may block until its receive is reached, as happens with
large messages; if all ranks send first, they all wait for ever. Floating-point sums
depend on the order of the additions, so add in the order rank 0, rank 1, … on every
rank; then all have the same bits. Do not modify the argument.

Example: ranks 0, 1 and 2 contribute [1.], [10.] and [100.]; each of them gets [111.].

Checked: sums, bits, a single rank, other shapes, no deadlock although every send
blocks, messages to the next rank only, and that the argument is not modified.
"""

import numpy as np


def all_reduce(group, array: np.ndarray) -> np.ndarray:
    """Return the sum of the arrays of all ranks, on every rank."""
    # SOLUTION
    rank, size = group.rank, group.size
    arrays = {rank: array}
    for distance in range(1, size):
        newest, wanted = (rank - distance + 1) % size, (rank - distance) % size
        # in any ring at least one rank receives first, so the ring always makes
        # progress
        if rank % 2 == 0:
            group.send(arrays[newest], (rank + 1) % size)
            arrays[wanted] = group.recv((rank - 1) % size)
        else:
            arrays[wanted] = group.recv((rank - 1) % size)
            group.send(arrays[newest], (rank + 1) % size)
    total = arrays[0].copy()
    for other in range(1, size):
        total += arrays[other]
    return total
    # STUB
    # raise NotImplementedError(
    #     "pass arrays around the ring, then add them in rank order"
    # )
    # END
