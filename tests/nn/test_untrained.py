"""Attributes that look like weights and are none: one warning, and none for
constants.
"""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from minipipe import Grid, Pipeline, Tensor, nn, optim, spawn
from tests.launch import for_each

WIDTH = 4
X = np.ones((4, WIDTH), np.float32)
REAL = np.linspace(0.5, 2.0, WIDTH).astype(np.float32)


class Holds(nn.Module):
    """A layer with one attribute, named scale."""

    def __init__(self, value, name="scale"):
        setattr(self, name, value)

    def forward(self, x):
        return x * 2.0


class Function(nn.Module):
    """A layer that has a loss inside."""

    def __init__(self, loss):
        self.loss = loss

    def forward(self, x):
        self.loss(x, np.zeros(len(x), int))
        return x


class Declared(Holds):
    not_trained = ("scale", "table")


class DeclaredByName(Holds):
    not_trained = "scale"


class NotCompared(Holds):
    not_compared = ("scale",)


class Slotted(Holds):
    __slots__ = ("scale",)


def patched(layer, **attributes):
    vars(layer).update(attributes)
    return layer


WEIGHTS = {
    "an array": lambda: Holds(REAL),
    "an array of float64": lambda: Holds(REAL.astype(np.float64)),
    "an array in half precision": lambda: Holds(REAL.astype(np.float16)),
    "a tensor": lambda: Holds(Tensor(REAL)),
    "a tensor that wants a gradient": lambda: Holds(Tensor(REAL, requires_grad=True)),
    "a number in a tensor": lambda: Holds(Tensor(1.5)),
    "arrays in a list": lambda: Holds([np.arange(3), REAL]),
    "a tensor in a dict in a tuple": lambda: Holds(({"inner": Tensor(REAL)},)),
    "parameters in a set": lambda: Holds({nn.Parameter(REAL)}),
    "a parameter in an object": lambda: Holds(
        SimpleNamespace(weight=nn.Parameter(REAL))
    ),
    "a layer in a set": lambda: Holds({nn.Linear(2, 2)}),
    "layers in an object": lambda: Holds(SimpleNamespace(inside=[nn.Linear(2, 2)])),
    "a parameter in a slot": lambda: Slotted(nn.Parameter(REAL)),
    "a subclass of a layer": lambda: patched(
        type("Mine", (nn.Linear,), {})(WIDTH, WIDTH), scale=REAL
    ),
    "a weight of a layer": lambda: patched(
        nn.Linear(WIDTH, WIDTH), weight=Tensor(np.eye(WIDTH, dtype=np.float32))
    ),
    "a layer with a forward of its own": lambda: patched(
        nn.Linear(WIDTH, WIDTH), scale=REAL, forward=lambda x: x * REAL
    ),
}
CONSTANTS = {
    "weights of classes": lambda: Function(nn.CrossEntropyLoss(class_weights=REAL)),
    "a parameter": lambda: Holds(nn.Parameter(REAL)),
    "parameters in a list": lambda: Holds([nn.Parameter(REAL)]),
    "whole numbers": lambda: Holds(np.arange(3)),
    "truth values": lambda: Holds(Tensor(np.tri(3, dtype=bool))),
    "a number": lambda: Holds(0.5),
    "a number of NumPy": lambda: Holds(np.float64(0.5)),
    "numbers in a list": lambda: Holds([0.5, 1.0]),
    "an empty array": lambda: Holds(np.zeros((0, 3))),
    "a text, nothing and a function": lambda: Holds(["scale", None, np.sin]),
    "an object of NumPy": lambda: Holds(np.random.default_rng(0)),
    "a layer without parameters in a set": lambda: Holds({nn.Tanh()}),
    "a number in a slot": lambda: Slotted(0.5),
    "an array of objects": lambda: Holds(np.array(["a", None], dtype=object)),
    "a private name": lambda: Holds(REAL, name="_cache"),
    "a declared constant": lambda: Declared(REAL),
    "a constant declared by one name": lambda: DeclaredByName(Tensor(REAL)),
    "what may differ by rank": lambda: NotCompared(REAL),
    "a note on a layer of minipipe": lambda: patched(
        nn.Linear(WIDTH, WIDTH), history=REAL
    ),
}
OWN = {  # minipipe's layers with tables and options of their own
    "a block": lambda: nn.Sequential(
        nn.Embedding(4, 8), nn.TransformerBlock(8, 2, True, rotary_base=100.0)
    ),
    "positions": lambda: nn.Sequential(
        nn.Embedding(4, 8), nn.PositionalEmbedding(4, 8), nn.LSTM(8, 8)
    ),
    "an image": lambda: nn.Sequential(
        nn.Conv2d(1, 2, 1), nn.GroupNorm(1, 2), nn.MaxPool2d(1), nn.Flatten()
    ),
    "a function of a constant": lambda: nn.Sequential(nn.Function(lambda x: x * REAL)),
}


def told(call):
    """Return the warnings of a call that speak of untrained numbers."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in caught if "not trained" in str(one.message)]


@for_each(make=WEIGHTS)
def test_what_looks_like_a_weight_and_is_none_is_told_once(make):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), make())

    def use():
        for _ in range(3):
            model(X)
        optim.SGD(model.parameters(), 0.1)

    (message,) = told(use)
    name, words = message.split(" holds real numbers that are not trained")
    assert (
        name.endswith((".scale", ".weight"))
        and f'not_trained = ("{name.partition(".")[2]}",)' in words
    )


@for_each(make=CONSTANTS)
def test_a_constant_is_not_told(make):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), make())
    assert told(lambda: model(X)) == []
    assert (
        told(lambda: spawn(lambda group: Pipeline(model, group, loss=nn.MSELoss()), 1))
        == []
    )


@for_each(make=OWN)
def test_layers_of_minipipe_are_not_told(make):
    assert (
        told(
            lambda: spawn(
                lambda group: Pipeline(make(), group, loss=nn.CrossEntropyLoss()), 1
            )
        )
        == []
    )


def steps(where):
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH),
        Holds(REAL),
        nn.Linear(WIDTH, WIDTH),
        Holds(Tensor(REAL), "shift"),
    )
    pipeline = Pipeline(model, where, loss=nn.MSELoss(), num_microbatches=2)
    for _ in range(3):
        pipeline.step(X, X)
    pipeline.predict(X)


@for_each(
    where={
        "two stages": (2, lambda group: group),
        "replicas": (2, lambda group: Grid(group, data=2)),
        "shared layers": (2, lambda group: Grid(group, tensor=2)),
        "fully sharded": (
            4,
            lambda group: Grid(group, pipeline=2, data=2, fully_sharded=True),
        ),
    }
)
def test_a_pipeline_tells_it_once_of_all_layers_and_on_one_rank(where):
    num_ranks, make = where
    (message,) = told(lambda: spawn(lambda group: steps(make(group)), num_ranks))
    assert message.startswith("Holds.scale, Holds.shift hold real numbers")


def test_the_warning_points_at_the_line_that_makes_the_pipeline():
    def make(group):
        with pytest.warns(UserWarning, match="not trained") as caught:
            Pipeline(nn.Sequential(Holds(REAL)), group, loss=nn.MSELoss())
        return caught[0].filename

    assert spawn(make, 1) == [__file__]
    with pytest.warns(UserWarning, match="not trained") as caught:
        Holds(REAL)(Tensor(X))
    assert caught[0].filename == __file__
