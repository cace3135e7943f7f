"""Checkpoints of p stages in R replicas: written once, and restored on any other p and
R.
"""

import functools
import re
import shutil
import tempfile
import warnings
from types import SimpleNamespace

import pytest

from minipipe import Pipeline, checkpoint, nn, optim, spawn
from minipipe.comm import OneRankGroup
from minipipe.pipeline.checkpoint.manifest import Manifest
from minipipe.testing import same_bits
from tests.cli.supervision.jobs import run as supervised
from tests.launch import mpirun, needs_mpi, slowly
from tests.pipeline.checkpoint import job
from tests.pipeline.checkpoint.recipes import RECIPES, train
from tests.pipeline.checkpoint.test_anywhere import whole

BLOCKS = 4
LAYOUTS = [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4)]  # stages, replicas
CHIMERA = ("chimera", 2, 1)


def run(recipe, layout, folder, num_steps, blocks=BLOCKS):
    """Train with as many ranks as a layout needs; it may name its schedule."""
    schedule, p, replicas = layout if len(layout) == 3 else ("1f1b", *layout)
    options = {"replicas": replicas, "gradient_blocks": blocks}
    return whole(
        spawn(
            lambda group: train(group, recipe, schedule, folder, num_steps, **options),
            p * replicas,
        )
    )


@functools.cache
def in_one_run(recipe, num_steps):
    with tempfile.TemporaryDirectory() as folder:
        return run(recipe, (1, 1), folder, num_steps)


def check(recipe, first, then):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        run(recipe, first, folder, 2)
        values, losses = run(recipe, then, folder, 4)
    expected, its = in_one_run(recipe, 4)
    assert values == expected and losses == its[2:]


@pytest.mark.parametrize(
    ("recipe", "first", "then"),
    [
        ("Adam", (2, 2), (1, 1)),
        slowly("tied", (1, 1), (2, 2)),
        ("float16", (4, 1), (1, 4)),
        slowly("groups", (1, 2), CHIMERA),
        slowly("two", CHIMERA, (2, 1)),
        slowly("Adam", (2, 4), (4, 2)),
        slowly("tied", (4, 2), (2, 4)),
    ],
)
def test_a_checkpoint_of_replicas_goes_on_with_any_number_of_stages_and_replicas(
    recipe, first, then
):
    check(recipe, first, then)


@pytest.mark.slow
@pytest.mark.parametrize("first", LAYOUTS)
@pytest.mark.parametrize("then", LAYOUTS)
def test_every_pair_of_layouts(first, then):
    recipes = list(RECIPES)
    for i in range(2):
        check(
            recipes[
                (3 * LAYOUTS.index(first) + LAYOUTS.index(then) + 5 * i) % len(recipes)
            ],
            first,
            then,
        )


def test_the_first_replica_alone_writes(tmp_path):
    run("tied", (2, 2), tmp_path, 1)
    (path,) = tmp_path.iterdir()
    found = Manifest.read(path)
    assert {file for file, *_ in found.parameters.values()} == {
        "rank-0.safetensors",
        "rank-1.safetensors",
    }
    assert all(
        (path / f"rank-{rank}.safetensors").stat().st_size < 100 for rank in (2, 3)
    )
    assert found.gradient_blocks == BLOCKS


def test_another_number_of_blocks_has_other_bits_and_that_is_said(tmp_path):
    run("Adam", (2, 2), tmp_path, 2)
    with pytest.warns(
        UserWarning,
        match=r"trained with 4 gradient_blocks, and this pipeline has 2: .*last bits",
    ):
        values, _ = run("Adam", (1, 2), tmp_path, 4, blocks=2)
    assert values != in_one_run("Adam", 4)[0]


def test_replicas_export_the_file_of_one_process(tmp_path):
    def write(group, name, **options):
        pipeline = Pipeline(
            RECIPES["tied"].model(),
            group,
            loss=nn.CrossEntropyLoss(),
            seed=2,
            **options,
        )
        checkpoint.export(tmp_path / name, pipeline)

    spawn(lambda group: write(group, "one"), 1)
    spawn(lambda group: write(group, "four", replicas=2), 4)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "four").read_bytes()


