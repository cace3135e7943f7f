"""Checkpoints of layers that several ranks share: whole in the files, and restored on
any grid, or on none.

mpirun -n N python -m tests.pipeline.checkpoint.test_of_grids FOLDER STEPS PIPELINE DATA
TENSOR: its losses
"""

import json
import sys
import tempfile
from functools import cache, partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import (
    Grid,
    Pipeline,
    checkpoint,
    elastic,
    init_process_group,
    nn,
    optim,
    spawn,
)
from minipipe.errors import ArgumentError
from minipipe.nn.shards import ShardedParameter
from minipipe.pipeline.checkpoint.manifest import Manifest
from minipipe.pipeline.checkpoint.storage import unpacked
from minipipe.testing import same_bits
from tests.launch import mpirun, needs_mpi, slowly
from tests.pipeline.test_tensor_parallel import (
    CLOSE,
    IDS,
    MICROBATCHES,
    NEXT,
    language_model,
)
from tests.strategies import examples

ALONE = (1, 1, 1)  # no grid at all


def train(
    group,
    sizes,
    folder,
    num_steps,
    is_sharded=False,
    fully=False,
    saves=checkpoint.save,
):
    """Resume, train up to some step and save; return the values, what the optimiser
    keeps, and the losses.
    """
    names = dict(zip(("pipeline", "data", "tensor"), sizes))
    where = group if sizes[1:] == (1, 1) else Grid(group, **names, fully_sharded=fully)
    given = {"num_microbatches": MICROBATCHES // sizes[1], "gradient_blocks": 4}
    pipeline = Pipeline(
        language_model(attention_dropout=0.1),
        where,
        loss=nn.CrossEntropyLoss(),
        **given,
    )
    # A gradient that is zero but for rounding, such as that of the keys' bias, must not
    # become a step of one size.
    make = (
        partial(pipeline.sharded, optim.Adam)
        if is_sharded
        else partial(optim.Adam, pipeline.parameters())
    )
    optimiser = make(learning_rate=0.05, epsilon=1e-2)
    restored = checkpoint.restore(folder, pipeline, optimiser, required=False)
    losses = []
    for _ in range(restored.step if restored else 0, num_steps):
        losses.append(float(pipeline.step(IDS, NEXT)))
        pipeline.clip_grad_norm(0.5)
        optimiser.step()
    saves(folder, pipeline, optimiser, step=num_steps, extra={"losses": losses})
    return pipeline.state_dict(), optimiser.state_dict()["states"], losses


def run(sizes, folder, num_steps, **options):
    return spawn(
        lambda group: train(group, sizes, folder, num_steps, **options),
        int(np.prod(sizes)),
    )


@cache
def in_one_run(num_steps):
    with tempfile.TemporaryDirectory() as folder:
        return run(ALONE, folder, num_steps)[0]


def check(first, then, **options):
    with tempfile.TemporaryDirectory() as folder:
        run(first, folder, 2, **options)
        resumed = run(then, folder, 4, **options)
    values, _, losses = in_one_run(4)
    for state, _, its in resumed:
        assert np.allclose(its, losses[2:], rtol=CLOSE, atol=CLOSE)
        for name, value in values.items():
            assert np.allclose(state[name], value, rtol=CLOSE, atol=CLOSE), name
    return resumed


CASES = [
    ((1, 1, 2), ALONE),
    (ALONE, (1, 2, 2)),
    ((2, 1, 1), (1, 1, 2)),
    ((1, 1, 2), (2, 1, 1)),
]
CASES += [((2, 2, 2), sizes) for sizes in (ALONE, (4, 1, 2), (1, 2, 4), (2, 1, 1))] + [
    ((2, 1, 1), (2, 2, 2))
]


@pytest.mark.parametrize(
    ("first", "then"),
    [case if i < 1 else slowly(*case) for i, case in enumerate(CASES)],
)
def test_a_checkpoint_of_one_grid_is_resumed_on_another(first, then):
    check(first, then)


ANY = st.sampled_from(
    [
        (p, d, t)
        for p in (1, 2, 4)
        for d in (1, 2, 4)
        for t in (1, 2, 4)
        if p * d * t <= 8
    ]
)


@pytest.mark.slow
@examples(30)
@given(first=ANY, then=ANY, fully=st.booleans())
def test_so_it_is_for_any_two_grids(first, then, fully):
    check(first, then, fully=fully)


def test_what_replicas_keep_a_share_of_is_whole_in_a_checkpoint():
    check((1, 2, 1), ALONE, fully=True)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(1, 1, 2), slowly((2, 2, 2))])
