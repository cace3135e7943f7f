"""What a student does wrong with checkpoints, and the sentence that says so."""

import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from minipipe import Grid, Pipeline, checkpoint, nn, optim, spawn
from minipipe.comm import OneRankGroup
from minipipe.errors import ArgumentError, CheckpointError, MessageError, RankError
from tests.launch import for_each, run
from tests.pipeline.checkpoint import small


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a checkpoint of the small training, on one rank."""
    folder = tmp_path_factory.mktemp("runs")
    pipeline, optimiser = small.pipeline_of(OneRankGroup())
    small.train(pipeline, optimiser)
    checkpoint.save(folder, pipeline, optimiser, step=1)
    return folder


def pipeline_of(*layers, **options):
    return Pipeline(
        nn.Sequential(*layers),
        OneRankGroup(),
        loss=nn.MSELoss(),
        num_microbatches=4,
        **options,
    )


@pytest.mark.parametrize(
    ("pipeline", "optimiser", "message"),
    [
        (
            lambda: pipeline_of(nn.Linear(4, 3), nn.Linear(3, 4)),
            optim.Adam,
            "it was saved from a different model. Only in the checkpoint: "
            "2.weight, 2.bias; "
            "only in this pipeline: 1.weight, 1.bias.",
        ),
        (
            lambda: pipeline_of(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 4)),
            optim.Adam,
            (
                "its 0.weight has shape (4, 3) and dtype float32; in this pipeline "
                "it has shape (4, 5) and dtype float32."
            ),
        ),
        (
            lambda: pipeline_of(
                nn.Linear(4, 3, dtype=np.float64), nn.Dropout(0.5), nn.Linear(3, 4)
            ),
            optim.Adam,
            (
                "its 0.weight has shape (4, 3) and dtype float32; in this pipeline "
                "it has shape (4, 3) and dtype float64."
            ),
        ),
        (
            lambda: small.pipeline_of(OneRankGroup(), seed=5)[0],
            optim.Adam,
            "it was trained with seed=0, and this pipeline has seed=5: dropout "
            "would draw other numbers. "
            "Pass Pipeline(…, seed=0).",
        ),
        (
            lambda: small.pipeline_of(OneRankGroup())[0],
            optim.AdamW,
            "its optimiser has class Adam, but the one of this script has class AdamW.",
        ),
        (
            lambda: small.pipeline_of(OneRankGroup())[0],
            lambda parameters: {"body": optim.Adam(parameters)},
            "it has the states of these optimisers: 'optimiser'; this script "
            "passes 'body'. "
            "Pass all by name, as in save.",
        ),
        (
            lambda: small.pipeline_of(OneRankGroup())[0],
            lambda parameters: optim.Adam(list(parameters)[:3]),
            (
                "its optimiser trains other parameters than this one: only one of "
                "the two has 2.bias."
            ),
        ),
    ],
)
def test_a_checkpoint_of_something_else_changes_nothing_and_says_what_differs(
    folder, pipeline, optimiser, message
):
    made = pipeline()
    optimiser = optimiser(made.parameters())
    before = made.state_dict()
    with pytest.raises(CheckpointError) as caught:
        checkpoint.restore(folder, made, optimiser)
    assert caught.value.code == "mismatch"
    assert str(caught.value) == f"Cannot resume from this checkpoint: {message}"
    after = made.state_dict()
    assert all((before[name] == after[name]).all() for name in before)


def restored(folder, **options):
    return checkpoint.restore(folder, *small.pipeline_of(OneRankGroup()), **options)


def test_without_a_folder_there_is_none_or_an_error(tmp_path):
    assert restored(tmp_path / "none", required=False) is None
    assert restored(tmp_path, required=False) is None
    for folder, reason in (
        (tmp_path / "none", "No such file or directory"),
        (tmp_path, "no checkpoint in it was fin"),
    ):
        with pytest.raises(
            CheckpointError, match=f"There is no checkpoint in '{folder}': {reason}"
        ) as caught:
            restored(folder)
        assert caught.value.code == "not-found"


def test_what_cannot_be_read_never_begins_anew(file):
    """The story: with required=False a file, or a folder without permission, was as
    good as none: training began anew, and in the end deleted what it had not seen."""
    for folder, reason in ((file("a"), "Not a directory"), ("a\0b", "embedded null")):
        with pytest.raises(CheckpointError, match=reason):
            restored(folder, required=False)


def test_a_folder_that_cannot_be_made_is_an_error_of_every_rank(file):
    path = file("a")
    told = []

    def ranks(group):
        with pytest.raises(CheckpointError) as caught:
            checkpoint.save(path, *small.pipeline_of(group), step=1)
        told.append((caught.value.code, str(caught.value)))

    spawn(ranks, 2)
    assert set(told) == {
        (
            "unwritable",
            (
                f"Rank 0 could not write {path}: File exists. Earlier checkpoints "
                "are unchanged."
            ),
        )
    }


def test_a_rank_of_a_subgroup_is_named_by_its_number_in_the_world(file):
    """The story: the only rank of the second half was called rank 0."""
    path = file("a")

    def ranks(group):
        half = group.split(group.rank)
        if group.rank == 1:
            with half, pytest.raises(CheckpointError, match="^Rank 1 could not write"):
                checkpoint.save(path, *small.pipeline_of(half), step=1)

    spawn(ranks, 2)


AS_NOBODY = """
import os, sys, tempfile
from minipipe import checkpoint
from minipipe.comm import OneRankGroup
from minipipe.errors import CheckpointError
from tests.pipeline.checkpoint import small

