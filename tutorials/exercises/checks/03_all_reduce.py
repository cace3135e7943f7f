"""Tests of 03_all_reduce, on thread ranks."""

import numpy as np

from minipipe import spawn
from minipipe.coursework import (
    expect_bits,
    expect_equal,
    expect_that,
    expect_type,
    remote,
)
from minipipe.errors import MessageError


class Ring:
    """The interface of a rank: its number, the size of the group, send and recv.
    Records the destinations of sends.

    With blocking sends, each send waits for an acknowledgement that the receiver sends
    from its recv.
    """

    def __init__(self, group, sends_block):
        self.rank, self.size = group.rank, group.size
        self.destinations = []
        self._group, self._sends_block = group, sends_block

    def send(self, array, destination):
        self.destinations.append(destination)
        self._group.send(array, destination, tag=0)
        if self._sends_block:
            self._group.irecv(
                destination, tag=1, what="its send to be received: the acknowledgement"
            ).wait()

    def recv(self, source):
        array = self._group.recv(source, tag=0)
        if self._sends_block:
            self._group.send(np.zeros(0), source, tag=1)
        return array


def all_reduced(task, given, sends_block=False):
    """Return what each rank of all_reduce has found: as many as there are ranks."""
    results = reduced(task, given, sends_block)
    expect_equal(len(results), len(given), "number of ranks with a result")
    return results


@remote
def reduced(task, given, sends_block):
    """Run all_reduce with one rank per array.

    Return, by rank, the result, the destinations of its sends, its array afterwards,
    and whether the result is that.
    """

    def on_a_rank(group):
        ring, array = Ring(group, sends_block), given[group.rank]
        result = task.all_reduce(ring, array)
        expect_type(result, np.ndarray, f"all_reduce on rank {group.rank}")
        return result, ring.destinations, array, np.shares_memory(result, array)

    try:
        return spawn(on_a_rank, len(given), timeout=20)
    except MessageError as error:
        kind = "blocking" if sends_block else "buffered"
        expect_that(
            False,
            f"{len(given)} ranks with {kind} sends",
            "every rank to finish",
            f"a deadlock: {error}",
        )


def random_arrays(seed, num_ranks, shape):
    """Return numbers of very different magnitudes, so that every order of addition
    gives different bits.
    """
    generator = np.random.default_rng(seed)
    return [
        generator.standard_normal(shape) * 10.0 ** generator.integers(-8, 8)
        for _ in range(num_ranks)
    ]


def check_bits(task, seed, num_ranks, shape):
    given = random_arrays(seed, num_ranks, shape)
    expected = given[0].copy()
    for array in given[1:]:
        expected = expected + array
    for rank, (result, *_) in enumerate(all_reduced(task, given)):
        expect_bits(
            result, expected, f"all_reduce of {num_ranks} ranks, on rank {rank}"
        )


def check_no_deadlock(task, num_ranks):
    results = all_reduced(
        task, [np.full(2, 10.0**rank) for rank in range(num_ranks)], True
    )
    for rank, (result, *_) in enumerate(results):
        expected = [float("1" * num_ranks)] * 2
        expect_equal(
            result.tolist(),
            expected,
            f"all_reduce of {num_ranks} ranks, on rank {rank}",
        )


def test_three_ranks_get_the_sum(task):
    """Ranks 0, 1 and 2 contribute 1, 10 and 100; each gets 111."""
    for rank, (result, *_) in enumerate(
        all_reduced(task, [np.array([10.0**rank]) for rank in range(3)])
    ):
        expect_equal(result.tolist(), [111.0], f"all_reduce on rank {rank}")


def test_all_ranks_have_the_bits_of_rank_order(task):
    """Every rank adds in the order rank 0, rank 1, …, whatever the order of arrival.

    Hint: store each array under the number of the rank it came from originally, and add
    at the end.
    """
    check_bits(task, seed=0, num_ranks=4, shape=(5,))


def test_nobody_waits_for_ever_although_sends_block(task):
    """Some rank must receive while its neighbour sends.

    Hint: let every other rank receive first.
    """
    check_no_deadlock(task, 4)


# HIDDEN
def test_an_odd_ring_does_not_wait_either(task):
    """In a ring of 3 or 5 ranks, two neighbours do the same thing somewhere, and the
    ring still makes progress.
    """
    for num_ranks in (2, 3, 5):
        check_no_deadlock(task, num_ranks)


def test_other_shapes_and_numbers_of_ranks(task):
    """Two ranks, five ranks, one rank alone; matrices as well as vectors."""
    for seed, (num_ranks, shape) in enumerate(
        [(2, (3, 2)), (5, (7,)), (3, (2, 2, 2)), (1, (4,))], start=1
    ):
        check_bits(task, seed, num_ranks, shape)


def test_the_given_array_stays_as_it_was(task):
    """The caller may still need it, and the result does not share memory with it.

    Hint: `total = array` is another name for the same array, and `total += …` modifies
    it.
    """
    for num_ranks in (1, 3):
        given = random_arrays(9, num_ranks, (4,))
        for rank, (_, _, afterwards, is_shared) in enumerate(all_reduced(task, given)):
            expect_bits(
                afterwards, given[rank], f"the array that rank {rank} gave, afterwards"
            )
            expect_that(
                not is_shared,
                f"the result on rank {rank}",
                "an array of its own",
                "the given one",
            )


def test_messages_go_to_the_next_rank_only(task):
    """In a ring no rank collects everything: rank r sends to rank r + 1 and to no
    other.

    Hint: an array for a more distant rank is passed on by the ranks in between.
    """
    for rank, (_, destinations, *_) in enumerate(
        all_reduced(task, random_arrays(8, 4, (8,)))
    ):
        expect_equal(
            sorted(set(destinations)),
            [(rank + 1) % 4],
            f"ranks that rank {rank} of 4 sends to",
        )


WRONG_ANSWERS = [
    (
        (
            "all send, then all receive: works with small messages, and hangs with "
            "large ones"
        ),
        "if rank % 2 == 0:",
        "if True:",
    ),
    (
        "arrays are added as they arrive, so each rank adds in a different order",
        (
            "    total = arrays[0].copy()\n    for other in range(1, size):\n        "
            "total += arrays[other]"
        ),
        (
            "    total = arrays.pop(rank).copy()\n    for other in arrays:\n        "
            "total += arrays[other]"
        ),
    ),
    (
        "the sum is accumulated in the first array, which on rank 0 is the caller's",
        "total = arrays[0].copy()",
        "total = arrays[0]",
    ),
    (
        "the running sum is passed on, so arrays are counted several times",
        "arrays[newest], (rank + 1) % size",
        "sum(arrays.values()), (rank + 1) % size",
    ),
    (
        (
            "rank 0 gathers and broadcasts: correct sums, but not a ring, and all "
            "the work on one rank"
        ),
        "    rank, size = group.rank, group.size\n",
        "    rank, size = group.rank, group.size\n"
        "    if rank > 0:\n"
        "        group.send(array, 0)\n"
        "        return group.recv(0)\n"
        "    total = array.copy()\n"
        "    for other in range(1, size):\n"
        "        total += group.recv(other)\n"
        "    for other in range(1, size):\n"
        "        group.send(total, other)\n"
        "    return total\n",
    ),
    (
        (
            "one round too few: there are p - 1 other ranks, and the range stops one "
            "short of its end"
        ),
        "for distance in range(1, size):",
        "for distance in range(1, size - 1):",
    ),
]
