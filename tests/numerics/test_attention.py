"""Attention of any length is that of the formula; large scores do not overflow, and no future is seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor
from minipipe import functional as F
from tests.numerics.formulas import attended
from tests.strategies import examples

# -- attention -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@examples(40)
@given(st.integers(0, 2**16), st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_attention_of_any_length_is_that_of_the_formula(dtype, seed, num_queries, num_keys, is_causal):
    generator = np.random.default_rng(seed)
    shapes = (2, num_queries, 3), (2, num_keys, 3), (2, num_keys, 2)
    query, key, value = (generator.standard_normal(shape).astype(dtype) for shape in shapes)
    given_ = F.attention(Tensor(query), Tensor(key), Tensor(value), is_causal)
    assert given_.dtype == dtype
    np.testing.assert_allclose(given_.numpy(), attended(query, key, value, is_causal), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("is_causal", [False, True])
def test_scores_of_any_size_overflow_in_neither_direction(is_causal):
    # exp(800) is infinite even in float64, and a query whose scores are all -800 would divide 0 by 0.
    query = Tensor(np.array([[40.0], [-40.0]], np.float32), requires_grad=True)
    key, value = np.array([[20.0], [20.001]], np.float32), np.array([[1.0], [3.0]], np.float32)
    result = F.attention(query, key, value, is_causal)
    result.sum().backward()
    assert np.isfinite(result.numpy()).all() and np.isfinite(query.grad).all()
    expected = attended(query.numpy(), key - 20, value, is_causal)  # the same scores but for a constant
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-3)


@pytest.mark.parametrize("num_keys", range(1, 10))
def test_the_largest_score_may_be_that_of_any_key(num_keys):
    """It comes by halving: an odd number of keys must lose none, or exp of its score is infinite."""
    for place in range(num_keys):
        key = np.zeros((num_keys, 1), np.float32)
        key[place] = 1000
        value = np.arange(num_keys, dtype=np.float32)[:, None]
        assert F.attention(Tensor(np.ones((1, 1), np.float32)), key, value).item() == place


def test_no_bit_of_the_future_reaches_a_causal_result_or_its_gradients():
    generator = np.random.default_rng(0)
    now = generator.standard_normal((2, 5, 12)).astype(np.float32)
    later = np.concatenate([now[:, :3], generator.standard_normal((2, 2, 12)).astype(np.float32)], axis=1)
    results = []
    for projections in (now, later):
        x = Tensor(projections, requires_grad=True)
        result = F.self_attention(x, 2, is_causal=True)
        seen = result[:, :3]
        seen.backward(np.ones(seen.shape, np.float32))
        results.append((seen.numpy().tobytes(), x.grad[:, :3].tobytes()))
        assert not x.grad[:, 3:].any()
    assert results[0] == results[1]
