"""PyTorch as an oracle for the options of attention: masks, shared keys, rotary
positions, a memory; in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Tensor, nn
from minipipe import functional as F
from tests import torch_twins
from tests.strategies import examples

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[oracle]'")
TF = torch.nn.functional

TOLERANCE = 1e-10
SIZES = st.fixed_dictionaries(
    {
        "n": st.integers(1, 3),
        "t": st.integers(1, 5),
        "s": st.integers(1, 5),
        "shared": st.integers(1, 3),
        "group": st.integers(1, 3),
        "half": st.integers(1, 2),
    }
)
seeds = st.integers(0, 2**16)


def compare(
    ours: Callable[..., Tensor],
    theirs: Callable[..., Any],
    arrays: list,
    pairs: list | None = None,
) -> None:
    """Compare the results for arrays, and the gradients of all arrays and of all pairs
    of parameters.
    """
    pairs, generator = pairs or [], np.random.default_rng(0)
    torch_twins.fill(pairs, generator)
    tensors = [Tensor(array, requires_grad=True) for array in arrays]
    their_tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    result, their_result = ours(*tensors), theirs(*their_tensors)
    assert_close("the result", result.numpy(), their_result.detach().numpy())
    upstream = generator.standard_normal(result.shape)
    result.backward(upstream)
    their_result.backward(torch.tensor(upstream))
    for i, (tensor, their_tensor) in enumerate(zip(tensors, their_tensors)):
        assert_close(
            f"the gradient of input {i}", tensor.grad, their_tensor.grad.numpy()
        )
    for pair in pairs:
        assert_close(
            f"the gradient of {pair.ours.shape}",
            pair.ours.grad,
            pair.our_way(pair.theirs.grad),
        )


def assert_close(name: str, ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == np.float64 and ours.shape == theirs.shape, name
    np.testing.assert_allclose(ours, theirs, TOLERANCE, TOLERANCE, err_msg=name)


def masked(generator: np.random.Generator, *shape: int) -> np.ndarray:
    """Draw a mask in which everybody sees the first key; in PyTorch who sees nothing is
    no number.
    """
    mask = generator.random(shape) < 0.6
    mask[..., 0] = True
    return mask


# -- functions -------------------------------------------------------------------------


@examples(60)
@given(SIZES, st.sampled_from(["by key", "by query", "none"]), st.booleans(), seeds)
def test_attention_is_that_of_pytorch_under_masks_and_with_shared_keys(
    sizes, kind, is_causal, seed
):
    n, t, s, shared, group, half = sizes.values()
    generator = np.random.default_rng(seed)
    shapes = (
        (n, shared * group, t, 2 * half),
        (n, shared, s, 2 * half),
        (n, shared, s, 3),
    )
    mask = {
        "by key": masked(generator, n, s),
        "by query": masked(generator, n, t, s),
        "none": None,
    }[kind]
    seen = np.ones((n, 1, t, s), bool)
    if mask is not None:
        seen &= np.expand_dims(mask, (1, 2) if kind == "by key" else 1)
    if is_causal:
        seen &= np.tril(np.ones((t, s), bool))
    compare(
        lambda q, k, v: F.attention(q, k, v, is_causal, mask),
        lambda q, k, v: TF.scaled_dot_product_attention(
            q, k, v, torch.tensor(seen), enable_gqa=True
        ),
        [generator.standard_normal(shape) for shape in shapes],
    )


def their_rotary(x: Any, positions: Any, base: float) -> Any:
    """As in Hugging Face's modelling code for Llama: ``x * cos + rotate_half(x) *
    sin``.
    """
    d = x.shape[-1]
    frequencies = 1.0 / base ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
    angles = positions[..., None].double() * frequencies
    cosine, sine = (
        torch.cat([part, part], -1) for part in (angles.cos(), angles.sin())
    )
    half = torch.cat([-x[..., d // 2 :], x[..., : d // 2]], -1)
    return x * cosine + half * sine


@examples(40)
@given(SIZES, st.booleans(), st.floats(2, 1e5), seeds)
def test_rotary_is_that_of_published_llama_code(sizes, has_positions, base, seed):
    n, t, _, heads, _, half = sizes.values()
    generator = np.random.default_rng(seed)
    positions = generator.integers(-9, 99, (n, t)) if has_positions else None
    theirs = torch.arange(t) if positions is None else torch.tensor(positions)[:, None]
    compare(
        lambda x: F.rotary(x, positions, base),
        lambda x: their_rotary(x, theirs, base),
        [generator.standard_normal((n, heads, t, 2 * half))],
    )


# -- layers ----------------------------------------------------------------------------


@examples(30)
@given(SIZES, st.booleans(), seeds)
def test_a_layer_with_shared_keys_and_rotary_positions_is_that_put_together_in_pytorch(
    sizes, is_causal, seed
):
    n, t, _, shared, group, half = sizes.values()
    heads, d = shared * group, 2 * half
    ours = nn.MultiHeadAttention(
        heads * d,
        heads,
        is_causal,
        np.float64,
        num_key_value_heads=shared,
        rotary_base=100.0,
    )
    into = torch.nn.Linear(heads * d, (heads + 2 * shared) * d, dtype=torch.float64)
    out = torch.nn.Linear(heads * d, heads * d, dtype=torch.float64)
    pairs = [
        *torch_twins.of_linear(ours.projections, into),
        *torch_twins.of_linear(ours.output, out),
    ]

    def theirs(x: Any) -> Any:
        parts = into(x).unflatten(-1, (-1, d)).transpose(1, 2)
        query, key, value = parts.split([heads, shared, shared], 1)
        query, key = (
            their_rotary(part, torch.arange(t), 100.0) for part in (query, key)
        )
        result = TF.scaled_dot_product_attention(
            query, key, value, is_causal=is_causal, enable_gqa=True
        )
        return out(result.transpose(1, 2).flatten(2))

    compare(
        ours,
        theirs,
        [np.random.default_rng(seed).standard_normal((n, t, heads * d))],
        pairs,
    )


@examples(30)
@given(SIZES, st.booleans(), seeds)
def test_a_block_under_a_padding_mask_is_that_of_pytorch(sizes, is_causal, seed):
    n, t, _, heads, _, half = sizes.values()
    width = 2 * heads * half
    ours = nn.TransformerBlock(
        width, heads, is_causal, 5, approximate_gelu=False, dtype=np.float64
    )
    theirs = torch.nn.TransformerEncoderLayer(
        width,
        heads,
        5,
        0.0,
        "gelu",
        batch_first=True,
        norm_first=True,
        dtype=torch.float64,
    )
    generator = np.random.default_rng(seed)
    mask = masked(generator, n, t)
    future = torch.ones(t, t, dtype=torch.bool).triu(1) if is_causal else None
    compare(
        lambda x: ours(x, mask),
        lambda x: theirs(x, src_mask=future, src_key_padding_mask=torch.tensor(~mask)),
        [generator.standard_normal((n, t, width))],
        list(torch_twins.of_block(ours, theirs)),
    )


@examples(40)
@given(SIZES, st.booleans(), seeds)
def test_cross_attention_is_that_of_pytorch(sizes, has_mask, seed):
    n, t, s, heads, _, half = sizes.values()
    width = 2 * heads * half
    ours = nn.CrossAttention(width, heads, dtype=np.float64)
    theirs = torch.nn.MultiheadAttention(
        width, heads, batch_first=True, dtype=torch.float64
    )
    generator = np.random.default_rng(seed)
    mask = masked(generator, n, s) if has_mask else None
    hidden = torch.tensor(~mask) if has_mask else None
    compare(
        lambda x, memory: ours(x, memory, mask),
        lambda x, memory: theirs(
            x, memory, memory, key_padding_mask=hidden, need_weights=False
        )[0],
        [generator.standard_normal((n, length, width)) for length in (t, s)],
        list(torch_twins.of_cross_attention(ours, theirs)),
    )


def check_decoder_block(
    sizes: dict[str, int], seed: int, swap: bool = False, **options: Any
) -> None:
    n, t, s, heads, _, half = sizes.values()
    width = 2 * heads * half
    ours = nn.DecoderBlock(
        width, heads, 5, dtype=np.float64, **{"approximate_gelu": False, **options}
    )
    theirs = torch.nn.TransformerDecoderLayer(
        width,
        heads,
        5,
        0.0,
        "gelu",
        batch_first=True,
        norm_first=True,
        dtype=torch.float64,
    )
    generator = np.random.default_rng(seed)
    mask, memory_mask = masked(generator, n, t), masked(generator, n, s)
    hidden, of_memory = torch.tensor(~mask), torch.tensor(~memory_mask)
    future = torch.ones(t, t, dtype=torch.bool).triu(1)
    masks = (memory_mask, mask) if swap else (mask, memory_mask)
    compare(
        lambda x, memory: ours(x, memory, *masks),
        lambda x, memory: theirs(
            x,
            memory,
            tgt_mask=future,
            tgt_key_padding_mask=hidden,
            memory_key_padding_mask=of_memory,
        ),
        [generator.standard_normal((n, length, width)) for length in (t, s)],
        list(torch_twins.of_decoder_block(ours, theirs)),
    )


@examples(40)
@given(SIZES, seeds)
def test_a_decoder_block_is_that_of_pytorch_with_the_norms_first(sizes, seed):
    check_decoder_block(sizes, seed)


@pytest.mark.parametrize(
    "change", [{"approximate_gelu": True}, {"rotary_base": 10.0}, {"swap": True}]
)
def test_a_decoder_block_that_differed_would_be_noticed(change):
    sizes = {"n": 3, "t": 4, "s": 4, "shared": 2, "group": 1, "half": 2}
    with pytest.raises(AssertionError, match="the result"):
        check_decoder_block(sizes, 0, **change)
