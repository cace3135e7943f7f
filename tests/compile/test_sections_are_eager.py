"""Compiled sections have the bits of eager ones, in any order of the microbatches."""

from functools import partial

import numpy as np
import pytest

from minipipe import nn
from minipipe.compile.sections import Sections
from minipipe.nn.sequential import parameters_of
from tests.compile.driver import Job, compiled, eager, seeds, traced

WIDTH = 8
ROWS = {
    "1f1b": [("F", 0), ("B", 0), ("F", 1), ("B", 1), ("F", 2), ("B", 2)],
    "gpipe": [("F", 0), ("F", 1), ("F", 2), ("B", 2), ("B", 1), ("B", 0)],
    "interleaved": [("F", 1), ("F", 0), ("B", 0), ("F", 2), ("B", 1), ("B", 2)],
}
HALVES = {
    "zb-h1": [(kind, k) for k in range(3) for kind in "FIW"],
    "late": [(kind, k) for kind in "FIW" for k in range(3)],
    "mixed": [
        *[("F", 0), ("F", 1), ("I", 1), ("F", 2), ("I", 0)],
        *[("W", 0), ("I", 2), ("W", 2), ("W", 1)],
    ],
}


def mlp():
    layers = [part for _ in range(3) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def dropout():
    parts = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3), nn.GELU(), nn.LayerNorm(WIDTH)
    return nn.Sequential(*parts)


def block(**options):
    return nn.Sequential(nn.TransformerBlock(WIDTH, 2, **options))


def tied():
    first, last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    last.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), first, nn.ReLU(), last)


def convolution():
    return nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))


FLAT, ROWS_OF_TOKENS = (6, WIDTH), (3, 4, WIDTH)
MODELS = {
    "mlp": (mlp, FLAT),
    "dropout": (dropout, FLAT),
    "tied": (tied, FLAT),
    "block": (partial(block, is_causal=True), ROWS_OF_TOKENS),
    "block with dropout": (partial(block, dropout=0.2), ROWS_OF_TOKENS),
    "convolution": (convolution, (3, 2, 4, 4)),
}


def job_of(model, shape, loss=None):
    model = model().initialise()

    def inputs(k):
        random = np.random.default_rng(k)
        x = random.normal(size=shape).astype(np.float32)
        if loss is None:
            return [(x, True)]
        if isinstance(loss, nn.CrossEntropyLoss):
            return [(x, True), (random.integers(0, WIDTH, shape[:-1]), False)]
        return [(x, True), (random.normal(size=shape).astype(np.float32), False)]

    def compute(tensors):
        result = model(tensors[0])
        return [result if loss is None else loss(result, tensors[1])]

    parameters = {id(p): p for layer in model for p in parameters_of(layer)}
    return Job(compute, list(parameters.values()), inputs, seeds)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("row", [*ROWS, *HALVES])
def test_a_stage_has_the_bits_of_an_eager_one(model, row):
    job, steps = job_of(*MODELS[model]), {**ROWS, **HALVES}[row]
    trace = traced(job, is_split=row in HALVES)
    assert compiled(job, trace, steps) == eager(job, steps), Sections(trace, 0).source


@pytest.mark.parametrize("model", ["mlp", "block"])
@pytest.mark.parametrize("row", ["interleaved", "mixed"])
@pytest.mark.parametrize(
    "loss", [nn.MSELoss(), nn.CrossEntropyLoss(), nn.CrossEntropyLoss(ignore_index=1)]
)
def test_a_last_stage_has_the_bits_of_an_eager_one(model, row, loss):
    job, steps = job_of(*MODELS[model], loss), {**ROWS, **HALVES}[row]
    trace = traced(job, is_split=row in HALVES)
    assert compiled(job, trace, steps) == eager(job, steps), Sections(trace, 0).source
