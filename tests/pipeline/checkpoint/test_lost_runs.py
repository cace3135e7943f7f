"""How a student lost a run, or mixed two: each way is refused, or keeps what was
there.
"""

import numpy as np
import pytest

from minipipe import checkpoint, optim, spawn
from minipipe.errors import ArgumentError, CheckpointError, RankError
from tests.pipeline.checkpoint import small


def steps_in(folder):
    return sorted(int(path.name.rpartition("-")[2]) for path in folder.glob("0*"))


def test_ranks_that_read_different_folders_are_refused_though_both_are_whole(tmp_path):
    """The story: f"d{group.rank}" restored one half of each of two runs, and training
    went on.
    """

    def train(group):
        pipeline, optimiser = small.pipeline_of(group)
        for name in ("0", "1"):
            small.train(pipeline, optimiser)
            checkpoint.save(tmp_path / name, pipeline, optimiser, step=3)
        checkpoint.restore(tmp_path / str(group.rank), pipeline, optimiser)

    with pytest.raises(
        RankError,
        match=r"Ranks \d and \d have read different checkpoints .* the same folder",
    ) as caught:
        spawn(train, 2)
    assert caught.value.code == "disagreement"


def test_ranks_that_write_to_different_folders_are_told_so(tmp_path):
    def train(group):
        pipeline, optimiser = small.pipeline_of(group)
        checkpoint.save(tmp_path / str(group.rank), pipeline, optimiser, step=3)

    with pytest.raises(
        CheckpointError,
        match=r"Rank 1 does not see .* Pass the same folder on every rank",
    ):
        spawn(train, 2)
    assert not list(tmp_path.glob("*/0*"))


def test_a_checkpoint_is_not_a_folder_for_checkpoints(tmp_path):
    """The story: restore() takes the path of one checkpoint, so save() was given it;
    the next save deleted both.
    """

    def train(group):
        pipeline, optimiser = small.pipeline_of(group)
        one = checkpoint.save(tmp_path, pipeline, optimiser, step=3)
        assert checkpoint.restore(one, pipeline, optimiser).step == 3
        checkpoint.save(one, pipeline, optimiser, step=4)

    with pytest.raises(
        CheckpointError, match="is a checkpoint itself; pass the folder that holds it"
    ):
        spawn(train, 2)
    assert steps_in(tmp_path) == [3]


def test_a_run_that_begins_anew_deletes_nothing_of_a_longer_one(tmp_path):
    """The story: without restore() two saves of a new run deleted what 100 steps had
    made.
    """

    def train(group, steps):
        pipeline, optimiser = small.pipeline_of(group)
        for step in steps:
            checkpoint.save(tmp_path, pipeline, optimiser, step=step)

    spawn(lambda group: train(group, (20, 50, 100)), 2)
    assert steps_in(tmp_path) == [50, 100]
    spawn(lambda group: train(group, (1, 2, 3)), 2)
    assert steps_in(tmp_path) == [2, 3, 50, 100]
    spawn(lambda group: train(group, (60,)), 2)
    assert steps_in(tmp_path) == [3, 60, 100]
    spawn(lambda group: train(group, (100, 120)), 2)
    assert steps_in(tmp_path) == [100, 120]


def test_one_of_two_optimisers_is_not_left_out(tmp_path):
    def train(group):
        pipeline, _ = small.pipeline_of(group)
        parameters = list(pipeline.parameters())
        both = {"first": optim.Adam(parameters[:1]), "rest": optim.Adam(parameters[1:])}
        checkpoint.save(tmp_path, pipeline, both, step=3)
        checkpoint.restore(tmp_path, pipeline, {"first": both["first"]})

    with pytest.raises(
        CheckpointError,
        match=(
            "these optimisers: 'first', 'rest'; this script passes 'first'. Pass all "
            "by name"
        ),
    ) as caught:
        spawn(train, 1)
    assert caught.value.code == "mismatch"


@pytest.mark.parametrize("call", ["save", "restore"])
def test_arguments_in_another_order_are_named(call, tmp_path):
    def train(group):
        pipeline, optimiser = small.pipeline_of(group)
        more = {"step": 1} if call == "save" else {}
        for given in (
            (pipeline, optimiser, tmp_path),
            (tmp_path, small.model(), optimiser),
            (None, pipeline, optimiser),
        ):
            with pytest.raises(
                ArgumentError,
                match=rf"checkpoint\.{call} got a \w+ and a \w+; expected a path",
            ):
                getattr(checkpoint, call)(*given, **more)

    spawn(train, 1)
    assert np.all(list(tmp_path.iterdir()) == [])