pipeline, optimiser = small.pipeline_of(OneRankGroup())
with tempfile.TemporaryDirectory() as folder:
    os.chmod(folder, 0o755)
    checkpoint.save(f"{folder}/runs", pipeline, optimiser, step=1)
    os.chmod(f"{folder}/runs", 0o500)
    if os.geteuid() == 0:
        os.seteuid(65534)
    else:
        os.chmod(f"{folder}/runs", 0)
    for call in (
        lambda: checkpoint.save(f"{folder}/runs", pipeline, optimiser, step=2),
        lambda: checkpoint.restore(f"{folder}/runs", pipeline, optimiser, required=False),
    ):
        try:
            print("no error", call())
        except CheckpointError as error:
            print(error.code, str(error).replace(folder, ""))
    os.seteuid(os.getuid())
    os.chmod(f"{folder}/runs", 0o700)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has other permissions")
def test_a_folder_without_permission_is_named():
    """Without the rights of root. The story: with required=False training began
    anew.
    """
    done = run([sys.executable, "-c", AS_NOBODY])
    assert done.out.splitlines() == [
        (
            "unwritable Rank 0 could not write /runs: Permission denied. Earlier "
            "checkpoints are unchanged."
        ),
        "not-found There is no checkpoint in '/runs': Permission denied.",
    ], done.err


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (
            {"step": -1},
            "value",
            "step is -1; expected a whole number, 0 to 9223372036854775807.",
        ),
        ({"step": 10**30}, "value", f"step is {10**30}; expected a whole number"),
        ({"step": 1.5}, "value", "step is 1.5; expected a whole number"),
        (
            {"step": 1, "keep": 0},
            "value",
            "keep is 0; expected a whole number, at least 1.",
        ),
        (
            {"step": 1, "extra": 3},
            "type",
            "extra is 3; expected a mapping, such as {'epoch': 3}.",
        ),
    ],
)
def test_an_argument_out_of_its_range_makes_no_folder(tmp_path, given, code, words):
    with pytest.raises(ArgumentError) as caught:
        checkpoint.save(tmp_path / "a", *small.pipeline_of(OneRankGroup()), **given)
    assert caught.value.code == code
    assert words in str(caught.value)
    assert not (tmp_path / "a").exists()


