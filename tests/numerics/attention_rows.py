"""Rows for the table of test_operations.py: attention under masks."""

from __future__ import annotations

import numpy as np

from minipipe import Tensor
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
]
