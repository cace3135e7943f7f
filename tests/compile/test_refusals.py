"""Options that are not compiled: an error that names them, or an eager step."""

import numpy as np
import pytest

from minipipe import Pipeline, nn, optim, spawn
from minipipe.errors import ArgumentError

WIDTH = 8
BATCH = np.ones((8, WIDTH), np.float32), np.zeros((8, WIDTH), np.float32)


def pipeline_of(group, how, schedule="zb-h1", **options):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    return Pipeline(
        model,
        group,
        loss=nn.MSELoss(),
        num_microbatches=4,
        schedule=schedule,
        compile=how,
        **options,
    )


def test_stacked_weight_gradients_are_refused_or_run_eagerly():
    def refused(group):
        pipeline_of(group, True, stack_weight_gradients=True)

    with pytest.raises(ArgumentError, match="stack_weight_gradients=True"):
        spawn(refused, num_ranks=1)

    def run(group):
        found = []
        for how in (False, "where-possible"):
            pipeline = pipeline_of(group, how, stack_weight_gradients=True)
            found.append([float(pipeline.step(*BATCH)) for _ in range(4)])
        assert found[0] == found[1]
        assert "stack_weight_gradients" in pipeline.compile_report()

    spawn(run, num_ranks=2)


def test_a_run_that_updates_weights_does_not_stack_them_and_is_compiled():
    def run(group):
        options = {"schedule": "pipedream", "stack_weight_gradients": True}
        pipeline = pipeline_of(group, True, **options)
        optimiser = optim.SGD(pipeline.parameters(), 0.1)
        pipeline.run([BATCH] * 3, optimiser)
        assert "is compiled" in pipeline.compile_report()

    spawn(run, num_ranks=2)


def test_a_step_whose_memory_is_measured_runs_eagerly_and_the_next_is_compiled():
    def run(group):
        found = []
        for how in (False, True):
            pipeline = pipeline_of(group, how)
            losses = []
            for step in range(7):
                pipeline.measures_memory = step == 4
                losses.append(float(pipeline.step(*BATCH)))
                if step == 4 and how:
                    assert "are observed" in pipeline.compile_report()
            found.append(losses)
        assert found[0] == found[1]
        assert pipeline.compile_report().endswith("is compiled")

    spawn(run, num_ranks=2)
