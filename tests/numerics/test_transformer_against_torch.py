"""A whole language model, trained as such models are, against the same in PyTorch: the
same losses, in float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from minipipe import nn, optim
from tests import torch_twins
from tests.torch_twins import Pair

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[oracle]'")

SYMBOLS, WIDTH, HEADS, LENGTH, WARMUP = 11, 8, 2, 7, 6
BETAS, MAX_NORM = (0.9, 0.98), 0.5
EPSILON = 1e-3  # large: else Adam would not see by what all its gradients are scaled
TOLERANCE = 1e-9


def text(step: int, num_sequences: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Return symbols of shape (n, t), and the symbol after each: mostly the sum of the
    two before, modulo 11.
    """
    generator = np.random.default_rng(step)
    symbols = generator.integers(0, SYMBOLS, (num_sequences, LENGTH + 1))
    for i in range(2, LENGTH + 1):
        is_regular = generator.random(num_sequences) < 0.9
        symbols[:, i] = np.where(
            is_regular, (symbols[:, i - 1] + symbols[:, i - 2]) % SYMBOLS, symbols[:, i]
        )
    return symbols[:, :-1], symbols[:, 1:]


# -- ours ------------------------------------------------------------------------------


def our_model(num_blocks: int, is_tied: bool, is_causal: bool = True) -> nn.Sequential:
    embedding = nn.Embedding(SYMBOLS, WIDTH, dtype=np.float64)
    blocks = [
        nn.TransformerBlock(
            WIDTH, HEADS, is_causal, approximate_gelu=False, dtype=np.float64
        )
        for _ in range(num_blocks)
    ]
    return nn.Sequential(
        embedding,
        nn.PositionalEmbedding(LENGTH, WIDTH, dtype=np.float64),
        *blocks,
        nn.LayerNorm(WIDTH, dtype=np.float64),
        nn.Unembedding(embedding)
        if is_tied
        else nn.Linear(WIDTH, SYMBOLS, dtype=np.float64),
    )


def with_and_without_decay(
    parameters: list[Any], key: str = "parameters", decay: float = 0.1
) -> list[dict[str, Any]]:
    """Return two groups: matrices shrink, biases and norms do not."""
    return [
        {key: [p for p in parameters if len(p.shape) > 1], "weight_decay": decay},
        {key: [p for p in parameters if len(p.shape) == 1], "weight_decay": 0.0},
    ]


def our_losses(
    model: nn.Sequential,
    num_steps: int,
    decay: float = 0.1,
    warmup: int = WARMUP,
    max_norm: float = MAX_NORM,
) -> Iterator[float]:
    parameters, loss = list(model.parameters()), nn.CrossEntropyLoss()
    optimiser = optim.AdamW(
        with_and_without_decay(parameters, decay=decay), 0.02, BETAS, EPSILON
    )
    schedule = optim.LearningRateSchedule(optimiser, optim.cosine(num_steps, warmup))
    for step in range(num_steps):
        symbols, following = text(step)
        value = loss(model(symbols), following)
        optimiser.zero_grad()
        value.backward()
        optim.clip_grad_norm(parameters, max_norm)
        optimiser.step()
        schedule.step()
        yield value.item()


# -- theirs ----------------------------------------------------------------------------


class TheirModel(torch.nn.Module):
    def __init__(self, num_blocks: int, is_tied: bool) -> None:
        super().__init__()
        float64 = {"dtype": torch.float64}
        self.embedding = torch.nn.Embedding(SYMBOLS, WIDTH, **float64)
        self.positions = torch.nn.Parameter(torch.zeros(LENGTH, WIDTH, **float64))
        self.blocks = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(
                WIDTH,
                HEADS,
                4 * WIDTH,
                0.0,
                "gelu",
                batch_first=True,
                norm_first=True,
                **float64,
            )
            for _ in range(num_blocks)
        )
        self.norm = torch.nn.LayerNorm(WIDTH, **float64)
        self.scores = None if is_tied else torch.nn.Linear(WIDTH, SYMBOLS, **float64)

    def forward(self, symbols: Any) -> Any:
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        x = self.embedding(symbols) + self.positions
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        x = self.norm(x)
        return x @ self.embedding.weight.T if self.scores is None else self.scores(x)


