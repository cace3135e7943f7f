"""Two replicas of a model by hand, on two ranks each: equal first values, other masks,
one checkpoint.
"""

import shutil
import sys

import numpy as np
import pytest

from minipipe import Pipeline, checkpoint, init_process_group, nn, optim, spawn
from minipipe.errors import CheckpointError
from minipipe.pipeline.checkpoint import storage
from minipipe.testing import same_bits
from tests.launch import mpirun, needs_mpi

X, Y = np.random.default_rng(0).standard_normal((2, 8, 4)).astype(np.float32)


def pipeline_of(group, **seeds):
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4))
    pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2, **seeds)
    return pipeline, optim.Adam(pipeline.parameters(), learning_rate=0.1)


def replica_of(world):
    replica = world.rank // 2
    return replica, world.split(replica)


def train(pipeline, optimiser, num_steps=2):
    losses = []
    for _ in range(num_steps):
        losses.append(pipeline.step(X, Y))
        optimiser.step()
    return losses


def test_replicas_with_one_seed_and_other_dropout_seeds_begin_alike_and_draw_other_masks():
    """The story: both drew the same masks, so the mean of their gradients was no better
    than that of one.
    """

    def run(world):
        replica, group = replica_of(world)
        pipeline, _ = pipeline_of(group, seed=3, dropout_seed=replica)
        evaluated = pipeline.evaluate(X, Y)
        return (
            pipeline.state_dict(),
            evaluated,
            pipeline.step(X, Y),
            (pipeline.seed, pipeline.dropout_seed),
        )

    found = spawn(run, 4)
    for first, second in ((0, 2), (1, 3)):
        assert all(
            same_bits(found[first][0][name], found[second][0][name])
            for name in found[0][0]
        )
        assert (
            found[first][1] == found[second][1] and found[first][2] != found[second][2]
        )
        assert (found[first][3], found[second][3]) == ((3, 0), (3, 1))


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_masks_follow_from_the_dropout_seed_and_first_values_from_the_seed(num_ranks):
    def losses(group, **seeds):
        return train(*pipeline_of(group, **seeds))

    alone = spawn(lambda group: losses(group, seed=3, dropout_seed=5), 1)[0]
    assert (
        spawn(lambda group: losses(group, seed=3, dropout_seed=5), num_ranks)
        == [alone] * num_ranks
    )
    assert spawn(lambda group: losses(group, seed=3), num_ranks)[0] != alone
    assert (
        spawn(lambda group: losses(group, seed=4, dropout_seed=5), num_ranks)[0]
        != alone
    )
    by_default = spawn(lambda group: losses(group, seed=3, dropout_seed=3), num_ranks)
    assert by_default == spawn(lambda group: losses(group, seed=3), num_ranks)


def test_the_mean_of_their_gradients_is_that_of_both_halves_of_a_batch():
    """All of it by hand: without dropout the replicas train like one pipeline over the
    whole batch.
    """

    def run(world):
        replica, group = replica_of(world)
        twins = world.split(group.rank)
        pipeline = Pipeline(
            nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)),
            group,
            loss=nn.MSELoss(),
            num_microbatches=2,
        )
        half = slice(4 * replica, 4 * replica + 4)
        pipeline.step(X[half], Y[half], scale=0.5)
        for parameter in pipeline.parameters():
            parameter.grad = twins.all_reduce(parameter.grad)
        optim.SGD(pipeline.parameters(), 0.1).step()
        return pipeline.state_dict()

    def whole(group):
        pipeline = Pipeline(
            nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)),
            group,
            loss=nn.MSELoss(),
            num_microbatches=4,
        )
        pipeline.step(X, Y)
        optim.SGD(pipeline.parameters(), 0.1).step()
        return pipeline.state_dict()

    found, expected = spawn(run, 4), spawn(whole, 2)[0]
    for state in found:
        assert all(same_bits(state[name], found[0][name]) for name in expected)
        assert all(
            np.allclose(state[name], values, rtol=0, atol=1e-6)
            for name, values in expected.items()
        )


# -- checkpoints -----------------------------------------------------------------------


