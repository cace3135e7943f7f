"""A rank that does something else is named in a compiled step as in an eager one."""

import sys

import numpy as np
import pytest

from minipipe import Pipeline, nn, optim, spawn
from minipipe.errors import MinipipeError

WIDTH, NUM_STEPS, WHEN = 8, 8, 6
X = np.ones((8, WIDTH), np.float32)


def fails(pipeline, optimiser):
    raise ValueError("mine")


def freezes(pipeline, optimiser):
    for parameter in pipeline.parameters():
        parameter.requires_grad = False


def another_number(pipeline, optimiser):
    pipeline.num_steps = 77


def another_rate(pipeline, optimiser):
    optimiser.groups[0].learning_rate = 0.5


def mean(outputs, targets):
    return 0.0


METRIC = {"mean": mean}
SCENES = {
    "evaluates": lambda pipeline, optimiser: pipeline.evaluate(X, X),
    "predicts": lambda pipeline, optimiser: pipeline.predict(X),
    "accumulates": lambda pipeline, optimiser: pipeline.step(X, X, accumulate=True),
    "asks for metrics": lambda pipeline, optimiser: pipeline.step(X, X, metrics=METRIC),
    "has another scale": lambda pipeline, optimiser: pipeline.step(X, X, scale=2.0),
    "has another batch": lambda pipeline, optimiser: pipeline.step(X[:4], X[:4]),
    "has another mode": lambda pipeline, optimiser: pipeline.eval(),
    "exits": lambda pipeline, optimiser: sys.exit(3),
    "fails": fails,
    "freezes": freezes,
    "has another number of steps": another_number,
    "has another learning rate": another_rate,
}


def trained(group, how, scene):
    """Train; before a step rank 1 does something else. Return the error, or losses."""
    layers = [part for _ in range(4) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    options = {"loss": nn.MSELoss(), "num_microbatches": 4, "compile": how}
    pipeline = Pipeline(nn.Sequential(*layers), group, **options)
    optimiser, losses = optim.SGD(pipeline.parameters(), 0.1), []
    try:
        for step in range(NUM_STEPS):
            if step == WHEN and group.rank == 1:
                SCENES[scene](pipeline, optimiser)
            losses.append(pipeline.step(X, X))
            optimiser.step()
    except MinipipeError as error:
        return f"{error.code}: {error}"
    return losses


@pytest.mark.parametrize("scene", SCENES)
def test_the_error_of_a_compiled_step_is_that_of_an_eager_one(scene):
    def result(how):
        try:
            return spawn(lambda group: trained(group, how, scene), 2, timeout=10)
        except (Exception, SystemExit) as error:
            return f"{type(error).__name__}: {error}"

    assert result(True) == result(False)
