"""Calls of a pipeline inside its own calls, by a metric: on one rank, where no other
rank has to make them.
"""

import numpy as np
import pytest

from minipipe import Pipeline, nn
from minipipe.comm import OneRankGroup
from minipipe.errors import ArgumentError
from minipipe.testing import same_bits

X = np.arange(32, dtype=np.float32).reshape(8, 4)


def made(**options):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    return Pipeline(
        model, OneRankGroup(), loss=nn.MSELoss(), num_microbatches=4, **options
    )


@pytest.mark.parametrize(
    "options", [{}, {"schedule": "interleaved-1f1b", "chunks_per_rank": 2}]
)
def test_a_metric_of_evaluate_and_of_step_may_evaluate_and_predict(options):
    pipeline = made(**options)
    loss, outputs = pipeline.evaluate(X, X), pipeline.predict(X)
    metrics = {
        "again": lambda *_: pipeline.evaluate(X, X),
        "same": lambda *_: same_bits(pipeline.predict(X), outputs),
    }
    for call in (pipeline.evaluate, pipeline.step):
        found = call(X, X, metrics=metrics)
        assert (found, found.metrics) == (loss, {"again": loss, "same": 1.0})


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
def test_a_step_inside_a_step_is_refused_and_the_next_one_is_whole(schedule):
    pipeline, twin = made(schedule=schedule), made(schedule=schedule)
    with pytest.raises(
        ArgumentError, match="during another training step of this pipeline"
    ) as caught:
        pipeline.step(X, X, metrics={"loss": lambda *_: pipeline.step(X, X)})
    assert caught.value.code == "unsupported"
    assert all(parameter.grad is None for parameter in pipeline.parameters())
    assert pipeline.step(X, X) == twin.step(X, X)
    for one, other in zip(pipeline.parameters(), twin.parameters()):
        assert same_bits(one.grad, other.grad)
