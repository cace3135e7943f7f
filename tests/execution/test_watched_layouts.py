"""``watch_everything`` finds changes in place in every layout, and changes no bit."""

import numpy as np
import pytest

from minipipe import Grid, Pipeline, nn, spawn, watch_everything
from minipipe.core.tensor import record
from minipipe.errors import TensorError
from tests.execution.offloaded_layers import LAYERS, X, linear
from tests.launch import covering


def squares(outputs, targets):
    return (outputs * outputs).mean()


def step(group, name, is_watched, **options):
    layers, inputs = LAYERS[name]
    grid = Grid(group, data=2, fully_sharded=True)
    pipeline = Pipeline(
        nn.Sequential(*layers()), grid, loss=squares, num_microbatches=4, **options
    )
    if is_watched:
        with watch_everything():
            loss = pipeline.step(inputs, inputs)
    else:
        loss = pipeline.step(inputs, inputs)
    gradients = [parameter.grad for parameter in pipeline.parameters()]
    return loss, [
        None if gradient is None else gradient.tobytes() for gradient in gradients
    ]


@pytest.mark.parametrize(
    ("name", "recompute", "schedule"),
    covering(LAYERS, [False, True], ["1f1b", "zb-h1"], strength=1),
)
def test_fully_sharded_layers_train_with_the_same_bits(name, recompute, schedule):
    options = {"recompute": recompute, "schedule": schedule}
    plain = spawn(lambda group: step(group, name, False, **options), 2)
    assert spawn(lambda group: step(group, name, True, **options), 2) == plain


class Spoiling(nn.Module):
    """Changes its result after an operation has recorded it."""

    def __init__(self, what):
        self.w, self.what = nn.Parameter(np.eye(6)), what

    def forward(self, x):
        y = x @ self.w
        z = record(y.data * y.data, (y, lambda g: 2 * g * y.data))
        {"activation": y, "input": x}[self.what].data[0, 0] += 1.0
        return z


@pytest.mark.parametrize("what", ["activation", "input"])
def test_a_change_of_an_activation_in_a_fully_sharded_layer_is_found(what):
    def train(group):
        grid = Grid(group, data=2, fully_sharded=True)
        pipeline = Pipeline(
            nn.Sequential(linear(), Spoiling(what), linear()),
            grid,
            loss=squares,
            num_microbatches=2,
        )
        with watch_everything():
            pipeline.step(X, X)

    with pytest.raises(TensorError, match="changed after the graph had recorded it"):
        spawn(train, 2)
