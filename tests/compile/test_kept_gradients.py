"""A compiled step writes into the arrays of the last one, unless one is kept."""

import numpy as np
import pytest

from minipipe import Pipeline, nn, optim, spawn

X = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32)
TOKENS = np.random.default_rng(2).integers(0, 11, (8, 4))


def mlp():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def tied():
    vectors = nn.Embedding(11, 8)
    return nn.Sequential(vectors, nn.Linear(8, 8), nn.Tanh(), nn.Unembedding(vectors))


def trained(make, is_compiled, keep, num_steps=6):
    """Return the gradients of every step, as they were, and the ones that were kept."""
    x, y, loss = (
        (X, Y, nn.MSELoss()) if make is mlp else (TOKENS, TOKENS, nn.CrossEntropyLoss())
    )

    def train(group):
        pipeline = Pipeline(
            make(), group, loss=loss, num_microbatches=2, compile=is_compiled
        )
        optimiser = optim.Adam(pipeline.parameters())
        copies, kept = [], []
        for step in range(num_steps):
            pipeline.step(x, y)
            gradients = [parameter.grad for parameter in pipeline.parameters()]
            copies.append([gradient.tobytes() for gradient in gradients])
            kept.append(
                [keep(gradient) for gradient in gradients]
                if step in (1, 2, 4)
                else None
            )
            optimiser.step()
        return copies, [
            None if row is None else [np.asarray(each).tobytes() for each in row]
            for row in kept
        ]

    return spawn(train, num_ranks=1)[0]


@pytest.mark.parametrize("make", [mlp, tied])
@pytest.mark.parametrize(
    "keep", [lambda g: g, lambda g: g[...], lambda g: g.reshape(-1)[:]]
)
def test_a_gradient_that_is_kept_stays_as_it_was(make, keep):
    copies, kept = trained(make, True, keep)
    assert copies == trained(make, False, keep)[0]
    for before, after in zip(copies, kept):
        assert after is None or after == before


def test_a_measurement_takes_no_gradients_that_are_kept():
    """The story: it took the parameters into an arena of its own, and the next step
    found nobody who referred to the gradients of the closed one."""

    def train(group):
        options = {"loss": nn.MSELoss(), "num_microbatches": 2, "compile": True}
        pipeline = Pipeline(mlp(), group, **options)
        for _ in range(4):
            pipeline.step(X, Y)
        kept = [parameter.grad for parameter in pipeline.parameters()]
        before = [gradient.copy() for gradient in kept]
        pipeline.measure_costs(X, Y, num_steps=1)
        pipeline.step(2 * X, Y)
        return all(map(np.array_equal, kept, before))

    assert spawn(train, num_ranks=2) == [True, True]
