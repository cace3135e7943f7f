"""A program that would be made anew for every step is not made any more."""

import numpy as np

from minipipe import Pipeline, nn, spawn


def test_parameters_with_new_arrays_in_every_step_end_the_attempts():
    def train(group, compile):  # noqa: A002
        layers = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))
        options = {"loss": nn.MSELoss(), "num_microbatches": 2, "compile": compile}
        pipeline = Pipeline(layers, group, **options)
        x, losses = np.ones((4, 3), np.float32), []
        for _ in range(12):
            losses.append(float(pipeline.step(x, 2 * x)))
            for parameter in pipeline.parameters():
                parameter.data = parameter.data - 0.1 * parameter.grad
        return losses, pipeline.compile_report()

    (eager,) = spawn(lambda group: train(group, compile=False), num_ranks=1)
    (compiled,) = spawn(lambda group: train(group, compile=True), num_ranks=1)
    assert compiled[0] == eager[0]
    assert "change in every step" in compiled[1]
