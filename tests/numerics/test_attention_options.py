"""Options of attention: dropout of its weights."""

from __future__ import annotations

import numpy as np
import pytest

from minipipe import Tensor, nn, random_key
from minipipe import functional as F
from minipipe.errors import ArgumentError, TensorError


def normal(seed: int, *shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# -- dropout -------------------------------------------------------------------------------------------------


def test_dropout_keeps_the_mean_of_the_result():
    query, key, value = normal(0, 1, 3, 4), normal(1, 1, 5, 4), normal(2, 1, 5, 2)
    found = np.zeros((1, 3, 2))
    for step in range(2000):
        with random_key(0, step):
            found += F.attention(query, key, value, dropout=0.3).numpy() / 2000
    np.testing.assert_allclose(found, F.attention(query, key, value).numpy(), atol=0.06)


def test_each_head_and_each_sample_drops_weights_of_its_own():
    value = np.broadcast_to(np.eye(8, dtype=np.float32), (3, 2, 8, 8))
    with random_key(0):
        weights = F.attention(np.zeros((3, 2, 4, 8), np.float32), value, value, dropout=0.5).numpy()
    rows = {(row > 0).tobytes() for row in weights.reshape(-1, 8)}
    assert len(rows) > 20 and set(weights.ravel().tolist()) == {0.0, 0.25}  # of equal weights 1/8, some doubled


def test_a_layer_drops_weights_in_training_only_and_the_same_for_the_same_key():
    layer, x = nn.MultiHeadAttention(8, 2, dropout=0.5).initialise(0), normal(0, 2, 3, 8)
    plain = nn.MultiHeadAttention(8, 2).initialise(0)

    def result(step: int) -> bytes:
        with random_key(0, step):
            return layer(Tensor(x)).numpy().tobytes()

    assert result(0) == result(0) != result(1)
    assert layer.eval()(Tensor(x)).numpy().tobytes() == plain(Tensor(x)).numpy().tobytes()
    with pytest.raises(TensorError) as caught:
        layer.train()(Tensor(x))
    assert caught.value.code == "no-random-key"


def test_the_block_passes_the_dropout_of_the_attention_on_and_no_other():
    for options, changes in (({"dropout": 0.5}, 0.0), ({"attention_dropout": 0.5}, 0.5)):
        block = nn.TransformerBlock(8, 2, **options)
        assert next(m for m in block.modules() if isinstance(m, nn.MultiHeadAttention)).dropout == changes
    assert repr(block.describe()) == "'8, num_heads=2, attention_dropout=0.5'"


@pytest.mark.parametrize("probability", [-0.1, 1, 1.5, float("nan")])
def test_a_probability_out_of_range_is_refused(probability):
    for make in (nn.MultiHeadAttention, lambda *sizes, dropout: nn.TransformerBlock(*sizes, attention_dropout=dropout)):
        with pytest.raises(ArgumentError, match="^MultiHeadAttention: dropout is .*expected at least 0") as caught:
            make(8, 2, dropout=probability)
        assert caught.value.code == "value"
    with pytest.raises(TensorError, match="^attention: the probability is") as refused:
        F.attention(normal(0, 2, 2), normal(0, 2, 2), normal(0, 2, 2), dropout=probability)
    assert refused.value.code == "range"
