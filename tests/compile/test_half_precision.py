"""Compiled steps in half precision have the bits of eager ones, overflows too."""

import numpy as np
import pytest

from minipipe import Pipeline, nn, optim, spawn
from tests.half_precision import every_half
from tests.launch import covering

WIDTH, SYMBOLS = 8, 7


def dense(half):
    layers = [nn.Linear(WIDTH, WIDTH, dtype=half), nn.LayerNorm(WIDTH, dtype=half)]
    return nn.Sequential(*layers, nn.GELU(), nn.Linear(WIDTH, SYMBOLS, dtype=half))


def language(half):
    embedding = nn.Embedding(SYMBOLS, WIDTH, dtype=half)
    block = nn.TransformerBlock(WIDTH, 2, is_causal=True, dropout=0.1, dtype=half)
    return nn.Sequential(embedding, block, nn.Linear(WIDTH, SYMBOLS, dtype=half))


def images(half):
    layers = [nn.Conv2d(1, 3, 3, padding=1, dtype=half), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(12, SYMBOLS, dtype=half))


SHAPES = {dense: (WIDTH,), language: (3,), images: (1, 4, 4)}


def trained(group, how, make, half, schedule, scale):
    options = {"loss": nn.CrossEntropyLoss(), "num_microbatches": 4, "compile": how}
    pipeline = Pipeline(make(half), group, schedule=schedule, **options)
    optimiser = optim.Adam(pipeline.parameters(), 0.01)
    scale = optim.LossScale(scale, growth_interval=2)
    random, found = np.random.default_rng(0), []
    for _ in range(6):
        x = random.normal(size=(12, *SHAPES[make])).astype(half)
        if make is language:
            x = random.integers(0, SYMBOLS, (12, 3))
        labels = random.integers(0, SYMBOLS, x.shape[:1] + (3,) * (make is language))
        found.append(pipeline.step(x, labels, scale=scale.value))
        if pipeline.unscale_gradients(scale):
            found += [p.grad.tobytes() for p in pipeline.parameters()]
            optimiser.step()
    found += [scale.value, *(a.tobytes() for a in pipeline.state_dict().values())]
    return found, pipeline.compile_report()


@every_half
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("make", "schedule"), covering(SHAPES, ["1f1b", "zb-h1"], strength=1)
)
@pytest.mark.parametrize(
    "scale",  # with the larger one gradients overflow, and steps are left out
    [pytest.param(1.0, marks=pytest.mark.slow), 2.0**30],
)
def test_a_compiled_step_in_half_precision_has_the_bits_of_an_eager_one(
    half, make, schedule, scale
):
    def both(group):
        given = make, half, schedule, scale
        return trained(group, False, *given)[0], trained(group, True, *given)

    for eager, (compiled, report) in spawn(both, num_ranks=2, take_turns=True):
        assert compiled == eager, report
        assert "is compiled" in report
