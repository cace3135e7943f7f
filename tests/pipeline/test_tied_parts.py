"""Layers that share a parameter on a grid: an embedding and its scores are divided
together, all else stays whole.
"""

import tempfile

import numpy as np
import pytest

from minipipe import Grid, Pipeline, checkpoint, nn, optim, spawn
from minipipe.testing import same_bits
from tests.launch import slowly
from tests.pipeline.test_tensor_parallel import (
    CLOSE,
    IDS,
    NEXT,
    SYMBOLS,
    WIDTH,
    alone,
    assert_close,
    language_model,
    on_grid,
    train,
)


@pytest.mark.parametrize(
    "sizes", [(2, 1, 2), *map(slowly, [(1, 1, 4), (1, 2, 2), (2, 2, 2), (4, 1, 2)])]
)
@pytest.mark.parametrize("schedule", ["1f1b", slowly("zb-h1")])
def test_a_tied_embedding_is_divided_with_its_scores(sizes, schedule):
    names = dict(zip(("pipeline", "data", "tensor"), sizes))

    def run(group):
        pipeline = on_grid(group, **names, schedule=schedule, is_tied=True)
        first = dict(pipeline.named_parameters()).get("0.weight")
        return train(pipeline), None if first is None else (
            first.shape,
            first.is_divided,
        )

    for found, looks in spawn(run, int(np.prod(sizes))):
        assert_close(found, alone(is_tied=True))
        assert looks in (None, ((SYMBOLS // sizes[2], WIDTH), True))


def test_without_a_pipeline_the_two_share_one_part():
    plain = language_model(is_tied=True).initialise(3)

    def look(group):
        own = nn.parallelise(plain, group)
        assert (
            type(own[-1]) is nn.ParallelUnembedding
            and own[-1].weight.owner is own[0].weight
        )
        other = nn.parallelise(own, group)  # what is divided stays as it is
        assert other[-1].weight.owner is other[0].weight is not own[0].weight
        return own.state_dict(), other.state_dict()

    for states in spawn(look, 2):
        for state in states:
            assert state.keys() == plain.state_dict().keys()
            assert all(
                same_bits(state[name], value)
                for name, value in plain.state_dict().items()
            )


@pytest.mark.slow
def test_a_checkpoint_of_it_is_resumed_elsewhere():
    def run(group, grid, num_steps, folder):
        where = Grid(group, **grid) if grid else group
        pipeline = Pipeline(
            language_model(is_tied=True), where, loss=nn.CrossEntropyLoss()
        )
        optimiser = optim.SGD(pipeline.parameters(), 0.1, momentum=0.9)
        restored = checkpoint.restore(folder, pipeline, optimiser, required=False)
        losses = []
        for _ in range(restored.step if restored else 0, num_steps):
            losses.append(float(pipeline.step(IDS, NEXT)))
            optimiser.step()
        checkpoint.save(folder, pipeline, optimiser, step=num_steps)
        return losses

    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        expected = spawn(lambda group: run(group, {}, 4, one), 1)[0]
        spawn(lambda group: run(group, {"pipeline": 2, "tensor": 2}, 2, other), 4)
        resumed = spawn(lambda group: run(group, {"tensor": 2}, 3, other), 2)[0]
        resumed += spawn(lambda group: run(group, {}, 4, other), 1)[0]
    assert np.allclose(resumed, expected[2:], rtol=CLOSE, atol=CLOSE)


def test_what_else_layers_share_stays_whole():
    linear, attention, embedding = (
        nn.Linear(4, 4),
        nn.MultiHeadAttention(4, 2),
        nn.Embedding(4, 4),
    )
    models = [
        nn.Sequential(linear, nn.GELU(), linear),
        nn.Sequential(linear, nn.GELU(), nn.Linear(4, 4), nn.LayerNorm(4), linear),
        nn.Sequential(attention, nn.Linear(4, 4), attention),
        nn.Sequential(embedding, nn.Tanh(), embedding),
        nn.Sequential(nn.Unembedding(embedding), nn.Tanh()),
    ]
    for model in models:
        for size in spawn(
            lambda group, model=model: nn.parallelise(model, group).num_parameters, 2
        ):
            assert size == model.num_parameters


@pytest.mark.parametrize("schedule, num_ranks", [("zb-v", 1), ("chimera", 2)])
def test_stages_that_share_and_are_on_every_rank_need_no_messages(schedule, num_ranks):
    """The story: a row with their reduction met a rank that has nothing to exchange."""

    def train(group, name):
        layer, random = nn.Linear(8, 8), np.random.default_rng(0)
        model = nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh())
        options = {"loss": nn.MSELoss(), "num_microbatches": 2, "schedule": name}
        pipeline = Pipeline(model, group, **options)
        x = random.normal(size=(4, 8)).astype("f4")
        loss = float(pipeline.step(x, x))
        return loss, [p.grad.tobytes() for p in pipeline.parameters()]

    expected = spawn(lambda group: train(group, "gpipe"), 1)
    assert (
        spawn(lambda group: train(group, schedule), num_ranks) == expected * num_ranks
    )
