"""Custom layers and losses that declare themselves compilable have eager bits."""

import cProfile
import gc
import weakref
from enum import IntEnum
from types import SimpleNamespace

import numpy as np
import pytest

from minipipe import Pipeline, Tensor, init_process_group, nn, optim
from minipipe.errors import ModelError

WIDTH = 4


class Heads(IntEnum):
    TWO = 2


class Own(nn.Module):
    """Computes a function of its input and itself."""

    is_compilable = True

    def __init__(self, function, **parts):
        self.function = function
        vars(self).update(parts)

    def forward(self, x):
        return self.function(self, x)


class Scalar(nn.Module):
    is_compilable = True

    def __init__(self):
        self.t = nn.Parameter((), nn.initialisers.constant(0.5))

    def forward(self, x):
        return x * self.t.exp()


class Outer(nn.Module):
    """A loss with a module inside."""

    is_compilable = True

    def __init__(self):
        self.inner = nn.Dropout(0.0)
        self.inner.factor = 1.0

    def forward(self, outputs, targets):
        return ((outputs - targets) * self.inner.factor).sum() * 0.1


def results(how, layer, loss=None, change=None, num_microbatches=2):
    """Return what nine steps leave, and the pipeline; change it before the sixth."""
    with init_process_group() as group:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *layer())
        options = {
            "loss": loss or nn.MSELoss(),
            "num_microbatches": num_microbatches,
            "compile": how,
        }
        pipeline = Pipeline(
            model, group, loss_weight=lambda targets: len(targets), **options
        )
        optimiser, random, found = (
            optim.SGD(pipeline.parameters(), 0.01),
            np.random.default_rng(0),
            [],
        )
        for step in range(9):
            if step == 5 and change is not None:
                change(pipeline)
            x = random.normal(size=(4, 3, WIDTH)).astype(np.float32)
            found.append(pipeline.step(x, x))
            found += [
                (type(p.grad), np.asarray(p.grad).tobytes())
                for p in pipeline.parameters()
            ]
            optimiser.step()
        return found, pipeline


def last(pipeline):
    return pipeline._stages[0].module.layers[-1]


def another_rate(pipeline):
    last(pipeline).held.layer.probability = 0.5


def powers(layer, x):
    return x * Tensor(((-1) ** (x.data > 0).astype(np.int64)).astype(np.float32))


CASES = {
    "an enumeration": (lambda: [nn.MultiHeadAttention(WIDTH, Heads.TWO)], None),
    "a power of a negative number": (lambda: [Own(powers)], None),
    "a scalar parameter": (lambda: [Scalar()], None),
    "a module in an object": (
        lambda: [
            Own(
                lambda s, x: s.held.layer(x),
                held=SimpleNamespace(layer=nn.Dropout(0.25)),
            )
        ],
        another_rate,
    ),
}


@pytest.mark.parametrize("num_microbatches", [1, 2])
@pytest.mark.parametrize(("layer", "change"), CASES.values(), ids=CASES)
def test_compiled_is_eager(layer, change, num_microbatches):
    compiled, pipeline = results(True, layer, None, change, num_microbatches)
    assert compiled == results(False, layer, None, change, num_microbatches)[0]
    assert pipeline.compile_report() == "step: stage 0 is compiled"


def test_a_gradient_for_a_tensor_outside_of_the_model_is_refused_and_not_lost():
    """The story: the trace did not notice it, and the tensor got no more gradients."""
    outside = Tensor(np.ones(WIDTH, np.float32), requires_grad=True)

    def layer():
        return [Own(lambda s, x: x * outside)]

    found = []
    for how in ("where-possible", False):
        outside.zero_grad()
        losses, _ = results(how, layer)
        found.append((losses, outside.grad.tobytes()))
    assert found[0] == found[1]
    with pytest.raises(ModelError, match="outside"):
        results(True, layer)


def test_attributes_of_modules_in_a_loss_are_guarded():
    def inside(pipeline):
        loss.inner.factor = 3.0

    loss = Outer()
    compiled, pipeline = results(True, lambda: [nn.Tanh()], loss, inside)
    assert pipeline.compile_report() == "step: stage 0 is compiled"
    loss = Outer()
    assert compiled == results(False, lambda: [nn.Tanh()], loss, inside)[0]


def test_a_patched_loss_is_refused_or_runs_eagerly():
    def patched(pipeline):
        loss.forward = lambda outputs, targets: (outputs - targets).sum()

    loss = nn.MSELoss()
    compiled, pipeline = results("where-possible", lambda: [nn.Tanh()], loss, patched)
    assert (
        pipeline.compile_report()
        == "step: stage 0 runs eagerly: the loss runs code of its own"
    )
    loss = nn.MSELoss()
    assert compiled == results(False, lambda: [nn.Tanh()], loss, patched)[0]
    loss = nn.MSELoss()
    with pytest.raises(
        ModelError, match="Stage 0 cannot be compiled: the loss runs code of its own"
    ):
        results(True, lambda: [nn.Tanh()], loss, patched)


def test_under_a_profiler_a_step_runs_as_without():
    profiler = cProfile.Profile()
    compiled, _ = profiler.runcall(
        results, True, lambda: [Own(lambda s, x: x * 2), nn.Tanh()]
    )
    assert compiled == results(False, lambda: [Own(lambda s, x: x * 2), nn.Tanh()])[0]


def test_values_that_were_replaced_are_kept_until_the_next_step_at_most():
    with init_process_group() as group:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        pipeline = Pipeline(
            model, group, loss=nn.MSELoss(), num_microbatches=1, compile=True
        )
        x = np.ones((4, WIDTH), np.float32)
        for _ in range(3):
            pipeline.step(x, x)
        assert pipeline.compile_report() == "step: stage 0 is compiled"
        old = [weakref.ref(p.data) for p in pipeline.parameters()]
        for parameter in pipeline.parameters():
            parameter.data = parameter.data * 2
        pipeline.step(x, x)
        gc.collect()
        assert all(each() is None for each in old)
