"""A rank freezes parameters, so another rank gets activations that need no gradient."""

import sys
from itertools import cycle, starmap

import numpy as np
import pytest

from minipipe import Pipeline, init_process_group, nn, optim, spawn
from tests.launch import mpirun, needs_mpi, sample_of, slowly

WIDTH, STEPS = 4, 14
FREEZES = {"after some steps": (5, 9), "at once": (1, 7)}


def trained(group, how, name, num_layers, freezes):
    """Return losses and gradients; the first layers are frozen for some steps."""
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(12)]
    model = nn.Sequential(*(part for each in layers for part in (each, nn.Tanh())))
    options = {"loss": nn.MSELoss(), "num_microbatches": 4, "schedule": name}
    pipeline, found = Pipeline(model, group, compile=how, **options), []
    optimiser = optim.SGD(pipeline.parameters(), 0.1)
    x = np.random.default_rng(0).normal(size=(8, WIDTH)).astype(np.float32)
    for step in range(STEPS):
        for parameter_name, parameter in pipeline.named_parameters():
            is_first = int(parameter_name.partition(".")[0]) < 2 * num_layers
            parameter.requires_grad = not (is_first and freezes[0] <= step < freezes[1])
        found.append(float(pipeline.step(x, x)))
        for parameter in pipeline.parameters():
            gradient = parameter.grad
            found.append(None if gradient is None else gradient.tobytes())
        optimiser.step()
    return found, pipeline.compile_report()


NAMES, COUNTS = ("1f1b", "zb-h1", "interleaved-1f1b", "zb-v"), (1, 3, 6, 11)
# Every number of layers, every time and every schedule.
SAMPLE = {(name, 2, *rest) for *rest, name in zip(COUNTS, cycle(FREEZES), NAMES)}
# Of the other cells, any three of the four values together.
OTHERS = [
    cell
    for cell in sample_of(NAMES, (2, 3, 4), COUNTS, FREEZES, strength=3)
    if cell not in SAMPLE
]


@pytest.mark.parametrize(
    ("name", "ranks", "num_layers", "when"),
    [*sorted(SAMPLE), *starmap(slowly, OTHERS)],
)
def test_layers_may_be_frozen_and_trained_again(name, ranks, num_layers, when):
    """The stories: a rank expected the form before; it sent no gradient, ever after."""
    freezes = FREEZES[when]
    compiled, eager = (
        spawn(lambda group: trained(group, how, name, num_layers, freezes), ranks)
        for how in (True, False)
    )
    for rank, ((found, report), (expected, _)) in enumerate(zip(compiled, eager)):
        assert found == expected, f"rank {rank}"
        assert all(line.endswith("is compiled") for line in report.splitlines())


@needs_mpi
@pytest.mark.slow  # in short: test_rows_over_mpi.py
def test_layers_may_be_frozen_and_trained_again_over_mpi():
    done = mpirun(2, "-m", "tests.compile.test_frozen_between_steps", 3, 6)
    assert done.code == 0, done.err


if __name__ == "__main__":
    with init_process_group() as world:
        for count in map(int, sys.argv[1:]):
            training = "1f1b", count, (5, 9)
            expected, _ = trained(world, False, *training)
            assert trained(world, True, *training)[0] == expected