def their_losses(model: Any, num_steps: int) -> Iterator[float]:
    parameters = list(model.parameters())
    optimiser = torch.optim.AdamW(
        with_and_without_decay(parameters, "params"), lr=0.02, betas=BETAS, eps=EPSILON
    )
    rise = torch.optim.lr_scheduler.LinearLR(
        optimiser, 1 / WARMUP, total_iters=WARMUP - 1
    )
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, num_steps - WARMUP)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimiser, [rise, fall], [WARMUP])
    for step in range(num_steps):
        symbols, following = map(torch.tensor, text(step))
        value = torch.nn.functional.cross_entropy(
            model(symbols).flatten(0, 1), following.flatten()
        )
        optimiser.zero_grad()
        value.backward()
        # Not clip_grad_norm_, which divides by the norm + 1e-6.
        norm = torch.nn.utils.get_total_norm(
            [parameter.grad for parameter in parameters]
        )
        for parameter in parameters:
            parameter.grad *= min(1.0, MAX_NORM / norm)
        optimiser.step()
        with warnings.catch_warnings():
            # SequentialLR calls its own parts in a way that they deprecate
            warnings.simplefilter("ignore")
            schedule.step()
        yield value.item()


# -- both ------------------------------------------------------------------------------


def pairs_of(ours: nn.Sequential, theirs: TheirModel) -> Iterator[Pair]:
    embedding, positions, *blocks, norm, scores = ours.layers
    yield Pair(embedding.weight, theirs.embedding.weight)
    yield Pair(positions.weight, theirs.positions)
    for block, their_block in zip(blocks, theirs.blocks, strict=True):
        yield from torch_twins.of_block(block, their_block)
    yield from torch_twins.of_norm(norm, theirs.norm)
    if theirs.scores is not None:
        yield from torch_twins.of_linear(scores, theirs.scores)


def twins(
    num_blocks: int, is_tied: bool, is_causal: bool = True
) -> tuple[nn.Sequential, TheirModel, list[Pair]]:
    ours, theirs = (
        our_model(num_blocks, is_tied, is_causal),
        TheirModel(num_blocks, is_tied),
    )
    pairs = list(pairs_of(ours, theirs))
    torch_twins.fill(pairs, np.random.default_rng(num_blocks))
    assert len(pairs) == len(list(ours.parameters())) == len(list(theirs.parameters()))
    return ours, theirs, pairs


@pytest.mark.parametrize(
    ("num_blocks", "is_tied", "num_steps"),
    [(2, False, 50), (3, False, 50), (2, True, 20)],
    ids=["2", "3", "tied"],
)
def test_a_language_model_in_training_has_the_losses_of_pytorch(
    num_blocks, is_tied, num_steps
):
    ours, theirs, pairs = twins(num_blocks, is_tied)
    losses, their = (
        list(our_losses(ours, num_steps)),
        list(their_losses(theirs, num_steps)),
    )
    np.testing.assert_allclose(losses, their, rtol=0, atol=TOLERANCE)
    # it learns: what is compared is no standstill
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    for pair in pairs:
        np.testing.assert_allclose(
            pair.ours.numpy(), pair.our_way(pair.theirs), rtol=0, atol=1e-7
        )


def test_a_tied_model_has_one_matrix_less_and_its_gradient_from_both_ends():
    ours, theirs, pairs = twins(1, is_tied=True)
    symbols, following = text(0)
    nn.CrossEntropyLoss()(ours(symbols), following).backward()
    their_scores = theirs(torch.tensor(symbols)).flatten(0, 1)
    torch.nn.functional.cross_entropy(
        their_scores, torch.tensor(following).flatten()
    ).backward()
    for pair in pairs:
        np.testing.assert_allclose(
            pair.ours.grad, pair.our_way(pair.theirs.grad), rtol=0, atol=1e-12
        )
    ends = ours.layers[0].weight.grad_of_use(0), ours.layers[0].weight.grad_of_use(1)
    assert all(np.abs(gradient).max() > 1e-3 for gradient in ends)


@pytest.mark.parametrize(
    "change",
    [{"decay": 0.11}, {"warmup": WARMUP - 1}, {"max_norm": 0.6}],
    ids=["decay", "warm-up", "clipping"],
)
def test_training_in_another_way_would_be_noticed(change):
    ours, theirs, _ = twins(1, is_tied=False)
    difference = np.subtract(
        list(our_losses(ours, 10, **change)), list(their_losses(theirs, 10))
    )
    assert np.abs(difference).max() > 1000 * TOLERANCE


def test_a_model_that_sees_the_future_would_be_noticed():
    ours, theirs, _ = twins(1, is_tied=False, is_causal=False)
    assert (
        abs(next(our_losses(ours, 10)) - next(their_losses(theirs, 10)))
        > 1000 * TOLERANCE
    )
