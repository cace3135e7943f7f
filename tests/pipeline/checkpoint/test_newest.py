"""The newest checkpoint of a folder that can be read, without a pipeline."""

import numpy as np
import pytest

from minipipe import Pipeline, checkpoint, nn
from minipipe.comm import OneRankGroup
from minipipe.errors import CheckpointError


def saved(folder, steps):
    pipeline = Pipeline(
        nn.Sequential(nn.Linear(2, 1)),
        OneRankGroup(),
        loss=nn.MSELoss(),
        num_microbatches=1,
    )
    pipeline.step(np.ones((1, 2), np.float32), np.ones((1, 1), np.float32))
    return [
        checkpoint.save(folder, pipeline, step=step, extra={"epoch": 10 * step})
        for step in steps
    ]


def test_the_newest_says_its_step_its_extra_and_its_path(tmp_path):
    paths = saved(tmp_path, [1, 2])
    for folder in (tmp_path, str(tmp_path)):
        assert checkpoint.newest(folder) == (2, {"epoch": 20}, paths[1])
    # a checkpoint itself
    assert checkpoint.newest(paths[0]) == (1, {"epoch": 10}, paths[0])


def test_a_damaged_one_is_passed_over(tmp_path):
    paths = saved(tmp_path, [1, 2])
    (paths[1] / "manifest.json").write_text("{")
    assert checkpoint.newest(tmp_path) == (1, {"epoch": 10}, paths[0])
    (paths[0] / "complete").write_text("0" * 64)
    with pytest.raises(CheckpointError, match="There is no checkpoint in ") as caught:
        checkpoint.newest(tmp_path)
    assert caught.value.code == "damaged"


def test_a_folder_without_any_has_none(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(
            CheckpointError, match="There is no checkpoint in "
        ) as caught:
            checkpoint.newest(folder)
        assert caught.value.code == "not-found"
