"""Steps that need not be over on every rank before the next one begins: the same numbers, in the same order."""

import sys

import pytest

from minipipe import Pipeline, nn, optim, spawn
from minipipe.comm import OneRankGroup
from minipipe.errors import MessageError
from minipipe.testing import same_bits
from tests.launch import mpirun, needs_mpi
from tests.strategies import NAMES, batch, build

WIDTH = 6


def model():
    layers = [layer for _ in range(7) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.2))]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 2))


def train(group, name, wait):
    pipeline = Pipeline(model(), group, loss=nn.MSELoss(), schedule=build(name, group.size, 4))
    optimiser = optim.SGD(pipeline.parameters(), 0.01, momentum=0.5)
    losses = []
    for number in range(5):
        losses.append(pipeline.step(*batch(8, WIDTH, seed=number), wait=wait))
        optimiser.step()
        if number == 2:  # another call between them, and a batch of another size
            losses.append(pipeline.evaluate(*batch(3, WIDTH)))
    return [float(loss) for loss in losses[::-1]], pipeline.state_dict()


def check_alike(group, name):
    (losses, state), (expected, expected_state) = train(group, name, wait=False), train(group, name, wait=True)
    assert losses == expected
    assert all(same_bits(state[key], expected_state[key]) for key in expected_state)


@pytest.mark.parametrize("name", NAMES)
def test_without_waiting_every_schedule_trains_to_the_same_bits(name):
    spawn(lambda group: check_alike(group, name), 3)


@needs_mpi
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_so_it_does_across_processes(num_ranks):
    done = mpirun(num_ranks, __file__)
    assert done.code == 0, done.err
    assert done.out.split() == NAMES


def test_a_loss_says_that_it_is_pending_until_somebody_asks_for_it():
    pipeline = Pipeline(model(), OneRankGroup(), loss=nn.MSELoss(), num_microbatches=4)
    first, second = (pipeline.step(*batch(8, WIDTH), wait=False) for _ in range(2))
    assert repr(second) == str(second) == f"{second}" == "<loss of step 2, pending>"
    assert float(second) == second.wait() and repr(second) == repr(float(second))
    assert f"{first:.3f}" == f"{float(first):.3f}" and repr(first) == repr(float(first))


def test_the_losses_of_one_pipeline_are_never_those_of_another():
    """The story: a loss that nobody had asked for came instead of the first loss of the next pipeline."""

    def run(group):
        abandoned = Pipeline(model(), group, loss=nn.MSELoss(), num_microbatches=2, seed=1)
        for _ in range(3):
            abandoned.step(*batch(8, WIDTH), wait=False)
        pipeline = Pipeline(model(), group, loss=nn.MSELoss(), num_microbatches=2, seed=2)
        return pipeline.step(*batch(8, WIDTH), wait=False).wait()

    losses = spawn(run, 3)
    alone = Pipeline(model(), OneRankGroup(), loss=nn.MSELoss(), num_microbatches=2, seed=2)
    assert losses == [alone.step(*batch(8, WIDTH))] * 3


def test_a_rank_that_waits_for_the_loss_of_one_that_makes_no_step_is_told():
    def run(group):
        pipeline = Pipeline(model(), group, loss=nn.MSELoss(), num_microbatches=2)
        pipeline.step(*batch(8, WIDTH), wait=False)
        if group.rank == 0:
            pipeline.step(*batch(8, WIDTH), wait=False)

    with pytest.raises(MessageError) as caught:
        spawn(run, 2)
    assert caught.value.code in ("deadlock", "timeout")


def main():
    from minipipe import init_process_group

    with init_process_group(timeout=20) as group:
        for name in NAMES:
            check_alike(group, name)
            if group.rank == 0:
                print(name, flush=True)


if __name__ == "__main__":
    sys.exit(main())