def test_an_object_in_extra_is_an_error_of_every_rank_and_leaves_nothing(tmp_path):
    def ranks(group):
        with pytest.raises(CheckpointError) as caught:
            checkpoint.save(
                tmp_path,
                *small.pipeline_of(group),
                step=1,
                extra={"generator": SimpleNamespace()},
            )
        return caught.value.code, str(caught.value)

    message = (
        "extra cannot be kept in a checkpoint: it holds a SimpleNamespace. Expected "
        "numbers, strings, lists and dicts"
    )
    for code, words in spawn(ranks, 2):
        assert (code, words) == ("value", f"{message} of them.")
    assert list(tmp_path.iterdir()) == []


def test_what_an_optimiser_keeps_is_arrays_and_numbers(tmp_path):
    class Named(optim.Optimiser):
        def _update(self, data, gradient, state, group):
            state["name"] = "weight"

    pipeline, _ = small.pipeline_of(OneRankGroup())
    optimiser = Named(pipeline.parameters())
    small.train(pipeline, optimiser)
    with pytest.raises(
        CheckpointError,
        match="For 0.weight the optimiser keeps name = 'weight'; expected an array or",
    ):
        checkpoint.save(tmp_path, pipeline, optimiser, step=1)
    assert list(tmp_path.iterdir()) == []


def test_a_scalar_of_numpy_comes_back_with_its_dtype(tmp_path):
    """The story: it came back as a float of Python, which leaves float32 alone: other
    bits.
    """

    class Averaging(optim.Optimiser):
        def _update(self, data, gradient, state, group):
            state["norm"] = state.get("norm", np.float64(0)) + np.float64(
                abs(gradient).sum()
            )

    def made():
        pipeline, _ = small.pipeline_of(OneRankGroup())
        return pipeline, Averaging(pipeline.parameters())

    (pipeline, optimiser), (other, its) = made(), made()
    small.train(pipeline, optimiser)
    checkpoint.save(tmp_path, pipeline, optimiser, step=1)
    checkpoint.restore(tmp_path, other, its)
    for before, after in zip(
        optimiser.state_dict()["states"], its.state_dict()["states"], strict=True
    ):
        assert after["norm"].dtype == np.float64
        assert after["norm"].tobytes() == before["norm"].tobytes()


def test_steps_that_differ_between_ranks_name_both(tmp_path):
    def ranks(group):
        checkpoint.save(tmp_path, *small.pipeline_of(group), step=3 + group.rank)

    with pytest.raises(RankError) as caught:
        spawn(ranks, 2)
    assert str(caught.value) == (
        "checkpoint.save: step is 4 on rank 1, and 3 on rank 0. Every rank must "
        "save at the same step."
    )


def test_another_folder_in_the_background_is_told_at_once_and_leaves_nothing(tmp_path):
    def act(group):
        with checkpoint.BackgroundSaver(
            tmp_path / str(group.rank), *small.pipeline_of(group)
        ) as saver:
            saver.save(1)

    with pytest.raises(
        CheckpointError,
        match="Rank 1 does not see .* which rank 0 has made. Pass the same folder",
    ):
        spawn(act, 2, timeout=10)
    assert not any((tmp_path / "0").iterdir())


@pytest.mark.parametrize("call", ["save", "restore"])
def test_an_optimiser_of_the_model_is_refused(tmp_path, call):
    model = small.model()
    pipeline = Pipeline(model, OneRankGroup(), loss=nn.MSELoss())
    small_pipeline, its = small.pipeline_of(OneRankGroup())
    checkpoint.save(tmp_path, small_pipeline, its, step=1)
    optimiser = optim.Adam(model.parameters())
    with pytest.raises(
        ArgumentError,
        match=(
            r"is not in this pipeline. A pipeline trains copies: give it "
            r"pipeline.par"
        ),
    ):
        if call == "save":
            checkpoint.save(tmp_path, pipeline, optimiser, step=2)
        else:
            checkpoint.restore(tmp_path, pipeline, optimiser)
    assert [path.name for path in tmp_path.iterdir()] == ["000001-step-1"]


