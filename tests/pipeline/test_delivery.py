"""Losses on their way: over channels if a rank waits for them, behind others that are
under way if it does not.
"""

import random
import sys

import numpy as np
import pytest

from minipipe import Pipeline, nn, optim, spawn
from minipipe.comm.channel import ExchangeChannel
from minipipe.errors import MessageError
from tests.launch import mpirun, needs_mpi, slowly

WIDTH = 4


def made(group, **options):
    layers = [layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return Pipeline(
        nn.Sequential(*layers), group, loss=nn.MSELoss(), num_microbatches=4, **options
    )


def batch(number, rows=8):
    return (
        np.random.default_rng(number)
        .standard_normal((2, rows, WIDTH))
        .astype(np.float32)
    )


def losses(group, choose, **options):
    """Return the losses of some calls; ``choose`` says whether a step waits, and a
    broadcast is left under way.
    """
    pipeline, found, left = made(group, **options), [], []
    optimiser = optim.SGD(pipeline.parameters(), 0.1)
    for number in range(12):
        if number % 3 == 0:  # all ranks make the same calls, but need not wait alike
            left.append(
                (
                    number,
                    group.ibroadcast(
                        np.array(number) if group.rank == number % group.size else None,
                        number % group.size,
                    ),
                )
            )
        found.append(pipeline.step(*batch(number), wait=choose("waits")))
        optimiser.step()
        if number % 4 == 3:
            found.append(
                pipeline.evaluate(
                    *batch(number, rows=number), metrics={"largest": largest}
                ).metrics["largest"]
            )
        if left and choose("asks"):
            expected, request = left.pop()
            assert int(request.wait()) == expected
    return [float(loss) for loss in found[::-1]][::-1]


def largest(outputs, targets):
    return np.abs(outputs - targets).max()


def check_seed(group, seed, **options):
    draw = random.Random(f"{seed} {group.rank}")
    expected = losses(group, lambda question: True, **options)
    assert losses(group, lambda question: draw.random() < 0.5, **options) == expected
    return expected


@pytest.mark.parametrize("check", ["stop", slowly("off")])
@pytest.mark.parametrize("seed", [1, *map(slowly, range(2, 12))])
def test_ranks_that_wait_for_different_losses_get_the_same_ones(seed, check):
    found = spawn(lambda group: check_seed(group, seed, check_finite=check), 3)
    assert found[0] == found[1] == found[2]


@needs_mpi
@pytest.mark.slow  # in short: test_over_mpi.py
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_so_they_do_across_processes(num_ranks):
    done = mpirun(num_ranks, "-m", "tests.pipeline.test_delivery", 6)
    assert (done.code, done.out, done.err) == (0, "passed\n" * num_ranks, "")


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_ranks_exchange_numbers_of_their_own_length(num_ranks):
    def run(group):
        lengths = {rank: rank + 1 for rank in range(group.size) if rank != 1}
        channel = ExchangeChannel(group, lengths, tag=3)
        for step in range(3):
            found = channel.exchange(
                [10.0 * step + group.rank] * (group.rank + 1), step
            )
            assert found == {
                rank: [10.0 * step + rank] * length for rank, length in lengths.items()
            }

    spawn(run, num_ranks)


def test_numbers_of_a_call_that_failed_are_not_taken_for_those_of_the_next():
    """Rank 0 gives up in step 1, which rank 1 has sent already."""

    def run(group):
        channel = ExchangeChannel(group, {0: 1, 1: 1}, tag=3)
        channel.exchange([0.0], 0)
        if group.rank == 1:
            group.isend(np.ones(1), 0, 3, step=1)
            group.recv(0, 3)
        else:
            takes = channel._receiving[1].take
            channel._receiving[1].take = failing
            with pytest.raises(KeyboardInterrupt):
                channel.exchange([1.0], 1)
            channel._receiving[1].take = takes
        return channel.exchange([2.0], 2)

    assert spawn(run, 2) == [{0: [2.0], 1: [2.0]}] * 2


def failing(*given):
    raise KeyboardInterrupt


def test_another_number_of_losses_is_an_error_and_no_wrong_loss():
    def run(group):
        channel = ExchangeChannel(group, {0: 4 if group.rank else 3}, tag=3)
        channel.exchange([0.0] * 3, 1)

    with pytest.raises(
        MessageError,
        match=r"Rank 0 sent float64 \(3,\) to rank 1, which expects float64 \(4,\)",
    ):
        spawn(run, 2)


if __name__ == "__main__":
    from minipipe import init_process_group

    with init_process_group(timeout=20) as group:
        for seed in range(int(sys.argv[1])):
            check_seed(group, seed)
    sys.stdout.write("passed\n")
