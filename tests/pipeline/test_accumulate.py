"""Gradients of several steps add up, to the bits of one process."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Pipeline, Tensor, nn, random_key, spawn
from minipipe.errors import MessageError
from minipipe.testing import same_bits
from tests.pipeline.test_everything_out import LOSS, WIDTH, batch, made, model
from tests.strategies import NAMES, examples


def tied_model():
    embedding = nn.Embedding(6, WIDTH)
    layers = [layer for _ in range(7) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(embedding, *layers, nn.Unembedding(embedding))


@examples(30)
@given(
    st.sampled_from(NAMES),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([1.0, 0.5, 1 / 3]),
)
def test_gradients_of_several_steps_add_up_to_the_bits_of_one_process(
    name, num_ranks, m, scale
):
    batches = [batch(6, seed) for seed in range(3)]

    def train(group):
        pipeline = made(group, name, m)
        losses = [
            pipeline.step(x, y, accumulate=i > 0, scale=scale)
            for i, (x, y) in enumerate(batches)
        ]
        return losses, {name: p.grad for name, p in pipeline.named_parameters()}

    twin, expected = model().tied().initialise(0), []
    for step, (x, y) in enumerate(batches):
        parts = np.array_split(np.arange(6), m)
        total = 0.0
        for k, part in enumerate(parts):
            with random_key(0, step, k):
                loss = LOSS(twin(Tensor(x[part])), y[part])
            share = (y[part] >= 0).sum() / (y >= 0).sum()
            loss.backward(float(share * scale))
            total += share * loss.item()
        expected.append(total)
    results = spawn(train, num_ranks)
    found = {name: grad for _, grads in results for name, grad in grads.items()}
    assert all(same_bits(found[name], p.grad) for name, p in twin.named_parameters())
    assert all(losses == expected for losses, _ in results)


def test_a_parameter_that_ranks_share_adds_the_sums_of_the_steps():
    ids, labels = np.arange(6).reshape(6, 1), np.ones((6, 1), int)

    def train(group, clips):
        pipeline = Pipeline(
            tied_model(), group, loss=nn.CrossEntropyLoss(), num_microbatches=2
        )
        pipeline.step(ids, labels)
        if clips:
            pipeline.clip_grad_norm(1e-3)
        first = {name: p.grad.copy() for name, p in pipeline.named_parameters()}
        pipeline.step(ids[::-1], labels)
        second = {name: p.grad.copy() for name, p in pipeline.named_parameters()}
        pipeline.step(ids, labels)
        if clips:
            pipeline.clip_grad_norm(1e-3)
        pipeline.step(ids[::-1], labels, accumulate=True)
        return [
            (first["0.weight"] + second["0.weight"], p.grad)
            for n, p in pipeline.named_parameters()
            if n[:3] == "0.w"
        ]

    for clips in (False, True):
        for pairs in spawn(lambda group, clips=clips: train(group, clips), 3):
            assert all(same_bits(expected, found) for expected, found in pairs)


def test_ranks_that_do_not_accumulate_alike_are_told_so():
    def train(group):
        pipeline = made(group)
        pipeline.step(*batch())
        words = (
            r"Rank 1 is in step\(\), call 2 of pipeline 1, but rank 0 in "
            r"step\(accumulate=True\), call 2"
        )
        if group.rank == 1:
            with pytest.raises(MessageError, match=words):
                pipeline.step(*batch())
            raise StopIteration
        pipeline.step(*batch(), accumulate=True)

    with pytest.raises(StopIteration):
        spawn(train, 2)
