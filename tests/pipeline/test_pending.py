"""Steps that need not be over on every rank before the next one begins: the same
numbers, in the same order.
"""

import math
import pickle
import sys

import numpy as np
import pytest

from minipipe import Pipeline, checkpoint, nn, optim, spawn
from minipipe.comm import OneRankGroup
from minipipe.errors import ArgumentError, MessageError, NotFiniteError
from minipipe.testing import same_bits
from tests.launch import mpirun, needs_mpi, of_each_kind, slowly
from tests.strategies import NAMES, batch, build

WIDTH = 6


def model():
    layers = [
        layer
        for _ in range(7)
        for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.2))
    ]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 2))


def train(group, name, wait):
    pipeline = Pipeline(
        model(), group, loss=nn.MSELoss(), schedule=build(name, group.size, 4)
    )
    optimiser = optim.SGD(pipeline.parameters(), 0.01, momentum=0.5)
    losses = []
    for number in range(5):
        losses.append(pipeline.step(*batch(8, WIDTH, seed=number), wait=wait))
        optimiser.step()
        if number == 2:  # another call between them, and a batch of another size
            losses.append(pipeline.evaluate(*batch(3, WIDTH)))
    return [float(loss) for loss in losses[::-1]], pipeline.state_dict()


def check_alike(group, name):
    (losses, state), (expected, expected_state) = (
        train(group, name, wait=False),
        train(group, name, wait=True),
    )
    assert losses == expected
    assert all(same_bits(state[key], expected_state[key]) for key in expected_state)


@pytest.mark.parametrize("name", of_each_kind(NAMES))
def test_without_waiting_every_schedule_trains_to_the_same_bits(name):
    spawn(lambda group: check_alike(group, name), 3)


@needs_mpi
@pytest.mark.parametrize("num_ranks", [2, slowly(4)])
@pytest.mark.slow
def test_so_it_does_across_processes(num_ranks):
    done = mpirun(num_ranks, __file__)
    assert done.code == 0, done.err
    assert done.out.split() == NAMES


def test_a_loss_says_that_it_is_pending_until_somebody_asks_for_it():
    pipeline = Pipeline(model(), OneRankGroup(), loss=nn.MSELoss(), num_microbatches=4)
    first, second = (pipeline.step(*batch(8, WIDTH), wait=False) for _ in range(2))
    assert (
        repr(second)
        == str(second)
        == f"{second}"
        == "<loss of step 2, pending: float() waits>"
    )
    assert float(second) == second.wait() and repr(second) == repr(float(second))
    assert f"{first:.3f}" == f"{float(first):.3f}" and repr(first) == repr(float(first))


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("name", of_each_kind(NAMES))
def test_a_waited_step_waits_for_its_sends_too(name, wait):
    """Else their arrays stay, and MPI's requests, until a next step that may never
    come. Without waiting some do.
    """

    def run(group):
        started, finished, isend = [], [], group.isend

        def noted(*arguments, **options):
            request = isend(*arguments, **options)
            started.append(request)
            ended = request.wait
            request.wait = lambda *limit: (finished.append(request), ended(*limit))[1]
            return request

        group.isend = noted
        pipeline = Pipeline(
            model(), group, loss=nn.MSELoss(), schedule=build(name, group.size, 4)
        )
        pipeline.step(*batch(8, WIDTH), wait=wait)
        return len(started), len(started) - len(finished)

    sent, left_open = zip(*spawn(run, 3))
    assert all(sent)
    assert any(left_open) != wait


def test_the_losses_of_one_pipeline_are_never_those_of_another():
    """The story: a loss that nobody had asked for came instead of the first loss of the
    next pipeline.
    """

    def run(group):
        abandoned = Pipeline(
            model(), group, loss=nn.MSELoss(), num_microbatches=2, seed=1
        )
        for _ in range(3):
            abandoned.step(*batch(8, WIDTH), wait=False)
        pipeline = Pipeline(
            model(), group, loss=nn.MSELoss(), num_microbatches=2, seed=2
        )
        return pipeline.step(*batch(8, WIDTH), wait=False).wait()

    losses = spawn(run, 3)
    alone = Pipeline(
        model(), OneRankGroup(), loss=nn.MSELoss(), num_microbatches=2, seed=2
    )
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


