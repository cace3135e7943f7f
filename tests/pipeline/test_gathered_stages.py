"""Fully sharded stages that are whole from a GATHER to a FREE of their row."""

import numpy as np
import pytest

from minipipe import Grid, Pipeline, nn, spawn
from tests.pipeline.test_tensor_parallel import CLOSE, IDS, NEXT, language_model, on_grid


def test_a_batch_of_one_sample_is_predicted_by_all_ranks():
    def predict(group):
        return on_grid(group, data=2, fully_sharded=True).predict(IDS[:1])

    expected = spawn(lambda group: on_grid(group).predict(IDS[:1]), 1)[0]
    assert all(np.allclose(found, expected, rtol=CLOSE, atol=CLOSE) for found in spawn(predict, 2))


def test_the_rows_of_an_evaluation_gather_each_stage_ahead_and_free_it():
    def rows(group):
        grid = Grid(group, data=2, fully_sharded=True)
        plan = {"schedule": "interleaved-1f1b", "num_microbatches": 2}
        return Pipeline(language_model(), grid, loss=nn.CrossEntropyLoss(), **plan).forward_rows

    row = " ".join(map(str, spawn(rows, 2)[0].actions[0]))
    first = "HANDSHAKE 0GATHER0 0F0 1GATHER0 0F1 0FREE0 1F0 1F1 1FREE0"
    assert row == f"{first} GATHER_RESULTS LOSS"


def test_after_an_evaluation_that_fails_nothing_stays_whole():
    def layers(group):
        pipeline = on_grid(group, data=2, fully_sharded=True)
        with pytest.raises(ZeroDivisionError):
            pipeline.evaluate(IDS, NEXT, metrics={"fails": lambda outputs, targets: 1 / 0})
        (stage,) = pipeline._stages.values()
        return [part.kept for part in stage.module.modules() if isinstance(part, nn.FullySharded)]

    found = spawn(layers, 2)
    assert all(found) and all(kept is None for of_rank in found for kept in of_rank)
