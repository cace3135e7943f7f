"""Programs that cannot be exported are refused with the reason."""

import numpy as np
import pytest

from minipipe import Pipeline, errors, nn, optim, spawn
from minipipe.compile.export.following import Follower, noting


def sgd(parameters):
    return optim.SGD(parameters, 0.1)


def follow(train_step, optimiser=None, **options):
    """Follow eight steps of a small program."""
    followers = {}

    def train(group):
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        given = {"loss": nn.MSELoss(), "num_microbatches": 2, "compile": True}
        pipeline = Pipeline(model, group, **{**given, **options})
        own = (optimiser or sgd)(pipeline.parameters())
        follower = followers[id(pipeline)] = Follower(pipeline, "train.py", 2)
        for i in range(15):
            if follower.begin_step():
                break
            train_step(i, pipeline, own, np.full((4, 8), i, np.float32))
        follower.finished()

    with noting(followers):
        spawn(train, num_ranks=1)


def usual(i, pipeline, optimiser, x):
    pipeline.step(x, x)
    optimiser.step()


def scaled(i, pipeline, optimiser, x):
    pipeline.step(x, x, scale=2.0)
    optimiser.step()


def measured(i, pipeline, optimiser, x):
    pipeline.step(x, x, metrics={"zero": lambda outputs, targets: 0.0})
    optimiser.step()


def updated_twice(i, pipeline, optimiser, x):
    usual(i, pipeline, optimiser, x)
    optimiser.step()


def of_two_forms(i, pipeline, optimiser, x):
    usual(i, pipeline, optimiser, x[: 4 - i % 2])


def clipped_to_several(i, pipeline, optimiser, x):
    pipeline.step(x, x)
    pipeline.clip_grad_norm(1.0 + i)
    optimiser.step()


class SignDescent(optim.Optimiser):
    def _update(self, data, gradient, state, group):
        data -= group.learning_rate * np.sign(gradient)


def in_two_groups(parameters):
    first, *others = parameters
    return optim.SGD([{"parameters": [first]}, {"parameters": others}], 0.1)


@pytest.mark.parametrize(
    "train_step, optimiser, words",
    [
        (scaled, None, "loss scale"),
        (measured, None, "asks for more than the loss"),
        (updated_twice, None, "2 updates"),
        (of_two_forms, None, "expected equal compiled steps"),
        (clipped_to_several, None, "one norm"),
        (
            usual,
            lambda p: SignDescent(p, learning_rate=0.1),
            "SignDescent; expected SGD, Adam, AdamW",
        ),
        (usual, optim.Muon, "Muon; expected SGD, Adam, AdamW"),
        (usual, in_two_groups, "several groups"),
        (usual, lambda p: optim.SGD(list(p)[:2], 0.1), "expected all that are trained"),
    ],
)
def test_what_cannot_be_exported_is_refused(train_step, optimiser, words):
    with pytest.raises(errors.MinipipeError, match=words):
        follow(train_step, optimiser)


def test_a_program_that_ends_early_is_refused():
    def few(i, pipeline, optimiser, x):
        if i < 4:
            usual(i, pipeline, optimiser, x)

    with pytest.raises(errors.ArgumentError, match="ended after 1 of 2 compiled steps"):
        follow(few)