@pytest.mark.parametrize(
    "use",
    [
        lambda loss: loss == 1.0,
        lambda loss: loss < 1.0,
        lambda loss: loss <= 1.0,
        bool,
        lambda loss: sum([loss, loss]),
        lambda loss: np.mean([loss, loss]),
        lambda loss: round(loss, 2),
        lambda loss: 2 * loss,
    ],
)
def test_what_needs_a_number_says_to_ask_for_it(use):
    pipeline = Pipeline(model(), OneRankGroup(), loss=nn.MSELoss(), num_microbatches=4)
    loss = pipeline.step(*batch(8, WIDTH), wait=False)
    with pytest.raises(
        ArgumentError, match=r"float\(loss\) waits for it and is a number"
    ):
        use(loss)
    assert (
        math.isfinite(loss)
        and pickle.loads(pickle.dumps(loss)) == float(loss)
        and len({loss, loss}) == 1
    )


AFTERWARDS = """
import numpy as np
from minipipe import Pipeline, init_process_group, nn

with init_process_group() as group:
    pipeline = Pipeline(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), group, loss=nn.MSELoss(), num_microbatches=2)
    losses = [pipeline.step(np.ones((2, 2)), np.ones((2, 1)), wait=False) for _ in range(3)]
    late = group.ibroadcast(np.array(7) if group.rank == 0 else None)
print(group.is_closed, float(losses[-1]) > 0, int(late.wait()))
"""


@needs_mpi
@pytest.mark.slow
def test_a_loss_can_be_asked_for_after_the_group_was_left(tmp_path):
    """The story: MPI's own error about a communicator that is no more."""
    (tmp_path / "late.py").write_text(AFTERWARDS)
    done = mpirun(2, tmp_path / "late.py")
    assert done.code == 0, done.err
    assert done.out.splitlines() == ["True True 7"] * 2


REFILLED = """
import sys, time
import numpy as np
from minipipe import Pipeline, init_process_group, nn

class Slow(nn.Module):
    def forward(self, x):
        time.sleep(0.05)  # what is tested: rank 0 refills the batch before a slow rank takes its messages
        return x

def losses(group, wait):
    model = nn.Sequential(nn.Identity(), Slow(), nn.Embedding(10, 1), nn.Flatten(), nn.Linear(4096, 1).freeze())
    pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2, partition=[range(1), range(1, 5)])
    inputs, found = np.empty((256, 4096), np.int64), []
    for number in range(4):
        inputs[...] = number + 1
        found.append(pipeline.step(inputs, np.zeros((256, 1), np.float32), wait=wait))
    return [float(loss) for loss in found]

with init_process_group(timeout=20) as group:
    assert losses(group, False) == losses(group, True)
"""


@pytest.mark.slow
@needs_mpi
def test_a_batch_that_is_refilled_changes_nothing_that_a_frozen_stage_has_sent(
    tmp_path,
):
    """The story: stage 0 handed whole numbers on as they came, so the message was the
    caller's own array.
    """
    (tmp_path / "refilled.py").write_text(REFILLED)
    done = mpirun(2, tmp_path / "refilled.py")
    assert done.code == 0, done.err


def main():
    from minipipe import init_process_group

    with init_process_group(timeout=20) as group:
        for name in NAMES:
            check_alike(group, name)
            if group.rank == 0:
                print(name, flush=True)


if __name__ == "__main__":
    sys.exit(main())


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_checkpoint_is_not_written_of_a_step_that_was_not_finite(tmp_path):
    """The story: the loss of the last step had not come yet, so weights that were no
    numbers were saved.
    """
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))

    def train(group):
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2)
        optimiser = optim.SGD(pipeline.parameters(), 0.1)
        pipeline.step(np.full((4, 2), np.inf), np.ones((4, 1)), wait=False)
        optimiser.step()
        with pytest.raises(NotFiniteError):
            checkpoint.save(tmp_path, pipeline, optimiser, step=1)

    with np.errstate(all="ignore"):
        spawn(train, 2)
    assert list(tmp_path.iterdir()) == []
