"""Muon where ranks keep parts of a matrix: of its values, or of what is kept for it."""

from functools import cache

import numpy as np
import pytest

from minipipe import Grid, Pipeline, checkpoint, init_process_group, nn, optim, spawn
from minipipe.testing import same_bits
from tests.launch import mpirun, needs_mpi, slowly
from tests.pipeline.test_tensor_parallel import (
    CLOSE,
    IDS,
    MICROBATCHES,
    NEXT,
    language_model,
)

# the gradient of a bias of keys is rounding alone, which AdamW would divide by itself
NUMBERS = {"learning_rate": 0.02, "epsilon": 1e-3}


class OfParts(optim.Muon):
    """Takes each rank's part for a matrix."""

    joins_parts = True

    def _update_matrix(self, one, data, gradient, state, group):
        alone = nn.Parameter(np.zeros(data.shape))
        if data.ndim == 2:
            super()._update_matrix(alone, data, gradient, state, group)


def trained(
    group,
    sizes=None,
    shards=False,
    fully=False,
    num_steps=3,
    rule=optim.Muon,
    **options,
):
    """Train with clipping and a schedule of learning rates; return the losses, the
    values, and the state of the optimiser of this rank.
    """
    at = group
    if sizes is not None:
        axes = dict(zip(("pipeline", "data", "tensor"), sizes))
        at = Grid(group, fully_sharded=fully, **axes)
    made = {"loss": nn.CrossEntropyLoss(), "num_microbatches": MICROBATCHES}
    if sizes is not None:
        made["num_microbatches"] //= sizes[1]
    pipeline = Pipeline(language_model(), at, **made, **options)
    groups = optim.muon_groups(pipeline)
    optimiser = (
        pipeline.sharded(rule, groups, **NUMBERS) if shards else rule(groups, **NUMBERS)
    )
    rates = optim.LearningRateSchedule(optimiser, optim.cosine(10, 2))
    losses = []
    for _ in range(num_steps):
        losses.append(float(pipeline.step(IDS, NEXT)))
        losses.append(pipeline.clip_grad_norm(0.5))
        optimiser.step()
        rates.step()
    return losses, pipeline.state_dict(), optimiser.nbytes


@cache
def alone():
    return spawn(trained, 1)[0]


def assert_close(found, expected):
    assert np.allclose(found[0], expected[0], rtol=CLOSE, atol=CLOSE)
    for name, values in expected[1].items():
        assert np.allclose(found[1][name], values, rtol=CLOSE, atol=CLOSE), name


def assert_same(found, expected):
    assert found[0] == expected[0]
    for name, values in expected[1].items():
        assert same_bits(found[1][name], values), name


@pytest.mark.parametrize("is_compiled", [False, slowly(True)])
@pytest.mark.parametrize("sizes", [(1, 1, 2), slowly((2, 1, 2))], ids=str)
def test_parts_of_tensor_parallelism_train_as_the_plain_model(sizes, is_compiled):
    num_ranks = int(np.prod(sizes))
    found = spawn(lambda group: trained(group, sizes, compile=is_compiled), num_ranks)
    for each in found:
        assert_close(each, alone())


@pytest.mark.parametrize("is_compiled", [False, slowly(True)])
@pytest.mark.parametrize(
    "sizes", [(1, 2, 1), *map(slowly, [(1, 4, 1), (1, 2, 2), (2, 2, 1)])], ids=str
)
def test_so_do_shares_of_fully_sharded_layers(sizes, is_compiled):
    num_ranks = int(np.prod(sizes))
    found = spawn(
        lambda group: trained(group, sizes, fully=True, compile=is_compiled), num_ranks
    )
    for each in found:
        assert_close(each, alone())


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(1, 2, 2), slowly((2, 2, 2))], ids=str)
def test_replicas_that_own_a_matrix_each_have_the_bits_of_whole_ones(sizes):
    num_ranks = int(np.prod(sizes))
    whole = spawn(lambda group: trained(group, sizes), num_ranks)
    shards = spawn(lambda group: trained(group, sizes, shards=True), num_ranks)
    for each in shards:
        assert_same(each, whole[0])
    assert sum(one[2] for one in shards) * sizes[1] == sum(one[2] for one in whole)


@pytest.mark.parametrize(("p", "options"), [(2, {}), (3, {"schedule": "zb-h1"})])
def test_any_partition_and_schedule_have_the_same_bits(p, options):
    for each in spawn(lambda group: trained(group, **options), p):
        assert_same(each, alone())


@pytest.mark.parametrize("fully", [False, True])
def test_a_mutant_that_takes_parts_for_matrices_is_noticed(fully):
    sizes = (1, 2, 1) if fully else (1, 1, 2)
    found = spawn(lambda group: trained(group, sizes, fully=fully, rule=OfParts), 2)
    with pytest.raises(AssertionError):
        assert_close(found[0], alone())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*gradient_blocks")
@pytest.mark.parametrize("fully", [slowly(False), True])
def test_a_checkpoint_of_divided_layers_goes_on_in_one_process(tmp_path, fully):
    def run(group, sizes, num_steps):
        grid = Grid(group, data=sizes[0], tensor=sizes[1], fully_sharded=fully)
        made = {"loss": nn.CrossEntropyLoss(), "num_microbatches": 8 // sizes[0]}
        pipeline = Pipeline(language_model(), grid, **made)
        optimiser = optim.Muon(optim.muon_groups(pipeline), **NUMBERS)
        restored = checkpoint.restore(tmp_path, pipeline, optimiser, required=False)
        for _ in range(restored.step if restored else 0, num_steps):
            pipeline.step(IDS, NEXT)
            optimiser.step()
        checkpoint.save(tmp_path, pipeline, optimiser, step=num_steps)
        return [], pipeline.state_dict()

    spawn(lambda group: run(group, (2, 1) if fully else (1, 2), 2), 2)
    (resumed,) = spawn(lambda group: run(group, (1, 1), 4), 1)
    for path in tmp_path.iterdir():
        path.rename(path.with_name(f"earlier {path.name}"))
    (expected,) = spawn(lambda group: run(group, (1, 1), 4), 1)
    assert_close(resumed, expected)


@needs_mpi
@pytest.mark.slow
def test_so_it_is_over_mpi():
    done = mpirun(4, "-m", "tests.pipeline.test_muon", limit=120)
    assert done.code == 0, done.err
    losses = np.array([line.split() for line in done.out.splitlines()], float)
    assert len(losses) == 3
    assert np.allclose(losses, alone()[0], rtol=CLOSE, atol=CLOSE)


def main():
    """Print the losses of a training with each way of dividing matrices."""
    with init_process_group() as group:
        sizes = [(2, 1, 2), (1, 2, 2), (1, 2, 2)]
        ways = [{}, {"fully": True}, {"shards": True}]
        for size, way in zip(sizes, ways):
            losses = trained(group, size, **way)[0]
            if group.rank == 0:
                print(*losses, flush=True)


if __name__ == "__main__":
    main()
