"""A rank that reads no inputs still learns that the inputs have another form."""

import numpy as np
import pytest

from minipipe import Microbatches, Pipeline, nn, optim, spawn


def lengths_of(kind):
    """Return the batches of some steps: sequences of other lengths on the way."""
    rng = np.random.default_rng(0)
    for lengths in ((4, 4), (4, 4), (4, 4), (6, 6), (6, 6), (6, 6), (4, 4), (6, 4), (6, 4), (4, 6), (6, 4), (4, 4)):
        parts = [rng.normal(size=(2, length, 3)).astype(np.float32) for length in lengths]
        if kind == "whole" and len(set(lengths)) == 1:
            yield np.concatenate(parts)
        else:
            yield Microbatches(parts)


@pytest.mark.parametrize("kind", ["whole", "microbatches"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_sequences_of_other_lengths_are_computed_as_in_eager_steps(kind, ranks):
    def train(group, compile):  # noqa: A002
        model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 5), nn.Linear(5, 3))
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2, compile=compile)
        optimiser = optim.Adam(pipeline.parameters(), 0.1)
        losses = []
        for x in lengths_of(kind):
            losses.append(float(pipeline.step(x, x)))
            optimiser.step()
        return losses, {name: values.tobytes() for name, values in pipeline.state_dict().items()}

    eager = spawn(lambda group: train(group, compile=False), num_ranks=ranks)
    assert spawn(lambda group: train(group, compile=True), num_ranks=ranks) == eager
