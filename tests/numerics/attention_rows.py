"""Rows for the table of test_operations.py: attention under masks and with dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minipipe import Tensor, random_key
from minipipe import functional as F
from tests.numerics.formulas import (
    BY_KEY,
    BY_QUERY,
    HEADS,
    KEYS,
    PROJECTIONS,
    QUERIES,
    VALUES,
    Row,
    attended,
    attended_by_heads,
)

POSITIONS = np.array(
    [[1, 1, 0, 1], [0, 1, 1, 0]]
)  # of PROJECTIONS; with is_causal the first of the second sees nothing


def with_key(compute: Callable[..., Tensor], *tensors: Tensor, **options: Any) -> Tensor:
    """Compute where ``dropped_array`` of formulas.py draws."""
    with random_key(3, step=1):
        return compute(*tensors, **options)


ATTENTION_ROWS = [
    Row(
        "attention",
        lambda c, q, k, v: F.attention(q, k, v, mask=c(BY_KEY)),
        lambda q, k, v: attended(q, k, v, mask=BY_KEY),
        (QUERIES, KEYS, VALUES),
    ),
    Row(
        "attention",
        lambda c, q, k, v: F.attention(q, k, v, mask=Tensor(c(BY_QUERY))),
        lambda q, k, v: attended(q, k, v, mask=BY_QUERY),
        (QUERIES, KEYS, VALUES),
    ),
    Row(
        "attention",
        lambda c, q, k, v: F.attention(q, k, v, is_causal=True, mask=c(BY_QUERY)),
        lambda q, k, v: attended(q, k, v, True, BY_QUERY),
        (QUERIES, KEYS, VALUES),
    ),
    Row(
        "attention",
        lambda c, q: F.attention(q, q, q, mask=c(BY_KEY[:1, :3])),
        lambda q: attended(q, q, q, mask=BY_KEY[:1, :3]),
        (HEADS,),  # two heads, and one mask for all samples
    ),
    Row(
        "self_attention",
        lambda c, x: F.self_attention(x, 2, mask=c(POSITIONS)),
        lambda x: attended_by_heads(x, 2, mask=POSITIONS),
        (PROJECTIONS,),
    ),
    Row(
        "self_attention",
        lambda c, x: F.self_attention(x, 1, is_causal=True, mask=c(POSITIONS.astype(np.uint8))),
        lambda x: attended_by_heads(x, 1, True, POSITIONS),
        (PROJECTIONS,),
    ),
    Row(
        "self_attention",
        lambda c, x: F.self_attention(x, 2, mask=c(BY_QUERY[..., :4].repeat(2, axis=1)[:, :4])),
        lambda x: attended_by_heads(x, 2, mask=BY_QUERY[..., :4].repeat(2, axis=1)[:, :4]),
        (PROJECTIONS,),
    ),
    # -- dropout
    Row(
        "attention",
        lambda c, q, k, v: with_key(F.attention, q, k, v, dropout=0.4),
        lambda q, k, v: attended(q, k, v, dropout=0.4),
        (QUERIES, KEYS, VALUES),
    ),
    Row(
        "attention",
        lambda c, q, k, v: with_key(F.attention, q, k, v, is_causal=True, mask=c(BY_QUERY), dropout=0.5),
        lambda q, k, v: attended(q, k, v, True, BY_QUERY, dropout=0.5),
        (QUERIES, KEYS, VALUES),
    ),
    Row(
        "self_attention",
        lambda c, x: with_key(F.self_attention, x, num_heads=1, is_causal=True, dropout=0.3),
        lambda x: attended(*np.split(x[:, None], 3, axis=-1), True, dropout=0.3)[:, 0],
        (PROJECTIONS,),
    ),
]