@pytest.mark.parametrize("name", ["a/b", "", "parameters", 3])
def test_an_optimiser_has_a_word_for_a_name(tmp_path, name):
    pipeline, optimiser = small.pipeline_of(OneRankGroup())
    with pytest.raises(
        ArgumentError,
        match="is not a name for an optimiser; expected a string, such as 'body'",
    ):
        checkpoint.save(tmp_path, pipeline, {name: optimiser}, step=1)


def apart(tmp_path, one, other):
    """Let rank 0 call one thing and rank 1 another; return the message of the error."""

    def ranks(group):
        pipeline, optimiser = small.pipeline_of(group)
        call = (one, other)[group.rank]
        if call == "step":
            pipeline.step(small.INPUTS, small.TARGETS)
        elif call == "save":
            checkpoint.save(tmp_path, pipeline, optimiser, step=1)
        elif call == "restore":
            checkpoint.restore(tmp_path, pipeline, optimiser)
        elif call == "bytes":
            group.broadcast(
                np.frombuffer(b"no json", np.uint8) if group.rank == 0 else None, 0
            )

    with pytest.raises(MessageError) as caught:
        spawn(ranks, 2, timeout=5)
    return str(caught.value)


ON_GRIDS = {
    "replicas": {"data": 2},
    "shards": {"data": 2, "fully_sharded": True},
    "parts of layers": {"tensor": 2},
    "pipeline": {"pipeline": 2},
}


@for_each(sizes=ON_GRIDS)
@pytest.mark.parametrize("call", ["save", "restore", "background"])
def test_no_rank_waits_in_a_step_for_one_that_saves(tmp_path, sizes, call):
    """Processes would wait for each other until the timeout, since a grid has several
    groups.
    """

    def ranks(group, rank):
        pipeline = Pipeline(
            small.model(), Grid(group, **sizes), loss=nn.MSELoss(), num_microbatches=2
        )
        if group.rank != rank:
            pipeline.step(small.INPUTS, small.TARGETS)
        elif call == "restore":
            checkpoint.restore(tmp_path, pipeline)
        elif call == "save":
            checkpoint.save(tmp_path, pipeline, step=1)
        else:
            checkpoint.BackgroundSaver(tmp_path, pipeline).save(1)

    for rank in (0, 1):
        with pytest.raises(MessageError) as caught:
            spawn(lambda group, rank=rank: ranks(group, rank), 2, timeout=5)
        assert caught.value.code == "disagreement"


def test_ranks_in_different_calls_are_told_which(tmp_path):
    """The story: of save on one rank and restore on the other came "list indices must
    be integers".
    """
    checkpoint.save(tmp_path, *small.pipeline_of(OneRankGroup()), step=1)
    both = "Every rank must make the same calls in the same order."
    for one, other in (("save", "restore"), ("restore", "save")):
        message = (
            f"Rank 1 is in checkpoint.{other}(), but rank 0 in checkpoint.{one}(). "
            f"{both}"
        )
        assert apart(tmp_path, one, other) == message
    message = "Rank 1 is in checkpoint.save(), but rank 0 in another collective call. "
    assert apart(tmp_path, "bytes", "save") == message + both
    assert apart(tmp_path, "step", "save") == message + both
    assert apart(tmp_path, "save", "step").startswith(
        "Rank 1 is in step(), call 1 of pipeline 1, but rank 0 in a broad"
    )
    for one, other, rank in (("save", "nothing", 0), ("nothing", "save", 1)):
        words = (
            f"rank {rank} waits for its part of checkpoint.save(), which every rank "
            f"must call, from rank {1 - rank}"
        )
        assert words in apart(tmp_path, one, other)
