"""The same transformer in minipipe and in PyTorch: which parameter is which, and the
same values in both.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from minipipe import nn


class Pair(NamedTuple):
    """A parameter of ours and the same one of theirs, which may be its transpose: (in,
    out) here, (out, in) there.
    """

    ours: nn.Parameter
    theirs: Any
    is_transposed: bool = False

    def our_way(self, theirs: Any) -> np.ndarray:
        array = theirs.detach().numpy()
        return array.T if self.is_transposed else array


class Rows(NamedTuple):
    """Some rows of a parameter of theirs, which has several of ours in one."""

    whole: Any
    rows: slice

    def detach(self) -> Any:
        return self.whole.detach()[self.rows]

    @property
    def grad(self) -> Any:
        return self.whole.grad[self.rows]


def of_linear(ours: nn.Linear, theirs: Any) -> Iterator[Pair]:
    yield Pair(ours.weight, theirs.weight, is_transposed=True)
    yield Pair(ours.bias, theirs.bias)


def of_norm(ours: nn.LayerNorm, theirs: Any) -> Iterator[Pair]:
    yield Pair(ours.weight, theirs.weight)
    yield Pair(ours.bias, theirs.bias)


def of_attention(ours: nn.MultiHeadAttention, theirs: Any) -> Iterator[Pair]:
    """Of torch.nn.MultiheadAttention, which also has one matrix for queries, keys and
    values.
    """
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


def of_cross_attention(ours: nn.CrossAttention, theirs: Any) -> Iterator[Pair]:
    """Of torch.nn.MultiheadAttention, whose first rows make the queries."""
    width = len(ours.queries.weight)
    for layer, rows in (
        (ours.queries, slice(0, width)),
        (ours.projections, slice(width, None)),
    ):
        yield Pair(layer.weight, Rows(theirs.in_proj_weight, rows), is_transposed=True)
        yield Pair(layer.bias, Rows(theirs.in_proj_bias, rows))
    yield from of_linear(ours.output, theirs.out_proj)


def of_decoder_block(ours: nn.DecoderBlock, theirs: Any) -> Iterator[Pair]:
    """Of torch.nn.TransformerDecoderLayer with norm_first=True."""
    norm, attention, *_ = ours.attention.layers
    yield from of_norm(norm, theirs.norm1)
    yield from of_attention(attention, theirs.self_attn)
    norm, attention, *_ = ours.cross_attention.layers
    yield from of_norm(norm, theirs.norm2)
    yield from of_cross_attention(attention, theirs.multihead_attn)
    norm, into, _, out, *_ = ours.network.layers
    yield from of_norm(norm, theirs.norm3)
    yield from of_linear(into, theirs.linear1)
    yield from of_linear(out, theirs.linear2)


def fill(pairs: list[Pair], generator: np.random.Generator) -> None:
    """Draw values for both, biases and norms among them, near those that a model begins
    with.
    """
    for pair in pairs:
        values = generator.normal(0, 0.4, pair.ours.shape) + (len(pair.ours.shape) == 1)
        pair.ours.load(values, "a parameter")
        pair.theirs.detach().numpy()[...] = values.T if pair.is_transposed else values
