"""Honest runs of minipipe: every schedule and device mesh, and other numbers of
microbatches, differ by the order of summation, and wrong ones by more.
"""

import functools

import numpy as np
import pytest

from minipipe import Grid, Pipeline, nn, optim, schedules, spawn
from minipipe.core.comm.host import limit_blas_threads
from minipipe.testing import Verdict, one_process_step, referee
from tests.launch import slowly
from tests.strategies import NAMES

WIDTH = 8
HONEST = (Verdict.EQUAL, Verdict.ORDER)
GRIDS = (
    {"pipeline": 2, "data": 2},
    {"pipeline": 2, "tensor": 2},
    {"pipeline": 1, "data": 2, "tensor": 2},
)


def model_of():
    """Return enough layers for the stages of every schedule."""
    layers = [nn.Linear(6, WIDTH), nn.Tanh()]
    for _ in range(7):
        layers += [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 4))


def data():
    """Return inputs and targets that can be learnt."""
    x = np.random.default_rng(0).standard_normal((24, 6)).astype(np.float32)
    return x, np.tanh(x[:, :4] - x[:, 2:])


def run(num_ranks, grid=None, steps=6, **options):
    """Return losses, and the weights before and after the first step."""

    def train(group):
        mesh = Grid(group, **grid) if grid else group
        loss = nn.MSELoss()
        pipeline = Pipeline(model_of(), mesh, loss=loss, seed=1, **options)
        optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.5)
        record = {}
        losses = []
        for step in range(steps):
            if step < 2:
                for name, value in pipeline.state_dict().items():
                    record[f"step/{step}/weights/{name}"] = value
            losses.append(pipeline.step(*data()))
            optimiser.step()
        return {"loss": losses, **record}

    return spawn(train, num_ranks)[0]


@functools.cache
def alone():
    """Return the run of one process, with three microbatches."""
    return run(1, num_microbatches=3)


@pytest.mark.parametrize(
    "name", [name if name in ("1f1b", "zb-h1") else slowly(name) for name in NAMES]
)
def test_every_schedule_differs_by_the_order_of_summation(name):
    schedule = schedules.build(name, 2, 4)
    report = referee(alone(), run(2, schedule=schedule), optimiser="sgd")
    assert report.verdict in HONEST, report


@pytest.mark.parametrize("grid", [*GRIDS[:1], *map(slowly, GRIDS[1:])], ids=str)
def test_so_does_every_device_mesh(grid):
    num_ranks = int(np.prod(list(grid.values())))
    report = referee(alone(), run(num_ranks, grid, num_microbatches=4), optimiser="sgd")
    assert report.verdict in HONEST, report


def gradients_of(num_microbatches, scale=1.0):
    """Return the gradients of the first step in one process."""
    model = model_of()
    model.initialise(1)
    x, y = data()
    with limit_blas_threads(1):
        result = one_process_step(model, nn.MSELoss(), x, y, num_microbatches)
    named = result.gradients.items()
    return {f"gradients/{name}": scale * gradient for name, gradient in named}


@pytest.mark.parametrize("count", [2, 5, 24])
def test_another_number_of_microbatches_is_an_order_and_a_scaled_loss_is_not(count):
    assert referee(gradients_of(1), gradients_of(count)).verdict is Verdict.ORDER
    scaled = gradients_of(count, np.float32(1 / count))
    report = referee(gradients_of(1), scaled)
    assert (report.verdict, "is scaled" in report.evidence) == (Verdict.BUG, True)
