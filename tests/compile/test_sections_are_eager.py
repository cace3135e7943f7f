"""Compiled sections have the bits of eager ones, in any order of the microbatches."""

import numpy as np
import pytest

from minipipe import Tensor, functional, nn
from minipipe.compile import outlining, printing
from minipipe.compile.sections import Sections
from tests.compile.driver import compiled, eager, traced
from tests.compile.stages import (
    FLAT,
    HALVES,
    MODELS,
    ROWS,
    job_of,
    job_of_function,
    language_model,
)
from tests.launch import covering


def check(job, row, how="static", **options):
    steps = {**ROWS, **HALVES}[row]
    trace = traced(job, is_split=row in HALVES)
    assert trace.reason is None, trace.reason
    sections = Sections(trace, 0, how, **options)
    assert compiled(job, trace, steps, sections) == eager(job, steps), sections.source


@pytest.mark.parametrize(
    ("model", "row"), covering([*MODELS], [*ROWS, *HALVES], strength=1)
)
def test_a_stage_has_the_bits_of_an_eager_one(model, row):
    check(job_of(*MODELS[model]), row)


@pytest.mark.parametrize(
    ("model", "row"), covering([*MODELS], ["interleaved", "mixed"], strength=1)
)
def test_so_has_a_stage_whose_values_can_leave_their_slots(model, row):
    check(job_of(*MODELS[model]), row, keeps="values")


@pytest.mark.parametrize(
    ("model", "row"), covering([*MODELS], ["interleaved", "mixed"], strength=1)
)
def test_so_has_a_stage_of_large_arrays(model, row, monkeypatch):
    """They are freed after their last use, and constants are not repeated."""
    monkeypatch.setattr(printing, "SMALL", -1)
    check(job_of(*MODELS[model]), row)


@pytest.mark.parametrize(
    ("model", "row"), covering([*MODELS], ["interleaved", "mixed"], strength=1)
)
@pytest.mark.parametrize("least", [pytest.param(2, marks=pytest.mark.slow), 5])
def test_so_has_a_stage_of_which_any_lines_are_a_block(model, row, least, monkeypatch):
    monkeypatch.setattr(outlining, "LEAST", least)
    check(job_of(*MODELS[model]), row)


def test_layers_that_are_alike_become_one_function():
    job = job_of(*MODELS["blocks with dropout"])
    source = Sections(traced(job, is_split=False), 0).source
    for section in ("forward", "backward"):
        assert source.count(f"def {section}_0_block(") == 1
        assert source.count(f"    {section}_0_block(") > 1
    assert len(source.splitlines()) < 350


@pytest.mark.parametrize("model", ["mlp", "twice", "block with dropout", "recomputed"])
@pytest.mark.parametrize("row", ["interleaved", "mixed"])
def test_leaves_get_the_bits_of_an_eager_stage(model, row):
    check(job_of(*MODELS[model]), row, "leaves")


@pytest.mark.parametrize("model", ["mlp", "block"])
@pytest.mark.parametrize("row", ["interleaved", "mixed"])
@pytest.mark.parametrize(
    "loss",
    [
        nn.MSELoss(),
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(ignore_index=1, label_smoothing=0.1),
        nn.CrossEntropyLoss(class_weights=[1.0, 0.5, 2.0, 3.0, 0.0, 1.0, 1.0, 1.0]),
    ],
)
def test_a_last_stage_has_the_bits_of_an_eager_one(model, row, loss):
    check(job_of(*MODELS[model], loss), row)


@pytest.mark.parametrize("row", [*ROWS, *HALVES])
def test_a_first_stage_of_whole_numbers_has_the_bits_of_an_eager_one(row):
    check(language_model(), row)


# Results that are inputs, views, one another, or zeros with a sign.
RESULTS = {
    "the input": lambda x, y: [x, y],
    "one input twice": lambda x, y: [x, x],
    "one result twice": lambda x, y: [z := x * y, z],
    "a view of a result": lambda x, y: [z := x * y, z.transpose(1, 0)],
    "a view of an input": lambda x, y: [x.transpose(1, 0), y[:, ::2]],
    "a result that another needs": lambda x, y: [z := x + y, z * z, functional.tanh(z)],
    "negative zeros": lambda x, y: [x * -0.0, y * 0.0],
    "without axes": lambda x, y: [(x * y).sum(), x.mean()],
    "a column": lambda x, y: [(x + y)[:, :1], (x + y).sum(axis=1, keepdims=True)],
    "of one operand": lambda x, y: [functional.exp(x), x * x, x + x],
}


@pytest.mark.parametrize("results", RESULTS.values(), ids=RESULTS)
@pytest.mark.parametrize("row", ["gpipe", "mixed"])
def test_results_lie_apart(results, row):
    check(job_of_function(lambda tensors: results(*tensors), FLAT, FLAT), row)


@pytest.mark.parametrize("row", ["gpipe", "mixed"])
def test_gradients_in_half_precision_overflow_without_a_warning(row, recwarn):
    job = job_of(*MODELS["half"])
    job = job._replace(seed_of=lambda k, i, result: np.full_like(result, 3e38))
    with np.errstate(all="ignore"):
        trace = traced(job, is_split=row in HALVES)
        expected = eager(job, {**ROWS, **HALVES}[row])
    assert compiled(job, trace, {**ROWS, **HALVES}[row]) == expected
    assert not recwarn


@pytest.mark.parametrize("value", [0.0, -0.0])
def test_the_first_contribution_keeps_the_sign_of_zero(value):
    weight = Tensor(np.ones(FLAT[1], np.float32), requires_grad=True)
    job = job_of_function(lambda tensors: [weight * (tensors[0] * value)], FLAT)
    check(job._replace(parameters=[weight]), "gpipe")
