"""03 all-reduce: every rank gets the sum of all, by messages to one neighbour.

Lesson 03. Ranks that train copies of one model add up their gradients: all-reduce. The ranks stand in a ring, and each
sends only to the next one, rank r to rank r + 1, the last to rank 0. After p - 1 rounds in which every rank passes on
what it just received, everybody has seen everything.

Write `all_reduce(group, array)`. It returns the sum of the arrays of all ranks, on every rank. `group.rank` and
`group.size` say who and how many; `group.send(array, destination)` and `group.recv(source)`, which returns an array,
are all you need.

Three things to mind. Any send may block until its receive is reached, as large messages do: if all ranks send first,
all wait for ever. Floating-point sums depend on their order: add in the order rank 0, rank 1, …, on every rank, so that
all have the same bits. And the array that was given stays as it was.

Example: ranks 0, 1 and 2 give [1.], [10.] and [100.]; each of them gets [111.].

Checked: sums, bits, one rank alone, other shapes, that nobody waits for ever although every send blocks, that messages
go to the next rank only, that the given array is unchanged.
"""

import numpy as np


def all_reduce(group, array: np.ndarray) -> np.ndarray:
    """Return the sum of the arrays of all ranks, on every rank."""
    # SOLUTION
    rank, size = group.rank, group.size
    arrays = {rank: array}
    for distance in range(1, size):
        newest, wanted = (rank - distance + 1) % size, (rank - distance) % size
        if rank % 2 == 0:  # at least one rank of any ring receives first, so somebody can always go on
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
    # raise NotImplementedError("pass arrays around the ring, then add them in the order of ranks")
    # END