def test_in_the_background_replicas_write_the_same(tmp_path):
    def save(group):
        pipeline = Pipeline(
            RECIPES["Adam"].model(),
            group,
            loss=nn.MSELoss(),
            replicas=2,
            num_microbatches=2,
        )
        optimiser = optim.Adam(pipeline.parameters())
        with checkpoint.BackgroundSaver(
            tmp_path / "background", pipeline, optimiser
        ) as saver:
            pipeline.step(RECIPES["Adam"].inputs, RECIPES["Adam"].targets)
            optimiser.step()
            saver.save(1)
        return checkpoint.save(tmp_path / "here", pipeline, optimiser, step=1)

    (path, *_) = spawn(save, 4)
    for file in path.iterdir():
        assert (
            file.read_bytes()
            == (tmp_path / "background" / path.name / file.name).read_bytes()
        )


@needs_mpi
@pytest.mark.parametrize(
    ("rank", "what", "number"),
    [
        (2, "call", 2),
        *[slowly(0, "call", number) for number in (5, 9, 20)],
        slowly(3, "cool-down", 0),
    ],
)
@pytest.mark.slow
def test_killed_while_it_is_written_it_goes_on_with_fewer_replicas_or_stages(
    tmp_path, rank, what, number
):
    """Half of a file is written by a rank of the second replica, or the first rank is
    anywhere in a save.
    """
    done = mpirun(
        4,
        "tests/pipeline/checkpoint/job.py",
        tmp_path / "runs",
        4,
        rank,
        what,
        number,
        2,
        2,
    )
    assert done.code != 0 and re.search(
        rf"\[rank {rank}\] Rank {rank} .*exited without an error message", done.err
    )
    undisturbed = spawn(
        lambda group: values_of(group, tmp_path / "undisturbed", True, blocks=2), 1
    )[0]
    for num_ranks, replicas in ((2, 1), (2, 2), (4, 2)):
        copy = tmp_path / f"{num_ranks}-{replicas}"
        shutil.copytree(tmp_path / "runs", copy)
        for found in spawn(
            lambda group, r=replicas, folder=copy: values_of(
                group, folder, False, replicas=r, blocks=2
            ),
            num_ranks,
        ):
            assert all(
                same_bits(found[name], undisturbed[name]) for name in undisturbed
            )


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "what", "number"), [(1, "warm-up", 0), (3, "call", 2)]
)
def test_a_supervised_job_of_replicas_starts_again_and_ends_with_the_same_bits(
    tmp_path, rank, what, number
):
    script = (
        "tests/pipeline/checkpoint/job.py",
        tmp_path / "runs",
        4,
        rank,
        what,
        number,
        2,
        2,
    )
    done = supervised("-n", 4, "--restarts", 1, *script)
    assert (
        done.code == 0
        and "restart 1 of 1 on 4 ranks" in done.err
        and "began at 1" in done.out
    ), done.err
    undisturbed = spawn(
        lambda group: values_of(group, tmp_path / "undisturbed", True, blocks=2), 1
    )[0]
    pipeline, optimiser = job.pipeline_of(OneRankGroup(), blocks=2)
    checkpoint.restore(tmp_path / "runs", pipeline, optimiser)
    found = pipeline.state_dict()
    assert all(same_bits(found[name], undisturbed[name]) for name in undisturbed)


def values_of(group, folder, is_anew, **layout):
    """Train to the end, from the beginning or from the checkpoint that is there."""
    begun = job.train(
        group,
        folder,
        4,
        SimpleNamespace(reach=lambda where, array=None: array),
        **layout,
    )
    assert (begun == 0) is is_anew
    pipeline, optimiser = job.pipeline_of(group, **layout)
    checkpoint.restore(folder, pipeline, optimiser)
    return pipeline.state_dict()
