"""Attention to a memory, and the block of a decoder: what is seen, who has which
parameter, what is refused.
"""

from __future__ import annotations

import numpy as np
import pytest

from minipipe import Tensor, nn, random_key
from minipipe.errors import ArgumentError, TensorError
from minipipe.testing import check_gradients


def normal(seed: int, *shape: int, dtype: type = np.float64) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def names(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: parameter.shape for name, parameter in module.named_parameters()}


def test_the_memory_may_have_another_width_and_fewer_heads():
    layer = nn.CrossAttention(8, 4, memory_width=6, num_key_value_heads=2, dropout=0.1)
    assert names(layer) == {
        "queries.weight": (8, 8),
        "queries.bias": (8,),
        "projections.weight": (6, 8),
        "projections.bias": (8,),
        "output.weight": (8, 8),
        "output.bias": (8,),
    }
    assert (
        layer.describe()
        == "8, num_heads=4, memory_width=6, dropout=0.1, num_key_value_heads=2"
    )
    assert nn.CrossAttention(8, 4, memory_width=8).describe() == "8, num_heads=4"
    assert layer.eval()(
        Tensor(normal(0, 2, 3, 8, dtype=np.float32)), normal(1, 2, 5, 6)
    ).shape == (2, 3, 8)


@pytest.mark.parametrize(
    "mask",
    [None, [[1, 0, 1], [0, 0, 0]], np.ones((2, 2, 3), bool)],
    ids=["", "by key", "all"],
)
def test_gradients_of_cross_attention_are_those_of_central_differences(mask):
    layer = nn.CrossAttention(4, 2, 6, np.float64, num_key_value_heads=1).initialise(0)
    names_ = ["queries", "projections", "output"]
    values = [getattr(layer, name).weight.numpy().copy() for name in names_]

    def call(x: Tensor, memory: Tensor, *weights: Tensor) -> Tensor:
        for name, weight in zip(names_, weights):
            vars(getattr(layer, name))["weight"] = weight
        return layer.forward(x, memory, mask)

    check_gradients(
        call, normal(0, 2, 2, 4), normal(1, 2, 3, 6), *values, tolerance=1e-7
    )


def test_a_hidden_part_of_the_memory_has_no_influence_and_the_rest_has():
    block = nn.DecoderBlock(8, 2, rotary_base=10.0, dtype=np.float64).initialise(0)
    x, memory = normal(0, 1, 3, 8), normal(1, 1, 5, 8)
    other = memory.copy()
    other[:, 3:] = 7.0
    mask = [[1, 1, 1, 0, 0]]
    results = [block(Tensor(x), Tensor(m), None, mask).numpy() for m in (memory, other)]
    np.testing.assert_array_equal(*results)
    assert np.abs(block(Tensor(x), Tensor(memory)).numpy() - results[0]).max() > 1e-3
    other[:, 0] += 1
    assert (
        np.abs(block(Tensor(x), Tensor(other), None, mask).numpy() - results[0]).max()
        > 1e-3
    )


def test_a_decoder_sees_no_later_position_and_all_of_the_memory():
    block = nn.DecoderBlock(8, 2, dtype=np.float64).initialise(0)
    x, memory = normal(0, 1, 4, 8), normal(1, 1, 5, 8)
    later = x.copy()
    later[:, 2:] += 1
    found, changed = (
        block(Tensor(x), Tensor(memory)).numpy(),
        block(Tensor(later), Tensor(memory)).numpy(),
    )
    np.testing.assert_array_equal(found[:, :2], changed[:, :2])
    assert np.abs(found - changed)[:, 2:].max() > 1e-3
    source = Tensor(memory, requires_grad=True)
    block(Tensor(x), source)[:, :1].sum().backward()
    assert (np.abs(source.grad[0]).max(axis=1) > 1e-6).all()


def test_a_query_that_sees_nothing_of_the_memory_gets_the_bias_of_the_output():
    layer = nn.CrossAttention(4, 2, dtype=np.float64).initialise(0)
    layer.output.bias.load(np.arange(4.0), "bias")
    result = layer(
        Tensor(normal(0, 2, 3, 4)), Tensor(normal(1, 2, 5, 4)), np.zeros((2, 5), bool)
    )
    np.testing.assert_array_equal(
        result.numpy(), np.broadcast_to(np.arange(4.0), (2, 3, 4))
    )


def test_the_block_of_a_decoder_passes_its_options_on():
    block = nn.DecoderBlock(
        8,
        4,
        dropout=0.2,
        memory_width=6,
        attention_dropout=0.1,
        num_key_value_heads=2,
        rotary_base=50.0,
    )
    assert block.describe() == (
        "8, num_heads=4, memory_width=6, dropout=0.2, attention_dropout=0.1, "
        "num_key_value_heads=2, rotary_base=50.0"
    )
    own, other = (
        next(m for m in block.modules() if type(m) is kind)
        for kind in (nn.MultiHeadAttention, nn.CrossAttention)
    )
    assert own.is_causal and own.rotary_base == 50.0
    assert (
        own.dropout == other.dropout == 0.1
        and own.num_key_value_heads == other.num_key_value_heads == 2
    )
    assert sum(isinstance(m, nn.Dropout) for m in set(block.modules())) == 1
    assert names(nn.DecoderBlock(8, 2))[
        "cross_attention.layers.1.projections.weight"
    ] == (8, 16)


def test_each_attention_of_a_decoder_drops_weights_of_its_own_and_none_in_evaluation():
    block = nn.DecoderBlock(8, 2, attention_dropout=0.5).initialise(0)
    x, memory = (Tensor(normal(i, 2, 3, 8, dtype=np.float32)) for i in range(2))
    results = []
    for step in (0, 0, 1):
        with random_key(0, step):
            results.append(block(x, memory).numpy().tobytes())
    assert results[0] == results[1] != results[2]
    plain = nn.DecoderBlock(8, 2).initialise(0)
    np.testing.assert_array_equal(
        block.eval()(x, memory).numpy(), plain(x, memory).numpy()
    )


@pytest.mark.parametrize(
    ("x", "memory"),
    [
        ((2, 3, 4), (2, 5, 6)),
        ((2, 3, 8), (2, 5, 8)),
        ((2, 3, 8), (1, 5, 6)),
        ((2, 8), (2, 6)),
        ((2, 3, 8), (2, 0, 6)),
    ],
)
def test_arrays_that_do_not_fit_are_refused_with_both_shapes(x, memory):
    layer = nn.CrossAttention(8, 2, memory_width=6)
    with pytest.raises(
        TensorError, match=r"^CrossAttention: .* expected \(n, t, 8\) and \(n, s, 6\)"
    ) as caught:
        layer(Tensor(np.ones(x, np.float32)), Tensor(np.ones(memory, np.float32)))
    assert caught.value.code == "shape"


@pytest.mark.parametrize(
    "options",
    [
        {"num_heads": 3},
        {"memory_width": -1},
        {"memory_width": 4.0},
        {"num_key_value_heads": 3},
        {"dropout": 1.0},
    ],
)
def test_a_layer_that_cannot_be_is_refused(options):
    with pytest.raises(ArgumentError, match="^CrossAttention: ") as caught:
        nn.CrossAttention(**{"width": 8, "num_heads": 4, **options})
    assert caught.value.code == "value"
