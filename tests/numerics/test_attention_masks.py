"""Masks of attention: what is hidden has no influence, who sees nothing gets zeros, and
nobody guesses at shapes.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor, nn
from minipipe import functional as F
from minipipe.core.autograd.modes import RandomKey, at
from minipipe.errors import TensorError
from minipipe.testing import same_bits
from tests.numerics.formulas import attended
from tests.strategies import examples

# the name of the file is that of its function
attention_file = sys.modules["minipipe.functional.attention"]


def normal(seed: int, *shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@examples(60)
@given(
    st.integers(0, 2**16),
    st.integers(1, 6),
    st.integers(1, 6),
    st.booleans(),
    st.booleans(),
)
def test_attention_under_any_mask_is_that_of_the_formula(
    seed, t, s, is_causal, is_by_query
):
    mask = (
        np.random.default_rng(seed).random((2, t, s) if is_by_query else (2, s)) < 0.5
    )
    query, key, value = (
        normal(seed, 2, 3, length, 2, dtype=np.float64) for length in (t, s, s)
    )
    found = F.attention(query, key, value, is_causal, mask)
    np.testing.assert_allclose(
        found.numpy(),
        attended(query, key, value, is_causal, mask),
        rtol=1e-9,
        atol=1e-12,
    )


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_mask_that_hides_nothing_changes_no_bit(is_causal):
    results = []
    for mask in (None, np.ones((3, 5), bool), np.ones((1, 5, 5), np.int64)):
        x = Tensor(normal(0, 3, 5, 12), requires_grad=True)
        result = F.self_attention(x, 2, is_causal, mask)
        result.backward(normal(1, 3, 5, 4))
        results.append((result.numpy().tobytes(), x.grad.tobytes()))
    assert results[0] == results[1] == results[2]


@examples(40)
@given(st.integers(0, 2**16), st.booleans())
def test_no_bit_of_a_hidden_key_reaches_a_result_or_a_gradient(seed, is_causal):
    mask = np.random.default_rng(seed).random((2, 5)) < 0.5
    query, key, value = (
        normal(seed, 2, 4, 3),
        normal(seed + 1, 2, 5, 3),
        normal(seed + 2, 2, 5, 2),
    )
    found = []
    for _ in range(2):
        tensors = [Tensor(array, requires_grad=True) for array in (query, key, value)]
        result = F.attention(*tensors, is_causal, mask)
        result.backward(normal(3, 2, 4, 2))
        found.append(
            [result.numpy(), tensors[0].grad, tensors[1].grad, tensors[2].grad]
        )
        key, value = (
            np.where(mask[..., None], array, 1e3 * array + 5) for array in (key, value)
        )
    for one, other in zip(*found):
        assert same_bits(one, other)
    assert not found[0][2][~mask].any() and not found[0][3][~mask].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.filterwarnings("error")
def test_a_query_that_sees_nothing_gets_zeros_and_zero_gradients_without_a_warning(
    dtype,
):
    # The scores are as large as can be, so that a finite number in place of -inf would
    # not hide them.
    query, key, value = (
        Tensor(scale * normal(0, 2, 3, 4, dtype=dtype), requires_grad=True)
        for scale in (1e9, 1e9, 1)
    )
    mask = np.ones((2, 3, 3), bool)
    mask[0, 1] = mask[1] = False
    result = F.attention(query, key, value, mask=mask)
    result.backward(normal(1, 2, 3, 4, dtype=dtype))
    assert (
        not result.numpy()[0, 1].any()
        and not result.numpy()[1].any()
        and result.numpy()[0, 0].any()
    )
    assert not query.grad[0, 1].any() and not query.grad[1].any()
    assert not key.grad[1].any() and not value.grad[1].any() and value.grad[0].any()
    assert all(np.isfinite(tensor.grad).all() for tensor in (query, key, value))


def test_left_padding_and_causality_together_leave_the_first_positions_with_nothing():
    x = Tensor(normal(0, 1, 4, 6), requires_grad=True)
    result = F.self_attention(x, 1, is_causal=True, mask=[[0, 0, 1, 1]])
    assert not result.numpy()[0, :2].any()
    np.testing.assert_array_equal(result.numpy()[0, 2], x.numpy()[0, 2, 4:])


def test_padding_changes_nothing_for_a_block_but_the_padded_positions():
    block = nn.TransformerBlock(8, 2, dtype=np.float64).initialise(1)
    x = normal(0, 3, 6, 8, dtype=np.float64)
    mask = np.arange(6) < np.array([[6], [4], [1]])
    whole = block(Tensor(x), mask).numpy()
    for i, length in enumerate((6, 4, 1)):
        alone = block(Tensor(x[i : i + 1, :length])).numpy()
        np.testing.assert_allclose(whole[i, :length], alone[0], rtol=1e-12)
    # without the mask it would not be so
    assert np.abs(block(Tensor(x)).numpy() - whole)[1, :4].max() > 1e-3


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_block_under_a_mask_that_hides_nothing_is_the_block_without_one(dropout):
    block, found = nn.TransformerBlock(8, 2, dropout=dropout).initialise(1), []
    for mask in (None, np.ones((2, 3), bool)):
        x = Tensor(normal(0, 2, 3, 8), requires_grad=True)
        # in a layer of a sequence, whose draws count on
        with at(RandomKey(seed=0, layer=0)):
            block(x, mask).backward(normal(1, 2, 3, 8))
        found.append(x.grad.tobytes())
    assert found[0] == found[1]


WRONG = {
    "a float mask, as PyTorch adds it": (
        np.zeros((2, 5)),
        "dtype",
        "float64; expected truth values, or 1 for visible keys",
    ),
    "numbers of segments": (
        np.array([[1, 1, 2, 2, 0]] * 2),
        "out-of-range",
        r"numbers other than 0 and 1.*mask > 0",
    ),
    "by query alone": (
        np.ones((4, 5), bool),
        "shape",
        r"shape \(4, 5\); expected \(2, 5\) or \(2, 4, 5\)",
    ),
    "by head": (
        np.ones((2, 1, 4, 5), bool),
        "shape",
        r"expected \(2, 5\) or \(2, 4, 5\)",
    ),
    "one axis": (np.ones(5, bool), "shape", "mask has shape"),
    "another number of keys": (np.ones((2, 4), bool), "shape", "mask has shape"),
    "turned": (np.ones((2, 5, 4), bool), "shape", "mask has shape"),
    "another number of samples": (np.ones((3, 5), bool), "shape", "mask has shape"),
}


@pytest.mark.parametrize(("mask", "code", "words"), WRONG.values(), ids=WRONG)
def test_what_is_no_mask_is_refused(mask, code, words):
    query, key = Tensor(normal(0, 2, 4, 3)), Tensor(normal(1, 2, 5, 3))
    with pytest.raises(TensorError, match=words) as caught:
        F.attention(query, key, key, mask=mask)
    assert caught.value.code == code


def test_queries_without_samples_take_no_mask():
    query = Tensor(normal(0, 4, 3))
    with pytest.raises(TensorError, match="expected a query of three axes or more"):
        F.attention(query, query, query, mask=np.ones((4, 4), bool))
    with pytest.raises(TensorError, match="^self_attention: mask has shape"):
        nn.MultiHeadAttention(3, 1)(Tensor(normal(0, 2, 4, 3)), np.ones((4, 4), bool))


# -- mutants: what the tests above must notice -----------------------------------------


def test_a_softmax_without_its_bounds_would_be_noticed(monkeypatch):
    plain = attention_file._softmax_over_rows
    monkeypatch.setattr(
        attention_file,
        "_softmax_over_rows",
        lambda scores, may_see_nothing: plain(scores, False),
    )
    with np.errstate(invalid="ignore"), pytest.raises(AssertionError):
        test_a_query_that_sees_nothing_gets_zeros_and_zero_gradients_without_a_warning(
            np.float32
        )


def test_a_mask_that_is_turned_would_be_noticed(monkeypatch):
    visible = attention_file._visible

    x, mask = Tensor(normal(0, 1, 4, 6)), np.tril(np.ones((1, 4, 4), bool))
    causal = F.self_attention(x, 1, is_causal=True).numpy()
    np.testing.assert_allclose(
        F.self_attention(x, 1, mask=mask).numpy(), causal, rtol=1e-6
    )
    monkeypatch.setattr(
        attention_file, "_visible", lambda *arguments: visible(*arguments).mT
    )
    assert not np.allclose(F.self_attention(x, 1, mask=mask).numpy(), causal)
