"""Networks of every kind of layer, cut at every place: the same bits as one process."""

import array_api_strict
import numpy as np
import pytest

from minipipe import Pipeline, Tensor, nn, spawn
from minipipe.testing import (
    check_independent_of_microbatches,
    check_same_as_one_process,
)
from tests.launch import covering
from tests.strategies import build, split_backward

NAMES = ["gpipe", "1f1b", "zb-h1", "zb-v"]


def convolutional() -> nn.Sequential:
    """Return nine layers, from images of shape (n, 2, 8, 8) to scores of shape (n,
    3).
    """
    # No bias where each channel is a group: the norm takes it off again, and its
    # gradient is rounding.
    depthwise = nn.Conv2d(4, 4, 3, padding="same", dilation=2, groups=4, bias=False)
    return nn.Sequential(
        nn.Conv2d(2, 4, 4, padding="same"),
        nn.GroupNorm(2, 4),
        nn.SiLU(),
        nn.Residual(depthwise, nn.GroupNorm(4, 4), nn.Conv2d(4, 4, 1)),
        nn.AvgPool2d(2),
        nn.Conv2d(4, 6, 3, groups=2),
        nn.GroupNorm(1, 6),
        nn.GlobalAvgPool(),
        nn.Linear(6, 3),
    )


def over_series() -> nn.Sequential:
    """Return eight layers, from series of shape (n, 2, 12) to scores of shape (n,
    3).
    """
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, padding="same", dilation=2, groups=2, bias=False),
        nn.GroupNorm(4, 4),
        nn.MaxPool1d(3, stride=2),
        nn.Tanh(),
        nn.Conv1d(4, 3, 2),
        nn.AvgPool1d(2),
        nn.Flatten(),
        nn.Linear(6, 3),
    )


def recurrent() -> nn.Sequential:
    """Return seven layers, from sequences of shape (n, 5, 3) to scores of shape (n,
    3).
    """
    return nn.Sequential(
        nn.LSTM(3, 4),
        nn.LayerNorm(4),
        nn.LSTM(4, 4, bias=False),
        nn.Residual(nn.LSTM(4, 4), nn.Dropout(0.2)),
        nn.Linear(4, 2),
        nn.Flatten(),
        nn.Linear(10, 3),
    )


MODELS = {
    "convolutional": (convolutional, (2, 8, 8)),
    "over series": (over_series, (2, 12)),
    "recurrent": (recurrent, (5, 3)),
}


def batch(
    shape: tuple[int, ...], num_samples: int = 9
) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs of shape (n, *shape) in float32, and labels of shape (n,), 0 to
    2.
    """
    generator = np.random.default_rng(0)
    return generator.standard_normal((num_samples, *shape)).astype(
        np.float32
    ), generator.integers(0, 3, num_samples)


@pytest.mark.parametrize(("model", "name"), covering(MODELS, NAMES, strength=1))
def test_every_network_has_the_gradients_of_one_process_bit_for_bit(model, name):
    make, shape = MODELS[model]
    schedule = build(name, 3, 4)
    for recompute in (False, True):
        check_same_as_one_process(
            make(), nn.CrossEntropyLoss(), *batch(shape), schedule, recompute=recompute
        )


@pytest.mark.parametrize(("make", "shape"), MODELS.values(), ids=MODELS)
def test_so_it_has_where_each_layer_is_a_stage_and_w_comes_late(make, shape):
    schedule = split_backward(build("1f1b", len(make()), 3), delay=2)
    check_same_as_one_process(make(), nn.CrossEntropyLoss(), *batch(shape), schedule)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "shape"), MODELS.values(), ids=MODELS)
def test_so_it_has_with_another_array_module(make, shape):
    schedule = build("zb-h1", 2, 3)
    check_same_as_one_process(
        make(), nn.CrossEntropyLoss(), *batch(shape), schedule, device=array_api_strict
    )


@pytest.mark.parametrize(("make", "shape"), MODELS.values(), ids=MODELS)
def test_no_layer_depends_on_the_number_of_microbatches(make, shape):
    inputs, labels = batch(shape, 8)

    def check(group):
        check_independent_of_microbatches(
            Pipeline(make(), group, loss=nn.CrossEntropyLoss()), inputs, labels
        )

    spawn(check, 2)


X = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)


Y = np.random.default_rng(1).standard_normal((8, 3)).astype(np.float32)


class Constant(nn.Module):
    """Its result is a parameter itself."""

    def __init__(self):
        self.weight = nn.Parameter((2, 3), nn.initialisers.he_uniform(3))

    def forward(self, x):
        return self.weight


class UsesItOften(nn.Module):
    def __init__(self):
        self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.one(x) * 1.3 + self.other(x) * x + x * x


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "gpipe"])
def test_a_layer_that_hands_on_a_parameter_itself_trains_as_in_one_process(
    name, recompute
):
    """Each use added its gradient to the parameter by itself uncut, and the sum of them
    did where the model was cut.

    Split, the backward even took the parameter for changed in place.
    """
    model = nn.Sequential(Constant(), UsesItOften())
    y = Y[:, :3]
    check_same_as_one_process(
        model, nn.MSELoss(), X, y, build(name, 2, 4), recompute=recompute
    )
    check_same_as_one_process(
        nn.Sequential(nn.Recompute(Constant()), UsesItOften()),
        nn.MSELoss(),
        X,
        y,
        build(name, 2, 4),
    )


def test_recompute_of_a_parameter_itself_and_of_one_result_twice_changes_no_bit():
    """A node of its own for each result added up some gradients before the others."""

    class Twice(nn.Module):
        def __init__(self):
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            y = self.layer(x)
            return y, y

    def gradients(wrap):
        model, constant, use = wrap(Twice()), wrap(Constant()), UsesItOften()
        for module in (model, constant, use):
            module.initialise(0)
        a, b = model(Tensor(X[:2]))
        c = constant(Tensor(X[:2]))
        (use(a) * 1.1 + b.tanh() * 0.7 + a * a * 0.3 + use(c) * c).sum().backward()
        return [
            p.grad.tobytes() for m in (model, constant, use) for p in m.parameters()
        ]

    assert gradients(nn.Recompute) == gradients(lambda module: module)