def test_a_dropout_seed_is_in_the_checkpoint_and_training_goes_on_with_its_masks(
    tmp_path,
):
    def run(group):
        pipeline, optimiser = pipeline_of(group, dropout_seed=7)
        train(pipeline, optimiser)
        checkpoint.save(tmp_path, pipeline, optimiser, step=2)
        gone_on = train(pipeline, optimiser)
        pipeline, optimiser = pipeline_of(group, dropout_seed=7)
        checkpoint.restore(tmp_path, pipeline, optimiser)
        return gone_on == train(pipeline, optimiser)

    assert spawn(run, 2) == [True, True]
    with pytest.raises(
        CheckpointError,
        match=r"with dropout_seed=7, .* has dropout_seed=0: .* dropout_seed=7\)",
    ):
        spawn(lambda group: checkpoint.restore(tmp_path, *pipeline_of(group)), 1)


def test_another_replica_goes_on_from_the_same_checkpoint_with_its_own_masks_and_is_told(
    tmp_path,
):
    def run(group):
        pipeline, optimiser = pipeline_of(group)
        train(pipeline, optimiser)
        checkpoint.save(tmp_path, pipeline, optimiser, step=2)
        same = train(pipeline, optimiser)
        pipeline, optimiser = pipeline_of(group, dropout_seed=1)
        with pytest.warns(
            UserWarning,
            match="trained with dropout_seed=0, and this pipeline has dropout_seed=1",
        ):
            checkpoint.restore(tmp_path, pipeline, optimiser)
        return train(pipeline, optimiser), same

    ((other, same),) = spawn(run, 1)
    assert other != same


def test_a_checkpoint_from_before_there_was_a_dropout_seed_has_that_of_the_seed(
    tmp_path,
):
    def save(group):
        return checkpoint.save(tmp_path, *pipeline_of(group, seed=4), step=1)

    (path,) = spawn(save, 1)
    text = (path / storage.MANIFEST).read_text()
    content = text.replace(' "dropout_seed": 4,\n', "").encode()
    assert len(content) < len(text)
    (path / storage.MANIFEST).write_bytes(content)
    (path / storage.MARKER).write_text(storage.digest_of(content).sha256)
    spawn(lambda group: checkpoint.restore(tmp_path, *pipeline_of(group, seed=4)), 1)
    with pytest.raises(CheckpointError, match="trained with seed=4"):
        spawn(lambda group: checkpoint.restore(tmp_path, *pipeline_of(group)), 1)


def test_a_save_whose_folder_another_replica_deletes_says_who_is_who(
    tmp_path, monkeypatch
):
    """The story: both replicas saved to one folder, and the error asked for another
    job, of which there was none.
    """
    finish = storage.finish

    def deleted_before(partial, manifest):
        shutil.rmtree(partial)
        return finish(partial, manifest)

    monkeypatch.setattr(storage, "finish", deleted_before)

    def run(world):
        replica, group = replica_of(world)
        if replica == 1:
            checkpoint.save(tmp_path, *pipeline_of(group), step=1)

    with pytest.raises(CheckpointError) as caught:
        spawn(run, 4)
    assert (
        "Rank 2 could not write" in caught.value.message
        and "this pipeline runs on ranks 2, 3 of the job; do ranks 0, 1 save to the "
        "same folder? Let one of the "
        "replicas save, or pass a separate folder to each."
        in caught.value.message
    )
    with pytest.raises(
        CheckpointError, match="does another job write to the same folder"
    ):
        spawn(lambda group: checkpoint.save(tmp_path, *pipeline_of(group), step=1), 2)


@needs_mpi
@pytest.mark.slow
def test_so_it_is_in_processes(tmp_path):
    job = mpirun(4, __file__, tmp_path, limit=120)
    others = (
        "do ranks 2, 3 save to the same folder?",
        "do ranks 0, 1 save to the same folder?",
    )
    assert job.code == 0 or any(words in job.err for words in others), job


if __name__ == "__main__":
    with init_process_group() as ranks:
        own, part = replica_of(ranks)
        trained = pipeline_of(part, dropout_seed=own)
        for number in range(20):
            train(*trained, num_steps=1)
            checkpoint.save(sys.argv[1], *trained, step=number)
