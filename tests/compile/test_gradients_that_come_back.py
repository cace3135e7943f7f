"""A gradient that comes back to a compiled stage from one that runs eagerly."""

import numpy as np
import pytest

from minipipe import Pipeline, Tensor, functional, nn, spawn
from minipipe.errors import MinipipeError

WIDTH = 4


def trained(group, how, layer, schedule):
    """Return losses and gradients of steps whose second stage is never compiled."""
    last = nn.Sequential(layer, nn.Linear(WIDTH, WIDTH))
    stages = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), last
    options = {"loss": nn.MSELoss(), "num_microbatches": 2, "schedule": schedule}
    pipeline = Pipeline.from_modules(stages, group, compile=how, **options)
    found = []
    for x in np.random.default_rng(0).normal(size=(6, 4, WIDTH)).astype(np.float32):
        found.append(pipeline.step(x, x))
        found += [
            None if p.grad is None else p.grad.tobytes() for p in pipeline.parameters()
        ]
    return found, pipeline.compile_report()


class Turned(nn.Module):
    """Returns a gradient in Fortran order."""

    def forward(self, x):
        return x.T.reshape(WIDTH, -1).T


class Unrelated(nn.Module):
    """Has results that do not depend on its input, which gets no gradient."""

    def forward(self, x):
        return Tensor(np.ones(x.shape, np.float32))


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.filterwarnings("ignore:The first step left no gradient")
@pytest.mark.parametrize(
    "layer", [Turned, Unrelated, lambda: nn.Function(functional.tanh)]
)
def test_gradients_in_any_order_and_none_at_all_have_the_bits_of_eager_steps(
    layer, schedule
):
    compiled, eager = (
        spawn(lambda group, how=how: trained(group, how, layer(), schedule), 2)
        for how in ("where-possible", False)
    )
    assert [found for found, _ in compiled] == [found for found, _ in eager]
    assert compiled[1][1].startswith("step: stage 1 runs eagerly: layer 2,")


class Sometimes(nn.Module):
    """Gives its input a gradient in the first steps alone."""

    def __init__(self):
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * 2 if self.calls <= 6 else Tensor(np.ones(x.shape, np.float32))


def test_a_gradient_that_stops_to_come_is_an_error_and_no_wrong_number():
    with pytest.raises(MinipipeError):
        spawn(lambda group: trained(group, "where-possible", Sometimes(), "1f1b"), 2)
