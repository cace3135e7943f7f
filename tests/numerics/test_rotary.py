"""Rotary position embedding: lengths stay, scores know distances alone, and what cannot
be turned is refused.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor, nn
from minipipe import functional as F
from minipipe.errors import ArgumentError, TensorError
from minipipe.functional.attention import Rotation
from minipipe.testing import check_gradients
from tests.strategies import examples


def normal(seed: int, *shape: int, dtype: type = np.float64) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@examples(60)
@given(
    st.integers(0, 2**16),
    st.integers(1, 5),
    st.integers(-50, 50),
    st.integers(-50, 50),
    st.integers(-50, 50),
)
def test_the_product_of_a_query_and_a_key_depends_on_their_distance_alone(
    seed, half, i, j, shift
):
    query, key = normal(seed, 1, 2 * half), normal(seed + 1, 1, 2 * half)

    def score(of_query: int, of_key: int) -> float:
        return (
            F.rotary(query, [of_query]).numpy() * F.rotary(key, [of_key]).numpy()
        ).sum()

    assert score(i, j) == pytest.approx(score(i + shift, j + shift), rel=1e-9, abs=1e-9)


def test_but_on_their_distance_it_does_depend():
    query = normal(0, 1, 4)
    scores = [(query * F.rotary(query, [i]).numpy()).sum() for i in range(4)]
    assert len({round(score, 6) for score in scores}) == 4 and scores[
        0
    ] == pytest.approx((query**2).sum())


@examples(30)
@given(st.integers(0, 2**16), st.integers(1, 5), st.integers(1, 6), st.floats(0.5, 1e6))
def test_a_vector_keeps_its_length_and_the_one_at_position_zero_its_direction(
    seed, half, t, base
):
    x = normal(seed, t, 2 * half)
    found = F.rotary(x, base=base).numpy()
    np.testing.assert_allclose(
        np.linalg.norm(found, axis=1), np.linalg.norm(x, axis=1), rtol=1e-12
    )
    np.testing.assert_array_equal(found[0], x[0])


def test_positions_of_a_later_part_are_those_of_the_whole():
    x = normal(0, 2, 3, 7, 4)
    whole = F.rotary(x).numpy()
    np.testing.assert_array_equal(
        F.rotary(x[:, :, 3:], np.arange(3, 7)).numpy(), whole[:, :, 3:]
    )
    by_sample = F.rotary(x, np.stack([np.arange(7), np.arange(7) + 2])).numpy()
    np.testing.assert_array_equal(by_sample[0], whole[0])
    np.testing.assert_array_equal(
        by_sample[1], F.rotary(x[1], np.arange(7) + 2).numpy()
    )


def test_it_is_that_of_the_paper_but_for_the_order_of_the_elements():
    """There elements 2 i and 2 i + 1 are turned together (equation 34)."""
    x, d = normal(0, 5, 6), 6
    order = np.concatenate([np.arange(0, d, 2), np.arange(1, d, 2)])
    angles = np.repeat(
        np.multiply.outer(np.arange(5), 10000.0 ** (-2 * np.arange(3) / d)), 2, axis=1
    )
    beside = np.stack([-x[:, 1::2], x[:, 0::2]], axis=-1).reshape(5, d)
    paper = x * np.cos(angles) + beside * np.sin(angles)
    np.testing.assert_allclose(
        F.rotary(x[:, order]).numpy(), paper[:, order], rtol=1e-12
    )


def test_far_positions_are_as_exact_in_float32_as_the_number_format():
    """Angles are computed in float64: in float32 that of position 1e6 would be off by
    0.03.
    """
    x = np.ones((1, 2), np.float32)
    expected = [np.cos(1e6) - np.sin(1e6), np.cos(1e6) + np.sin(1e6)]
    np.testing.assert_allclose(F.rotary(x, [10**6]).numpy()[0], expected, rtol=1e-6)


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_turned_layer_sees_the_order_which_one_that_is_not_turned_cannot(is_causal):
    x = normal(0, 1, 4, 8)
    for base, differs in ((None, False), (10000.0, True)):
        layer = nn.MultiHeadAttention(
            8, 2, is_causal, np.float64, rotary_base=base
        ).initialise(0)
        last = [
            layer(Tensor(x[:, order])).numpy()[0, -1]
            for order in ([0, 1, 2, 3], [2, 1, 0, 3])
        ]
        assert np.allclose(*last) != differs


def test_a_block_passes_the_base_on_and_tells_it():
    block = nn.TransformerBlock(8, 2, rotary_base=500.0)
    assert block.describe() == "8, num_heads=2, rotary_base=500.0"
    assert (
        next(
            m for m in block.modules() if isinstance(m, nn.MultiHeadAttention)
        ).rotary_base
        == 500.0
    )


WRONG = {
    "a single vector": (lambda: F.rotary(normal(0, 4)), "shape", "expected"),
    "an odd width": (lambda: F.rotary(normal(0, 3, 5)), "shape", "d even"),
    "positions of another length": (
        lambda: F.rotary(normal(0, 3, 4), [0, 1]),
        "shape",
        r"expected positions \(3,\)\.",
    ),
    "positions of samples that are not there": (
        lambda: F.rotary(normal(0, 3, 4), [[0, 1, 2]]),
        "shape",
        r"\(1, 3\); expected",
    ),
    "of other samples": (
        lambda: F.rotary(normal(0, 2, 3, 4), [[0, 1, 2]]),
        "shape",
        r"positions \(3,\) or \(2, 3\)",
    ),
    "between positions": (
        lambda: F.rotary(normal(0, 2, 4), [0.0, 0.5]),
        "dtype",
        "whole numbers",
    ),
    "a base of zero": (
        lambda: F.rotary(normal(0, 2, 4), base=0.0),
        "out-of-range",
        "above 0",
    ),
    "in attention": (
        lambda: F.self_attention(normal(0, 2, 3, 9), 1, rotary_base=1e4),
        "shape",
        "^self_attention: .*even",
    ),
}


@pytest.mark.parametrize(("call", "code", "words"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_turned_is_refused(call, code, words):
    with pytest.raises(TensorError, match=words) as caught:
        call()
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("sizes", "base", "words"),
    [
        ((6, 2), 1e4, "heads 3 wide"),
        ((8, 2), 0, "rotary_base is 0"),
        ((8, 2), float("nan"), "rotary_base is nan"),
    ],
)
def test_a_layer_says_so_when_it_is_made(sizes, base, words):
    with pytest.raises(ArgumentError, match=f"^MultiHeadAttention: {words}") as caught:
        nn.MultiHeadAttention(*sizes, rotary_base=base)
    assert caught.value.code == "value"


def test_a_gradient_that_is_turned_the_wrong_way_would_be_noticed(monkeypatch):
    monkeypatch.setattr(Rotation, "turned_back", Rotation.turned)
    with pytest.raises(AssertionError):
        check_gradients(lambda x: F.rotary(x), normal(0, 3, 4))
    with pytest.raises(AssertionError):
        check_gradients(
            lambda x: F.self_attention(x, 1, rotary_base=10.0), normal(0, 1, 3, 6)
        )
