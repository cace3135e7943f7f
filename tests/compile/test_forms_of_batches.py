"""A rank that reads no inputs still learns that the inputs have another form."""

import numpy as np
import pytest

from minipipe import Microbatches, Pipeline, nn, optim, spawn
from tests.launch import slowly

LENGTHS = [*[(4, 4)] * 3, *[(6, 6)] * 3, (4, 4), (6, 4), (6, 4), (4, 6), (6, 4), (4, 4)]


def lengths_of(kind):
    """Return the batches of some steps: sequences of other lengths on the way."""
    rng = np.random.default_rng(0)
    for lengths in LENGTHS:
        parts = [rng.normal(size=(2, n, 3)).astype(np.float32) for n in lengths]
        if kind == "whole" and len(set(lengths)) == 1:
            yield np.concatenate(parts)
        else:
            yield Microbatches(parts)


@pytest.mark.parametrize("kind", ["whole", "microbatches"])
@pytest.mark.parametrize("ranks", [slowly(1), 2, slowly(3)])
def test_sequences_of_other_lengths_are_computed_as_in_eager_steps(kind, ranks):
    def train(group, compile):  # noqa: A002
        layers = nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 5), nn.Linear(5, 3)
        options = {"loss": nn.MSELoss(), "num_microbatches": 2, "compile": compile}
        pipeline = Pipeline(nn.Sequential(*layers), group, **options)
        optimiser = optim.Adam(pipeline.parameters(), 0.1)
        losses = []
        for x in lengths_of(kind):
            losses.append(float(pipeline.step(x, x)))
            optimiser.step()
        state = pipeline.state_dict()
        return losses, {name: values.tobytes() for name, values in state.items()}

    eager = spawn(lambda group: train(group, compile=False), num_ranks=ranks)
    assert spawn(lambda group: train(group, compile=True), num_ranks=ranks) == eager
