"""An all-reduce over channels has the bits and the messages of one without."""

import sys

import numpy as np
import pytest
from minipipe import init_process_group, spawn
from minipipe.errors import MessageError
from minipipe.parallel.pairwise import sum_in_pairs
from minipipe.parallel.reduction import AllReduce, Channel, equal_parts, finish_all
from minipipe.parallel.repeated import (
    MOST_BYTES,
    RepeatedAllReduce,
    bytes_of_buffers,
    is_small,
)
from tests.launch import mpirun, needs_mpi, slowly

SIZES, STEPS, TAG = (3, 1, 0, 8), 4, 6
RANKS = {2: (0, 1), 3: (2, 0, 1), 5: (0, 1, 2, 3, 4)}  # in the order of the sum


def contribution(rank, step, missing=()):
    """Return arrays of a rank, with zeros of both signs; None for some of them."""
    random = np.random.default_rng((rank, step))
    arrays = [random.standard_normal(size).astype(np.float32) for size in SIZES]
    arrays[3][:4] = -0.0
    return [None if i in missing else each for i, each in enumerate(arrays)]


def sums(group, repeating, missing=()):
    """Return the sums of some steps; ranks that do not repeat lack some arrays."""
    ranks = RANKS[group.size]
    own = missing if group.rank not in repeating else ()
    reduction = RepeatedAllReduce(group, TAG, ranks, SIZES, np.float32, "{} of all")
    found = []
    for step in range(STEPS):
        arrays = contribution(group.rank, step, own)
        if group.rank in repeating:
            reduction.begin(arrays, step)
            reductions = [reduction]
        else:
            parts = equal_parts(SIZES, group.size)
            channel = Channel(group, TAG, step)
            reductions = [AllReduce(channel, ranks, arrays, parts, "{} of all")]
        reductions[0].advance()
        finish_all(group, reductions)
        if group.rank not in repeating:
            arrays = reductions[0].arrays
        found.append([each.tobytes() for each in arrays])
    return found


def expected(num_ranks, repeating, missing=()):
    found = []
    for step in range(STEPS):
        terms = [
            contribution(rank, step, missing if rank not in repeating else ())
            for rank in RANKS[num_ranks]
        ]
        found.append([sum_in_pairs(each).tobytes() for each in zip(*terms)])
    return [found] * num_ranks


MIXTURES = [
    *((2, {0, 1}, ()), (2, {0}, ()), (2, {1}, (1, 3))),
    *((3, {0, 1, 2}, ()), (3, {2}, (0,)), (5, {0, 1, 2, 3, 4}, ()), (5, {1, 4}, (3,))),
]


@pytest.mark.parametrize(("num_ranks", "repeating", "missing"), MIXTURES)
def test_members_with_and_without_channels_get_the_same_bits(
    num_ranks, repeating, missing
):
    found = spawn(lambda group: sums(group, repeating, missing), num_ranks)
    assert found == expected(num_ranks, repeating, missing)


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize("num_ranks", [2, *map(slowly, (3, 5))])
def test_so_they_do_over_mpi(num_ranks):
    job = mpirun(num_ranks, "-m", "tests.parallel.test_repeated")
    assert job.code == 0 and job.out.count("the same bits") == num_ranks, job


def test_members_of_two_steps_disagree():
    def run(group):
        reduction = RepeatedAllReduce(group, 0, (0, 1), (4,), np.float32, "{}")
        reduction.begin([np.ones(4, np.float32)], step=group.rank)
        finish_all(group, [reduction])

    with pytest.raises(MessageError) as error:
        spawn(run, 2, timeout=5)
    assert error.value.code == "disagreement"


def test_a_sum_is_small_if_its_buffers_are_and_each_member_has_a_part():
    assert is_small((MOST_BYTES // 4,), 4, n=2)
    assert not is_small((MOST_BYTES // 4,), 8, n=2)
    assert not is_small((MOST_BYTES // 4, 1), 4, n=2)
    assert is_small((1, 2), 4, n=3) and not is_small((1, 1), 4, n=3)


@pytest.mark.parametrize("num_ranks", RANKS)
def test_the_buffers_have_the_predicted_bytes(num_ranks):
    def run(group):
        given = group, TAG, RANKS[num_ranks], SIZES, np.float32, "{}"
        reduction = RepeatedAllReduce(*given)
        receives = [*reduction._in.values(), *reduction._sums_in.values()]
        channels = [*reduction.sends, *receives]
        place = RANKS[num_ranks].index(group.rank)
        own = equal_parts(SIZES, num_ranks)[place]
        row = 4 * sum(each.stop - each.start for _, each in own)
        found = row + sum(channel.array.nbytes for channel in channels)
        return found == bytes_of_buffers(SIZES, 4, num_ranks, place)

    assert all(spawn(run, num_ranks))


if __name__ == "__main__":
    with init_process_group() as world:
        for size, members, lacking in MIXTURES:
            if size == world.size:
                whole = expected(size, members, lacking)[0]
                assert sums(world, members, lacking) == whole
        sys.stdout.write(f"rank {world.rank}: the same bits\n")
