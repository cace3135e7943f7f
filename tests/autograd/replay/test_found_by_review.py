"""What a review found: replayed steps that had other bits than eager ones, or raised, or kept arrays."""

import cProfile
import gc
import weakref
from enum import IntEnum
from types import SimpleNamespace

import numpy as np
import pytest

from minipipe import Pipeline, Tensor, init_process_group, nn, optim

WIDTH = 4


class Heads(IntEnum):
    TWO = 2


class Own(nn.Module):
    """Computes a function of its input and itself."""

    is_replayable = True

    def __init__(self, function, **parts):
        self.function = function
        vars(self).update(parts)

    def forward(self, x):
        return self.function(self, x)


class Scalar(nn.Module):
    is_replayable = True

    def __init__(self):
        self.t = nn.Parameter((), nn.initialisers.constant(0.5))

    def forward(self, x):
        return x * self.t.exp()


class Outer(nn.Module):
    """A loss with a module inside."""

    is_replayable = True

    def __init__(self):
        self.inner = nn.Dropout(0.0)
        self.inner.factor = 1.0

    def forward(self, outputs, targets):
        return ((outputs - targets) * self.inner.factor).sum() * 0.1


def results(replay, layer, loss=None, change=None, num_microbatches=2):
    """Return what some steps leave, and the pipeline; ``change`` is called before the sixth of nine."""
    with init_process_group() as group:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *layer())
        options = {"loss": loss or nn.MSELoss(), "num_microbatches": num_microbatches, "replay": replay}
        pipeline = Pipeline(model, group, loss_weight=lambda targets: len(targets), **options)
        optimiser, random, found = optim.SGD(pipeline.parameters(), 0.01), np.random.default_rng(0), []
        for step in range(9):
            if step == 5 and change is not None:
                change(pipeline)
            x = random.normal(size=(4, 3, WIDTH)).astype(np.float32)
            found.append(pipeline.step(x, x))
            found += [(type(p.grad), np.asarray(p.grad).tobytes()) for p in pipeline.parameters()]
            optimiser.step()
        return found, pipeline


def last(pipeline):
    return pipeline._stages[0].module.layers[-1]


def another_rate(pipeline):
    last(pipeline).held.layer.probability = 0.5


def powers(layer, x):
    return x * Tensor(((-1) ** (x.data > 0).astype(np.int64)).astype(np.float32))


OUTSIDE = Tensor(np.ones(WIDTH, np.float32), requires_grad=True)
CASES = {
    "an enumeration": (lambda: [nn.MultiHeadAttention(WIDTH, Heads.TWO)], None),
    "a power of a negative number": (lambda: [Own(powers)], None),
    "a scalar parameter": (lambda: [Scalar()], None),
    "a module in an object": (
        lambda: [Own(lambda s, x: s.held.layer(x), held=SimpleNamespace(layer=nn.Dropout(0.25)))],
        another_rate,
    ),
    "a tensor outside": (lambda: [Own(lambda s, x: x * OUTSIDE)], None),
}


@pytest.mark.parametrize("num_microbatches", [1, 2])
@pytest.mark.parametrize(("layer", "change"), CASES.values(), ids=CASES)
def test_replayed_is_eager(layer, change, num_microbatches):
    found = []
    for replay in (True, False):
        OUTSIDE.zero_grad()
        found.append((results(replay, layer, None, change, num_microbatches)[0], OUTSIDE.grad is None))
        found[-1] += (None if OUTSIDE.grad is None else OUTSIDE.grad.tobytes(),)
    assert found[0] == found[1]


def test_a_loss_is_looked_into_and_a_patched_one_stays_eager():
    def patched(pipeline):
        loss.forward = lambda outputs, targets: (outputs - targets).sum()

    def inside(pipeline):
        loss.inner.factor = 3.0

    for make, change in ((nn.MSELoss, patched), (Outer, inside)):
        loss = make()
        replayed, _ = results(True, lambda: [nn.Tanh()], loss, change)
        loss = make()
        assert replayed == results(False, lambda: [nn.Tanh()], loss, change)[0]


def test_under_a_profiler_a_step_runs_as_without():
    profiler = cProfile.Profile()
    replayed, _ = profiler.runcall(results, True, lambda: [Own(lambda s, x: x * 2), nn.Tanh()])
    assert replayed == results(False, lambda: [Own(lambda s, x: x * 2), nn.Tanh()])[0]


def test_values_that_were_replaced_are_not_kept():
    _, pipeline = results(True, lambda: [nn.Tanh()])
    assert pipeline.replay_report().startswith("stage 0: replays")
    old = [weakref.ref(p.data) for p in pipeline.parameters()]
    for parameter in pipeline.parameters():
        parameter.data = parameter.data * 2
    gc.collect()
    assert [each() for each in old] == [None] * len(old)
