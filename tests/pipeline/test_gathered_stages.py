"""Fully sharded stages that are whole from a GATHER to a FREE of their row."""

from collections import Counter

import numpy as np
import pytest

from minipipe import Grid, Pipeline, nn, spawn
from minipipe.nn import fully_sharded
from minipipe.testing import same_bits
from tests.launch import mpirun, needs_mpi, slowly
from tests.pipeline.test_fully_sharded import weight_side
from tests.pipeline.test_tensor_parallel import (
    CLOSE,
    IDS,
    MICROBATCHES,
    NEXT,
    language_model,
    on_grid,
    train,
)


def test_a_batch_of_one_sample_is_predicted_by_all_ranks():
    def predict(group):
        return on_grid(group, data=2, fully_sharded=True).predict(IDS[:1])

    expected = spawn(lambda group: on_grid(group).predict(IDS[:1]), 1)[0]
    assert all(
        np.allclose(found, expected, rtol=CLOSE, atol=CLOSE)
        for found in spawn(predict, 2)
    )


def test_the_rows_of_an_evaluation_gather_each_stage_ahead_and_free_it():
    def rows(group):
        grid = Grid(group, data=2, fully_sharded=True)
        plan = {"schedule": "interleaved-1f1b", "num_microbatches": 2}
        return Pipeline(
            language_model(), grid, loss=nn.CrossEntropyLoss(), **plan
        ).forward_rows

    row = " ".join(map(str, spawn(rows, 2)[0].actions[0]))
    first = "HANDSHAKE 0GATHER0 0F0 1GATHER0 0F1 0FREE0 1F0 1F1 1FREE0"
    assert row == f"{first} GATHER_RESULTS LOSS"


def test_after_an_evaluation_that_fails_nothing_stays_whole():
    def layers(group):
        pipeline = on_grid(group, data=2, fully_sharded=True)
        with pytest.raises(ZeroDivisionError):
            pipeline.evaluate(
                IDS, NEXT, metrics={"fails": lambda outputs, targets: 1 / 0}
            )
        (stage,) = pipeline._stages.values()
        return [
            part.kept
            for part in stage.module.modules()
            if isinstance(part, nn.FullySharded)
        ]

    found = spawn(layers, 2)
    assert all(found) and all(kept is None for of_rank in found for kept in of_rank)


# -- training, each stage gathered once for a step -------------------------------------


def same(found, expected):
    values = found[1].keys() == expected[1].keys() and all(
        same_bits(found[1][k], v) for k, v in expected[1].items()
    )
    return (
        values
        and found[0] == expected[0]
        and found[2] == expected[2]
        and same_bits(found[3], expected[3])
    )


SCHEDULES = ["zb-h1", *map(slowly, ["1f1b", "gpipe", "interleaved-1f1b", "zb-v"])]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "options", [{}, slowly({"recompute": True}), slowly({"compile": True})], ids=str
)
def test_stages_that_are_gathered_once_train_with_the_bits_of_layers_that_gather_each_time(
    schedule, options
):
    def trained(group, how):
        grid = Grid(group, pipeline=group.size // 2, data=2, fully_sharded=how)
        pipeline = Pipeline(
            language_model(),
            grid,
            loss=nn.CrossEntropyLoss(),
            num_microbatches=2,
            schedule=schedule,
            **options,
        )
        return *train(pipeline), pipeline.compile_report()

    num_ranks = 2 if schedule == "zb-h1" else 4
    by_layer, by_stage = (
        spawn(lambda group, how=how: trained(group, how), num_ranks)
        for how in (True, "stages")
    )
    assert all(same(*pair) for pair in zip(by_stage, by_layer))
    assert all(
        ("is compiled" in report) == ("compile" in options) for *_, report in by_stage
    )


@pytest.mark.slow
@needs_mpi
def test_so_they_do_over_mpi():
    by_layer, by_stage = (
        mpirun(2, "tests/pipeline/grid_over_mpi.py", 1, 2, 1, how) for how in (1, 2)
    )
    assert (by_layer.code, by_stage.code) == (0, 0), by_stage.err
    assert by_layer.out == by_stage.out != ""


def test_values_that_w_needs_are_in_their_place():
    by_layer, by_stage = (
        spawn(lambda g, how=how: weight_side(g, fully_sharded=how), 4)
        for how in (True, "stages")
    )
    for (loss, gradients), (expected, others) in zip(by_stage, by_layer):
        assert loss == expected and all(
            same_bits(gradients[name], other) for name, other in others.items()
        )


def test_each_stage_is_gathered_once_for_a_step():
    def count(group):
        calls, layer = Counter(), fully_sharded.FullySharded
        pipeline = on_grid(group, data=2, fully_sharded="stages")
        layers = [
            part
            for part in pipeline._stages[0].module.modules()
            if isinstance(part, layer)
        ]
        for name in ("gather", "scatter"):
            for part in layers:
                vars(part)[name] = counting(
                    calls, name, getattr(layer, name).__get__(part)
                )
        pipeline.step(IDS, NEXT)
        return (
            calls,
            len(layers),
            [str(action) for action in pipeline.rows.actions[group.rank]],
        )

    for calls, num_layers, row in spawn(count, 2):
        # as ever; no layer gathers itself
        assert calls == {"scatter": num_layers * MICROBATCHES // 2}
        assert [
            cell[:2] for cell in row if cell[1:].startswith(("GATHER", "FREE"))
        ] == ["0G", "0F"]


def counting(calls, name, real):
    return lambda *given: (calls.update([name]), real(*given))[1]


def test_after_a_step_that_fails_the_next_one_is_as_ever():
    def losses(group, fails):
        pipeline = on_grid(group, data=2, fully_sharded="stages")
        if fails:
            with pytest.raises(ZeroDivisionError):
                pipeline.step(
                    IDS, NEXT, metrics={"fails": lambda outputs, targets: 1 / 0}
                )
        return [float(pipeline.step(IDS, NEXT)) for _ in range(2)]

    assert spawn(lambda group: losses(group, True), 2) == spawn(
        lambda group: losses(group, False), 2
    )
