"""Options that are not compiled: an error that names them, or an eager step."""

import array_api_strict
import numpy as np
import pytest

from minipipe import Pipeline, nn, optim, spawn
from minipipe.errors import ArgumentError, ModelError

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


@pytest.mark.parametrize("schedule", ["1f1b", "pipedream"])
def test_arrays_of_another_module_run_eagerly_or_are_refused(schedule):
    def train(group, how):
        pipeline = pipeline_of(group, how, schedule, device=array_api_strict)
        optimiser = optim.SGD(pipeline.parameters(), 0.1)
        losses = [
            float(x) for _ in range(2) for x in pipeline.run([BATCH] * 2, optimiser)
        ]
        return losses, pipeline.compile_report()

    def run(group):
        eager, _ = train(group, False)
        found, report = train(group, "where-possible")
        assert found == eager
        assert "its parameters are not NumPy arrays" in report
        with pytest.raises(ModelError, match="its parameters are not NumPy arrays"):
            train(group, True)

    spawn(run, num_ranks=1)
