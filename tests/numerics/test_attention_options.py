"""Options of attention: dropout of its weights, heads that share keys and values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor, nn, random_key
from minipipe import functional as F
from minipipe.autograd.memory import held_bytes
from minipipe.errors import ArgumentError, TensorError
from tests.strategies import examples


def normal(seed: int, *shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# -- dropout ---------------------------------------------------------------------------


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
        weights = F.attention(
            np.zeros((3, 2, 4, 8), np.float32), value, value, dropout=0.5
        ).numpy()
    rows = {(row > 0).tobytes() for row in weights.reshape(-1, 8)}
    # of equal weights 1/8, some doubled
    assert len(rows) > 20 and set(weights.ravel().tolist()) == {0.0, 0.25}


def test_a_layer_drops_weights_in_training_only_and_the_same_for_the_same_key():
    layer, x = (
        nn.MultiHeadAttention(8, 2, dropout=0.5).initialise(0),
        normal(0, 2, 3, 8),
    )
    plain = nn.MultiHeadAttention(8, 2).initialise(0)

    def result(step: int) -> bytes:
        with random_key(0, step):
            return layer(Tensor(x)).numpy().tobytes()

    assert result(0) == result(0) != result(1)
    assert (
        layer.eval()(Tensor(x)).numpy().tobytes() == plain(Tensor(x)).numpy().tobytes()
    )
    with pytest.raises(TensorError) as caught:
        layer.train()(Tensor(x))
    assert caught.value.code == "missing"


def test_the_block_passes_the_dropout_of_the_attention_on_and_no_other():
    for options, changes in (
        ({"dropout": 0.5}, 0.0),
        ({"attention_dropout": 0.5}, 0.5),
    ):
        block = nn.TransformerBlock(8, 2, **options)
        assert (
            next(
                m for m in block.modules() if isinstance(m, nn.MultiHeadAttention)
            ).dropout
            == changes
        )
    assert repr(block.describe()) == "'8, num_heads=2, attention_dropout=0.5'"


@pytest.mark.parametrize("probability", [-0.1, 1, 1.5, float("nan")])
def test_a_probability_out_of_range_is_refused(probability):
    for make in (
        nn.MultiHeadAttention,
        lambda *sizes, dropout: nn.TransformerBlock(*sizes, attention_dropout=dropout),
    ):
        with pytest.raises(
            ArgumentError,
            match="^MultiHeadAttention: dropout is .*expected a number in ",
        ) as caught:
            make(8, 2, dropout=probability)
        assert caught.value.code == "value"
    with pytest.raises(TensorError, match="^attention: the probability is") as refused:
        F.attention(
            normal(0, 2, 2), normal(0, 2, 2), normal(0, 2, 2), dropout=probability
        )
    assert refused.value.code == "out-of-range"


# -- heads that share keys and values --------------------------------------------------


@examples(40)
@given(
    st.integers(0, 2**16),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 5),
    st.booleans(),
)
def test_grouped_queries_are_attention_with_each_head_of_keys_repeated(
    seed, num_shared, group, s, is_causal
):
    query = normal(seed, 2, num_shared * group, 3, 2, dtype=np.float64)
    key, value = (
        normal(seed + 1, 2, num_shared, s, 2, dtype=np.float64),
        normal(seed + 2, 2, num_shared, s, 3),
    )
    mask, upstream = (
        np.random.default_rng(seed).random((2, 3, s)) < 0.7,
        normal(seed, 2, num_shared * group, 3, 3),
    )
    tensors = [
        Tensor(array, requires_grad=True, dtype=np.float64)
        for array in (query, key, value)
    ]
    repeated = [
        Tensor(np.repeat(t.numpy(), group, axis=1), requires_grad=True)
        for t in tensors[1:]
    ]
    alone = Tensor(query, requires_grad=True)
    grouped, plain = (
        F.attention(*tensors, is_causal, mask),
        F.attention(alone, *repeated, is_causal, mask),
    )
    np.testing.assert_allclose(grouped.numpy(), plain.numpy(), rtol=1e-12)
    for result in (grouped, plain):
        result.backward(upstream)
    np.testing.assert_allclose(tensors[0].grad, alone.grad, rtol=1e-10, atol=1e-13)
    for shared, by_head in zip(tensors[1:], repeated):
        summed = by_head.grad.reshape(2, num_shared, group, *shared.shape[2:]).sum(2)
        np.testing.assert_allclose(shared.grad, summed, rtol=1e-10, atol=1e-13)


def test_as_many_heads_of_keys_as_of_queries_are_plain_attention_bit_for_bit():
    x, found = normal(0, 2, 5, 8), []
    for options in ({}, {"num_key_value_heads": 4}):
        layer = nn.MultiHeadAttention(8, 4, is_causal=True, **options).initialise(3)
        result = layer(Tensor(x))
        result.sum().backward()
        found.append(
            [
                result.numpy().tobytes(),
                *(parameter.grad.tobytes() for parameter in layer.parameters()),
            ]
        )
    assert found[0] == found[1]


def test_fewer_heads_of_keys_have_fewer_parameters_and_hold_less():
    sizes = []
    for shared in (4, 2, 1):
        layer = nn.MultiHeadAttention(16, 4, num_key_value_heads=shared).initialise(0)
        assert layer.projections.weight.shape == (16, 16 + 2 * 4 * shared)
        x = Tensor(normal(0, 1, 64, 16), requires_grad=True)
        sizes.append(held_bytes([layer(x).node], [p.data for p in layer.parameters()]))
    assert sizes[0] > sizes[1] > sizes[2]
    assert (
        nn.TransformerBlock(16, 4, num_key_value_heads=2).describe()
        == "16, num_heads=4, num_key_value_heads=2"
    )


@pytest.mark.parametrize("num_key_value_heads", [0, 3, 8, 1.0])
def test_heads_that_cannot_be_shared_are_refused(num_key_value_heads):
    with pytest.raises(ArgumentError, match="^MultiHeadAttention: ") as caught:
        nn.MultiHeadAttention(8, 4, num_key_value_heads=num_key_value_heads)
    assert caught.value.code == "value"


WRONG_GROUPS = {
    "more heads of keys": (2, 4, 4),
    "no multiple": (4, 3, 3),
    "values of other heads": (4, 2, 4),
    "no heads of keys": (4, 0, 0),
}


@pytest.mark.parametrize("heads", WRONG_GROUPS.values(), ids=WRONG_GROUPS)
def test_arrays_whose_heads_do_not_fit_are_refused(heads):
    with pytest.raises(
        TensorError, match="^attention: .* the query may have a multiple of heads"
    ) as caught:
        F.attention(*(normal(0, 2, number, 3, 2) for number in heads))
    assert caught.value.code == "shape"


@pytest.mark.parametrize(
    ("num_heads", "shared"), [(4, 3), (4, 0), (2, 4), (3, 3), (0, None)]
)
def test_projections_that_are_not_those_of_the_heads_are_refused(num_heads, shared):
    with pytest.raises(
        TensorError, match="^self_attention: projections has shape"
    ) as caught:
        F.self_attention(normal(0, 2, 3, 8), num_heads, num_key_value_heads=shared)
    assert caught.value.code == "shape"


# -- looks -----------------------------------------------------------------------------


def test_a_layer_prints_its_options_before_its_parts():
    layer = nn.MultiHeadAttention(
        4, 2, is_causal=True, dropout=0.1, num_key_value_heads=1, rotary_base=100.0
    )
    assert repr(layer).splitlines() == [
        "MultiHeadAttention(",
        (
            "  4, num_heads=2, is_causal=True, dropout=0.1, num_key_value_heads=1, "
            "rotary_base=100.0"
        ),
        "  projections: Linear(4, 8)",
        "  output: Linear(4, 4)",
        ")",
    ]
