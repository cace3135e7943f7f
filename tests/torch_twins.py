"""The same transformer in minipipe and in PyTorch: which parameter is which, and the same values in both."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from minipipe import nn


class Pair(NamedTuple):
    """A parameter of ours and the same one of theirs, which may be its transpose: (in, out) here, (out, in) there."""

    ours: nn.Parameter
    theirs: Any
    is_transposed: bool = False

    def our_way(self, theirs: Any) -> np.ndarray:
        array = theirs.detach().numpy()
        return array.T if self.is_transposed else array


def of_linear(ours: nn.Linear, theirs: Any) -> Iterator[Pair]:
    yield Pair(ours.weight, theirs.weight, is_transposed=True)
    yield Pair(ours.bias, theirs.bias)


def of_norm(ours: nn.LayerNorm, theirs: Any) -> Iterator[Pair]:
    yield Pair(ours.weight, theirs.weight)
    yield Pair(ours.bias, theirs.bias)


def of_attention(ours: nn.MultiHeadAttention, theirs: Any) -> Iterator[Pair]:
    """Of torch.nn.MultiheadAttention, which also has one matrix for queries, keys and values."""
    yield Pair(ours.projections.weight, theirs.in_proj_weight, is_transposed=True)
    yield Pair(ours.projections.bias, theirs.in_proj_bias)
    yield from of_linear(ours.output, theirs.out_proj)


def of_block(ours: nn.TransformerBlock, theirs: Any) -> Iterator[Pair]:
    """Of torch.nn.TransformerEncoderLayer with norm_first=True."""
    norm, attention, *_ = ours.attention.layers
    yield from of_norm(norm, theirs.norm1)
    yield from of_attention(attention, theirs.self_attn)
    norm, into, _, out, *_ = ours.network.layers
    yield from of_norm(norm, theirs.norm2)
    yield from of_linear(into, theirs.linear1)
    yield from of_linear(out, theirs.linear2)


def fill(pairs: list[Pair], generator: np.random.Generator) -> None:
    """Draw values for both, biases and norms among them, near those that a model begins with."""
    for pair in pairs:
        values = generator.normal(0, 0.4, pair.ours.shape) + (len(pair.ours.shape) == 1)
        pair.ours.load(values, "a parameter")
        pair.theirs.detach().numpy()[...] = values.T if pair.is_transposed else values
