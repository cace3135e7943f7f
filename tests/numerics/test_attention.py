"""Attention of any length is that of the formula; large scores do not overflow, and no
future is seen.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor
from minipipe import functional as F
from minipipe.autograd import StageInput, backward_input
from minipipe.autograd.memory import held_bytes
from minipipe.core.autograd import backend
from tests.numerics.formulas import attended
from tests.strategies import examples

# -- attention -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@examples(40)
@given(st.integers(0, 2**16), st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_attention_of_any_length_is_that_of_the_formula(
    dtype, seed, num_queries, num_keys, is_causal
):
    generator = np.random.default_rng(seed)
    shapes = (2, num_queries, 3), (2, num_keys, 3), (2, num_keys, 2)
    query, key, value = (
        generator.standard_normal(shape).astype(dtype) for shape in shapes
    )
    given_ = F.attention(Tensor(query), Tensor(key), Tensor(value), is_causal)
    assert given_.dtype == dtype
    np.testing.assert_allclose(
        given_.numpy(), attended(query, key, value, is_causal), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("is_causal", [False, True])
def test_scores_of_any_size_overflow_in_neither_direction(is_causal):
    # exp(800) is infinite even in float64, and a query whose scores are all -800 would
    # divide 0 by 0.
    query = Tensor(np.array([[40.0], [-40.0]], np.float32), requires_grad=True)
    key, value = (
        np.array([[20.0], [20.001]], np.float32),
        np.array([[1.0], [3.0]], np.float32),
    )
    result = F.attention(query, key, value, is_causal)
    result.sum().backward()
    assert np.isfinite(result.numpy()).all() and np.isfinite(query.grad).all()
    # the same scores but for a constant
    expected = attended(query.numpy(), key - 20, value, is_causal)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-3)


@pytest.mark.parametrize("num_keys", range(1, 10))
def test_the_largest_score_may_be_that_of_any_key(num_keys):
    """It comes by halving: an odd number of keys must lose none, or exp of its score is
    infinite.
    """
    for place in range(num_keys):
        key = np.zeros((num_keys, 1), np.float32)
        key[place] = 1000
        value = np.arange(num_keys, dtype=np.float32)[:, None]
        assert (
            F.attention(Tensor(np.ones((1, 1), np.float32)), key, value).item() == place
        )


def test_no_bit_of_the_future_reaches_a_causal_result_or_its_gradients():
    generator = np.random.default_rng(0)
    now = generator.standard_normal((2, 5, 12)).astype(np.float32)
    later = np.concatenate(
        [now[:, :3], generator.standard_normal((2, 2, 12)).astype(np.float32)], axis=1
    )
    results = []
    for projections in (now, later):
        x = Tensor(projections, requires_grad=True)
        result = F.self_attention(x, 2, is_causal=True)
        seen = result[:, :3]
        seen.backward(np.ones(seen.shape, np.float32))
        results.append((seen.numpy().tobytes(), x.grad[:, :3].tobytes()))
        assert not x.grad[:, 3:].any()
    assert results[0] == results[1]


# -- work and memory -------------------------------------------------------------------


def stage_input(*shape: int) -> Tensor:
    tensor = Tensor(
        np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)
    )
    tensor.node = StageInput(needs_gradient=True, array=tensor.data)
    return tensor


def test_queries_and_keys_share_one_gradient_of_the_scores(monkeypatch):
    calls, summed = [], backend.sum_over_rows
    monkeypatch.setattr(
        backend,
        "sum_over_rows",
        lambda array: calls.append(array.shape) or summed(array),
    )
    result = F.attention(
        stage_input(2, 3, 4), stage_input(2, 5, 4), stage_input(2, 5, 4)
    )
    assert len(calls) == 1  # in the softmax
    result.backward(np.ones((2, 3, 4), np.float32))
    assert len(calls) == 2


def test_attention_holds_scaled_queries_and_weights_until_i_and_nothing_for_w():
    number = 4  # bytes
    query, key, value = stage_input(2, 3, 4), stage_input(2, 5, 4), stage_input(2, 5, 6)
    root = F.attention(query, key, value).node
    assert (
        held_bytes([root], [])
        == (2 * 3 * 4 + 2 * 5 * 3 + 2 * 5 * 4 + 2 * 5 * 6) * number
    )
    assert held_bytes([backward_input({root: np.ones((2, 3, 6), np.float32)})], []) == 0


def test_self_attention_holds_projections_scaled_queries_and_weights():
    number = 4  # bytes
    root = F.self_attention(stage_input(2, 5, 24), num_heads=2, is_causal=True).node
    assert held_bytes([root], []) == (2 * 5 * 24 + 2 * 5 * 8 + 2 * 2 * 5 * 5) * number
    assert held_bytes([backward_input({root: np.ones((2, 5, 8), np.float32)})], []) == 0


def test_attention_keeps_no_queries_if_keys_need_no_gradient():
    key, value = np.ones((2, 5, 4), np.float32), np.ones((2, 5, 6), np.float32)
    root = F.attention(stage_input(2, 3, 4), key, value).node
    assert sorted(root.plan.names) == ["dropped", "key", "value", "weights"]
