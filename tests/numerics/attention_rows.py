"""Rows for the table of test_operations.py: attention under masks, with dropout, shared
keys, rotated vectors.
"""

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
    somewhere,
    turned,
)

POSITIONS = np.array(
    [[1, 1, 0, 1], [0, 1, 1, 0]]
)  # of PROJECTIONS; with is_causal the first of the second sees nothing


SIX_HEADS, TWO_OF_KEYS, TWO_OF_VALUES = (
    somewhere(2, 6, 3, 2),
    somewhere(2, 2, 5, 2, seed=1),
    somewhere(2, 2, 5, 3, seed=2),
)


TIMES, TIMES_OF_SAMPLES = np.array([4, 0, 7]), np.array([[0, 1, 5], [2, 2, -3]])


def grouped(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, *options: Any, **others: Any
) -> np.ndarray:
    """Return attention in which heads of queries share keys: each head of keys once for
    each head of queries.
    """
    key, value = (
        np.repeat(array, query.shape[-3] // array.shape[-3], axis=-3)
        for array in (key, value)
    )
    return attended(query, key, value, *options, **others)


def in_heads(
    projections: np.ndarray,
    num_heads: int,
    num_shared: int,
    *options: Any,
    base: float | None = None,
) -> np.ndarray:
    """Return self-attention of grouped queries: (n, t, (num_heads + 2 * num_shared) *
    d) to (n, t, num_heads * d).
    """
    n, t, _ = projections.shape
    heads = projections.reshape(n, t, num_heads + 2 * num_shared, -1).transpose(
        0, 2, 1, 3
    )
    query, key, value = np.split(heads, [num_heads, num_heads + num_shared], axis=1)
    if base is not None:
        query, key = turned(query, base=base), turned(key, base=base)
    result = grouped(query, key, value, *options)
    return result.transpose(0, 2, 1, 3).reshape(n, t, -1)


def with_key(
    compute: Callable[..., Tensor], *tensors: Tensor, **options: Any
) -> Tensor:
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
        lambda c, x: F.self_attention(
            x, 1, is_causal=True, mask=c(POSITIONS.astype(np.uint8))
        ),
        lambda x: attended_by_heads(x, 1, True, POSITIONS),
        (PROJECTIONS,),
    ),
    Row(
        "self_attention",
        lambda c, x: F.self_attention(
            x, 2, mask=c(BY_QUERY[..., :4].repeat(2, axis=1)[:, :4])
        ),
        lambda x: attended_by_heads(
            x, 2, mask=BY_QUERY[..., :4].repeat(2, axis=1)[:, :4]
        ),
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
        lambda c, q, k, v: with_key(
            F.attention, q, k, v, is_causal=True, mask=c(BY_QUERY), dropout=0.5
        ),
        lambda q, k, v: attended(q, k, v, True, BY_QUERY, dropout=0.5),
        (QUERIES, KEYS, VALUES),
    ),
    Row(
        "self_attention",
        lambda c, x: with_key(
            F.self_attention, x, num_heads=1, is_causal=True, dropout=0.3
        ),
        lambda x: attended(*np.split(x[:, None], 3, axis=-1), True, dropout=0.3)[:, 0],
        (PROJECTIONS,),
    ),
    # -- heads that share keys and values
    Row(
        "attention",
        lambda c, q, k, v: F.attention(q, k, v),
        grouped,
        (SIX_HEADS, TWO_OF_KEYS, TWO_OF_VALUES),
    ),
    Row(
        "attention",
        lambda c, q, k, v: F.attention(q, k, v, is_causal=True, mask=c(BY_QUERY)),
        lambda q, k, v: grouped(q, k, v, True, BY_QUERY),
        (SIX_HEADS, TWO_OF_KEYS, TWO_OF_VALUES),
    ),
    Row(
        "attention",
        lambda c, q, k, v: F.attention(q, k, v, mask=c(BY_KEY)),
        lambda q, k, v: grouped(q, k, v, mask=BY_KEY),
        # one head of keys for all
        (SIX_HEADS, TWO_OF_KEYS[:, :1], TWO_OF_VALUES[:, :1]),
    ),
    Row(
        "attention",
        lambda c, q, k, v: with_key(F.attention, q, k, v, dropout=0.4),
        # Six heads of three queries each, in two groups: the keys of a group are
        # weighed by nine queries.
        lambda q, k, v: attended(q.reshape(2, 2, 9, 2), k, v, dropout=0.4).reshape(
            2, 6, 3, 3
        ),
        (SIX_HEADS, TWO_OF_KEYS, TWO_OF_VALUES),
    ),
    Row(
        "self_attention",
        lambda c, x: F.self_attention(x, 4, num_key_value_heads=1),
        lambda x: in_heads(x, 4, 1),
        (PROJECTIONS,),
    ),
    Row(
        "self_attention",
        lambda c, x: F.self_attention(x, 2, True, c(POSITIONS), num_key_value_heads=2),
        lambda x: attended_by_heads(x, 2, True, POSITIONS),
        (PROJECTIONS,),
    ),
    Row(
        "self_attention",
        lambda c, x: F.self_attention(x, 4, True, c(POSITIONS), num_key_value_heads=2),
        lambda x: in_heads(x, 4, 2, True, POSITIONS),
        (somewhere(2, 4, 16, seed=3),),
    ),
    # -- rotary position embedding
    Row("rotary", lambda c, x: F.rotary(x), turned, (somewhere(5, 4),)),
    Row(
        "rotary",
        lambda c, x: F.rotary(x, base=7),
        lambda x: turned(x, base=7),
        (HEADS,),
    ),
    Row(
        "rotary",
        lambda c, x: F.rotary(x, c(TIMES)),
        lambda x: turned(x, TIMES),
        (QUERIES,),
    ),
    Row(
        "rotary",
        lambda c, x: F.rotary(x, Tensor(c(TIMES_OF_SAMPLES)), base=50.0),
        lambda x: turned(x, TIMES_OF_SAMPLES, 50.0),
        (SIX_HEADS,),
    ),
    Row(
        "self_attention",
        lambda c, x: F.self_attention(x, 2, rotary_base=10.0),
        lambda x: in_heads(x, 2, 2, base=10.0),
        (PROJECTIONS,),
    ),
    Row(
        "self_attention",
        lambda c, x: F.self_attention(
            x, 4, True, c(POSITIONS), num_key_value_heads=2, rotary_base=100
        ),
        lambda x: in_heads(x, 4, 2, True, POSITIONS, base=100),
        (somewhere(2, 4, 16, seed=3),),
    ),
]