@pytest.mark.parametrize(
    "options", [{}, slowly({"is_sharded": True}), slowly({"fully": True})], ids=str
)
def test_on_the_same_grid_it_has_the_same_bits(sizes, options):
    resumed = check(sizes, sizes, **options)
    with tempfile.TemporaryDirectory() as folder:
        in_one = run(sizes, folder, 4, **options)
    for (values, kept, losses), (its_values, its_kept, its_losses) in zip(
        in_one, resumed
    ):
        assert losses[2:] == its_losses and all(
            same_bits(values[name], its_values[name]) for name in values
        )
        for own, its in zip(kept, its_kept):
            assert own.keys() == its.keys() and all(
                same_bits(*map(np.asarray, (own[what], its[what]))) for what in own
            )


@pytest.mark.parametrize("fully", [False, slowly(True)])
def test_files_have_whole_arrays_once(tmp_path, fully):
    run((1, 2, 2), tmp_path, 1, fully=fully)
    manifest = Manifest.read(tmp_path / "000001-step-1")
    plain = dict(language_model().named_parameters())
    assert {name: shape for name, (_, _, shape) in manifest.parameters.items()} == {
        name: parameter.shape for name, parameter in plain.items()
    }
    assert {file for file, _, _ in manifest.parameters.values()} == {
        "rank-0.safetensors"
    }
    kept = unpacked((tmp_path / "000001-step-1" / "rank-0.safetensors").read_bytes())
    arrays = {key: value.shape for key, value in kept.items()}
    for what in ("parameters", "optimiser/mean", "optimiser/mean_square"):
        assert {name: arrays.pop(f"{what}/{name}") for name in plain} == {
            name: p.shape for name, p in plain.items()
        }
    assert not arrays and manifest.extra["losses"]


@pytest.mark.slow
def test_in_the_background_and_as_weights_it_is_the_same(tmp_path):
    def saves(folder, pipeline, optimiser, step, extra):
        with checkpoint.BackgroundSaver(folder, pipeline, optimiser) as saver:
            saver.save(step, extra)
        checkpoint.export(tmp_path / "weights.safetensors", pipeline)

    check((2, 1, 2), (1, 2, 2), saves=saves)
    (values, *_), model = (
        run((1, 1, 2), tmp_path / "run", 1, saves=saves)[0],
        language_model(),
    )
    checkpoint.load_weights(tmp_path / "weights.safetensors", model)
    assert all(
        same_bits(model.state_dict()[name], value) for name, value in values.items()
    )

    def load(group):
        own = nn.parallelise(language_model(), group)
        checkpoint.load_weights(tmp_path / "weights.safetensors", own)
        return own.state_dict()

    for state in spawn(load, 2):
        assert all(same_bits(state[name], value) for name, value in values.items())


@pytest.mark.slow
def test_a_part_that_is_cut_elsewhere_is_noticed(monkeypatch):
    """The mutant: an optimiser's array that is taken from the wrong end."""
    monkeypatch.setattr(
        ShardedParameter,
        "cut",
        lambda own, values: (
            own.shard.cut(values[::-1]) if values.shape == own.whole_shape else values
        ),
    )
    with pytest.raises(AssertionError):
        check((1, 1, 2), (1, 1, 2))


def test_elastic_training_refuses_a_grid():
    def make(group):
        pipeline = Pipeline(language_model(), Grid(group), loss=nn.CrossEntropyLoss())
        return pipeline, optim.SGD(pipeline.parameters(), 0.1)

    with pytest.raises(ArgumentError, match="returned a pipeline on a Grid"):
        spawn(lambda group: elastic.train(make, lambda *_: None, group, num_steps=1), 1)


@needs_mpi
@pytest.mark.slow
def test_so_it_is_over_mpi(tmp_path):
    expected = in_one_run(4)[2]
    for num_steps, sizes in ((2, (2, 2, 2)), (3, (1, 2, 4)), (4, (4, 1, 2))):
        done = mpirun(
            8,
            "-m",
            "tests.pipeline.checkpoint.test_of_grids",
            tmp_path,
            num_steps,
            *sizes,
        )
        assert done.code == 0, done.err
        losses = json.loads(done.out)
        assert np.allclose(
            losses,
            expected[num_steps - len(losses) : num_steps],
            rtol=CLOSE,
            atol=CLOSE,
        )


if __name__ == "__main__":
    with init_process_group() as group:
        folder, num_steps, *sizes = sys.argv[1:]
        *_, losses = train(group, tuple(map(int, sizes)), folder, int(num_steps))
        if group.rank == 0:
            print(json.dumps(losses))
