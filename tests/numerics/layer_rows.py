"""Rows for the table of test_operations.py: dropout, embedding, norms, attention,
convolutions, softmax and losses.
"""

from __future__ import annotations

import numpy as np

from minipipe import Tensor, random_key
from minipipe import functional as F
from tests.numerics.attention_rows import ATTENTION_ROWS
from tests.numerics.formulas import (
    BIAS,
    CHANNELS,
    COUNTS,
    CUBE,
    DEPTHWISE,
    FILTERS,
    HEADS,
    IDS,
    IMAGES,
    KERNELS,
    KEYS,
    MATRIX,
    OTHER,
    PROJECTIONS,
    QUERIES,
    REVERSED,
    ROW,
    SCALAR,
    SERIES,
    SMALL,
    TABLE,
    VALUES,
    VECTOR,
    WEIGHT,
    WIDE_BIAS,
    Row,
    attended,
    attended_by_heads,
    convolved,
    dropped_array,
    grouped,
    normalised,
    normalised_in_groups,
    of_mean_square_one,
    remembered,
    softmax,
    somewhere,
    windows,
)


def dropped(a: Tensor, probability: float) -> Tensor:
    with random_key(3, step=1):
        return F.dropout(a, probability)


def summed(subscripts: str, *arrays: np.ndarray) -> Row:
    """Return a row for einsum, whose formula is NumPy's."""
    return Row(
        "einsum",
        lambda c, *tensors: F.einsum(subscripts, *tensors),
        lambda *given: np.einsum(subscripts, *given),
        arrays,
    )


LAYER_ROWS = [
    # -- sums of products
    summed("ij,jk->ik", MATRIX, WEIGHT),
    summed("tij , kj", CUBE, OTHER),
    summed("ij,ij->j", MATRIX, OTHER),
    summed("ij,k->kij", MATRIX, BIAS),
    summed("tij->jt", CUBE),
    summed("ij,j,jk->", MATRIX, ROW, WEIGHT),
    summed("n...i,oi->n...o", CUBE, somewhere(3, 4, seed=37)),
    summed("...,...i", SCALAR, MATRIX),
    summed("...i,...i->...", CUBE[:, :1], CUBE[0]),
    Row(
        "einsum", lambda c, a: F.einsum("ij,ik->jk", a, a), lambda a: a.T @ a, (MATRIX,)
    ),
    Row(
        "einsum", lambda c, a: F.einsum("ij,j", a, c(ROW)), lambda a: a @ ROW, (MATRIX,)
    ),
    # -- dropout
    Row(
        "dropout",
        lambda c, a: dropped(a, 0.5),
        lambda a: dropped_array(a, 0.5),
        (CUBE,),
    ),
    Row("dropout", lambda c, a: dropped(a, 0), lambda a: a, (MATRIX,)),
    # -- embedding and normalisation
    Row("embedding", lambda c, w: F.embedding(w, c(IDS)), lambda w: w[IDS], (TABLE,)),
    Row(
        "embedding",
        lambda c, w: F.embedding(w, Tensor(c(IDS[0]))),
        lambda w: w[IDS[0]],
        (TABLE,),
    ),
    Row(
        "embedding",
        lambda c, w: F.embedding(w, [2, 2, 2, 2, 0, 2, 2, 2]),
        lambda w: w[[2] * 4 + [0] + [2] * 3],
        (TABLE,),
    ),
    Row("embedding", lambda c, w: F.embedding(w, 4), lambda w: w[4], (TABLE,)),
    Row(
        "embedding",
        lambda c, w: F.embedding(w, c(np.array([1, 1], np.uint8))),
        lambda w: w[[1, 1]],
        (TABLE,),
    ),
    Row(
        "layer_norm",
        lambda c, x, w, b: F.layer_norm(x, w, b),
        lambda x, w, b: normalised(x) * w + b,
        (MATRIX, ROW, WIDE_BIAS),
    ),
    Row(
        "layer_norm",
        lambda c, x, w, b: F.layer_norm(x, w, b, epsilon=0.1),
        lambda x, w, b: normalised(x, 0.1) * w + b,
        (CUBE, ROW, WIDE_BIAS),
    ),
    Row(
        "layer_norm",
        lambda c, x, b: F.layer_norm(F.transpose(x), c(ROW), b),
        lambda x, b: normalised(x.T) * ROW + b,
        (REVERSED, WIDE_BIAS),
    ),
    Row(
        "layer_norm",
        lambda c, w, b: F.layer_norm(c(OTHER[0]), w, b),
        lambda w, b: normalised(OTHER[0]) * w + b,
        (ROW, WIDE_BIAS),
    ),
    Row(
        "group_norm",
        lambda c, x, w, b: F.group_norm(x, 3, w, b),
        lambda x, w, b: (
            normalised_in_groups(x, 3) * w[:, None, None] + b[:, None, None]
        ),
        (CHANNELS, somewhere(6, seed=27), somewhere(6, seed=28)),
    ),
    Row(
        "group_norm",
        lambda c, x, w: F.group_norm(x, 1, w, c(VECTOR), epsilon=0.1),
        lambda x, w: normalised_in_groups(x, 1, 0.1) * w[:, None] + VECTOR[:, None],
        (SERIES, somewhere(3, seed=29)),
    ),
    Row(
        "group_norm",
        lambda c, x, b: F.group_norm(F.transpose(x), 2, c(ROW), b),
        lambda x, b: normalised_in_groups(x.T, 2) * ROW + b,
        (somewhere(4, 5, seed=30), WIDE_BIAS),
    ),
    Row(
        "rms_norm",
        lambda c, x, w: F.rms_norm(x, w),
        lambda x, w: of_mean_square_one(x) * w,
        (MATRIX, ROW),
    ),
    Row(
        "rms_norm",
        lambda c, x, w: F.rms_norm(x, w, 0.1),
        lambda x, w: of_mean_square_one(x, 0.1) * w,
        (CUBE, ROW),
    ),
    Row(
        "rms_norm",
        lambda c, x: F.rms_norm(x, c(ROW)),
        lambda x: of_mean_square_one(x) * ROW,
        (WIDE_BIAS,),
    ),
    # -- attention
    Row(
        "attention",
        lambda c, q, k, v: F.attention(q, k, v),
        attended,
        (MATRIX, TABLE, somewhere(5, 2, seed=20)),
    ),
    Row(
        "attention",
        lambda c, q, k, v: F.attention(q, k, v),
        attended,
        (QUERIES, KEYS, VALUES),
    ),
    Row(
        "attention",
        lambda c, q, k, v: F.attention(q, k, v, is_causal=True),
        lambda q, k, v: attended(q, k, v, is_causal=True),
        # fewer queries than keys: the last keys are never seen
        (QUERIES, KEYS, VALUES),
    ),
    Row(
        "attention",
        lambda c, q, k, v: F.attention(q, k, v, is_causal=True),
        lambda q, k, v: attended(q, k, v, is_causal=True),
        (TABLE, MATRIX, OTHER),  # more queries than keys
    ),
    Row(
        "attention",
        lambda c, q: F.attention(q, q, q, is_causal=True),
        lambda q: attended(q, q, q, is_causal=True),
        (HEADS,),
    ),
    Row(
        "attention",
        lambda c, q, k, v: F.attention(q, k, v),
        attended,
        # one key, with all the weight
        (HEADS, somewhere(2, 2, 1, 2, seed=21), somewhere(2, 2, 1, 3, seed=22)),
    ),
    Row(
        "attention",
        lambda c, k: F.attention(c(5 * MATRIX), F.transpose(k), c(TABLE[:4])),
        lambda k: attended(5 * MATRIX, k.T, TABLE[:4]),
        (somewhere(4, 4, seed=23),),
    ),
    Row(
        "self_attention",
        lambda c, x: F.self_attention(x, 1),
        lambda x: attended_by_heads(x, 1),
        (PROJECTIONS,),
    ),
    Row(
        "self_attention",
        lambda c, x: F.self_attention(x, 2),
        lambda x: attended_by_heads(x, 2),
        (PROJECTIONS,),
    ),
    Row(
        "self_attention",
        lambda c, x: F.self_attention(x, num_heads=2, is_causal=True),
        lambda x: attended_by_heads(x, 2, is_causal=True),
        (PROJECTIONS,),
    ),
    Row(
        "self_attention",
        lambda c, x: F.self_attention(F.transpose(x), 1, is_causal=True),
        lambda x: attended_by_heads(x.T, 1, is_causal=True),
        (somewhere(3, 5, 2, seed=24),),  # a view, and heads of one number
    ),
    Row(
        "self_attention",
        lambda c, x: F.self_attention(x, num_heads=4, is_causal=True),
        lambda x: x[..., 8:],  # a position alone sees only itself
        (PROJECTIONS[:, :1],),
    ),
    *ATTENTION_ROWS,
    # -- recurrence
    Row(
        "lstm",
        lambda c, x, w, u, b: F.lstm(x, w, u, b),
        remembered,
        (
            CUBE,
            somewhere(4, 8, seed=32),
            somewhere(2, 8, seed=33),
            somewhere(8, seed=34),
        ),
    ),
    Row(
        "lstm",
        lambda c, x, w, u: F.lstm(x, w, u),
        remembered,
        (SERIES, somewhere(7, 4, seed=35), ROW[None]),
    ),
    Row(
        "lstm",
        lambda c, x, u: F.lstm(F.transpose(x), c(WEIGHT.T.repeat(6, 1)), u),
        lambda x, u: remembered(x.T, WEIGHT.T.repeat(6, 1), u),
        (REVERSED.swapaxes(0, 2), somewhere(6, 24, seed=36)),
    ),
    Row(
        "lstm",
        lambda c, w, b: F.lstm(c(CUBE[:, :1]), w, c(np.zeros((2, 8))), b),
        lambda w, b: remembered(CUBE[:, :1], w, np.zeros((2, 8)), b),
        (somewhere(4, 8, seed=32), somewhere(8, seed=34)),
    ),
    # -- convolutions and pooling
    Row("conv2d", lambda c, x, w: F.conv2d(x, w), convolved, (IMAGES, KERNELS)),
    Row(
        "conv2d",
        lambda c, x, w, b: F.conv2d(x, w, b, padding=1),
        lambda x, w, b: convolved(x, w, padding=(1, 1)) + b[:, None, None],
        (IMAGES, KERNELS, BIAS),
    ),
    Row(
        "conv2d",
        lambda c, x, w, b: F.conv2d(x, w, b, stride=(2, 3), padding=(0, 2)),
        lambda x, w, b: convolved(x, w, (2, 3), (0, 2)) + b[:, None, None],
        (IMAGES, KERNELS, BIAS),
    ),
    Row(
        "conv2d",
        lambda c, x, w: F.conv2d(x, w, stride=3),
        lambda x, w: convolved(x, w, (3, 3)),
        (IMAGES, SMALL),
    ),
    Row("conv2d", lambda c, x, w: F.conv2d(x, w), convolved, (IMAGES[:1], IMAGES)),
    Row(
        "conv2d",
        lambda c, w: F.conv2d(c(IMAGES), w),
        lambda w: convolved(IMAGES, w),
        (KERNELS,),
    ),
    Row(
        "conv1d",
        lambda c, x, w: F.conv1d(x, w, stride=2, padding=1),
        lambda x, w: convolved(x[:, :, None], w[:, :, None], (1, 2), (0, 1))[:, :, 0],
        (SERIES, FILTERS),
    ),
    Row(
        "conv1d",
        lambda c, x, w, b: F.conv1d(x, w, b),
        lambda x, w, b: convolved(x[:, :, None], w[:, :, None])[:, :, 0] + b[:, None],
        (SERIES, FILTERS, ROW),
    ),
    Row(
        "conv1d",
        lambda c, x, w, b: F.conv1d(x, w, b, padding="same", dilation=3, groups=3),
        lambda x, w, b: (
            grouped(x[:, :, None], w[:, :, None], 3, (0, 0, 3, 3), (1, 3))[:, :, 0]
            + b[:, None]
        ),
        (SERIES, DEPTHWISE[:, :, 0], somewhere(6, seed=25)),
    ),
    Row(
        "conv2d",
        lambda c, x, w: F.conv2d(x, w, padding="same"),
        lambda x, w: grouped(x, w, 1, (1, 1, 0, 1)),
        (IMAGES, KERNELS),
    ),
    Row(
        "conv2d",
        lambda c, x, w: F.conv2d(x, w, padding=(0, 2), dilation=(4, 1), groups=3),
        lambda x, w: grouped(x, w, 3, (0, 0, 2, 2), (4, 1)),
        (IMAGES, DEPTHWISE),
    ),
    Row(
        "max_pool2d",
        lambda c, x: F.max_pool2d(x, 2),
        lambda x: windows(x, (2, 2), (2, 2)).max((4, 5)),
        (IMAGES,),
    ),
    Row(
        "max_pool2d",
        lambda c, x: F.max_pool2d(x, (3, 2), stride=1),
        lambda x: windows(x, (3, 2), (1, 1)).max((4, 5)),
        (IMAGES,),
    ),
    Row(
        "max_pool2d",
        lambda c, x: F.max_pool2d(x, 1, (2, 3)),
        lambda x: x[:, :, ::2, ::3],
        (IMAGES,),
    ),
    Row(
        "max_pool1d",
        lambda c, x: F.max_pool1d(x, 3, 2),
        lambda x: windows(x[:, :, None], (1, 3), (1, 2)).max((4, 5))[:, :, 0],
        (SERIES,),
    ),
    Row(
        "avg_pool2d",
        lambda c, x: F.avg_pool2d(x, 2),
        lambda x: windows(x, (2, 2), (2, 2)).mean((4, 5)),
        (IMAGES,),
    ),
    Row(
        "avg_pool2d",
        lambda c, x: F.avg_pool2d(x, (3, 2), stride=1),
        lambda x: windows(x, (3, 2), (1, 1)).mean((4, 5)),
        (IMAGES,),
    ),
    Row(
        "avg_pool1d",
        lambda c, x: F.avg_pool1d(x, 3, 2),
        lambda x: windows(x[:, :, None], (1, 3), (1, 2)).mean((4, 5))[:, :, 0],
        (SERIES,),
    ),
    Row(
        "global_avg_pool",
        lambda c, x: F.global_avg_pool(x),
        lambda x: x.mean((2, 3)),
        (IMAGES,),
    ),
    Row(
        "global_avg_pool",
        lambda c, x: F.global_avg_pool(x),
        lambda x: x.mean(2),
        (SERIES,),
    ),
    # -- softmax and losses
    Row("softmax", lambda c, a: F.softmax(a), softmax, (MATRIX,)),
    Row("softmax", lambda c, a: F.softmax(a, axis=1), lambda a: softmax(a, 1), (CUBE,)),
    Row(
        "log_softmax",
        lambda c, a: F.log_softmax(a),
        lambda a: np.log(softmax(a)),
        (MATRIX,),
    ),
    Row(
        "log_softmax",
        lambda c, a: F.log_softmax(a, axis=0),
        lambda a: np.log(softmax(a, 0)),
        (CUBE,),
    ),
    Row(
        "cross_entropy",
        lambda c, a: F.cross_entropy(a, c([3, 0, 3])),
        lambda a: -np.log(softmax(a))[[0, 1, 2], [3, 0, 3]].mean(),
        (MATRIX,),
    ),
    Row(
        "cross_entropy",
        lambda c, a: F.cross_entropy(a, [[3, 0, 1], [1, 2, 0]]),
        lambda a: (
            -np.log(softmax(a)).reshape(6, 4)[range(6), [3, 0, 1, 1, 2, 0]].mean()
        ),
        (CUBE,),
    ),
    Row(
        "cross_entropy",
        lambda c, a: F.cross_entropy(a, 2),
        lambda a: -np.log(softmax(a))[2],
        (ROW,),
    ),
    Row(
        "cross_entropy",
        lambda c, a: F.cross_entropy(a, Tensor(c(np.array([1, 1, 2], dtype=np.uint8)))),
        lambda a: -np.log(softmax(a))[[0, 1, 2], [1, 1, 2]].mean(),
        (MATRIX,),
    ),
    Row(
        "mean_squared_error",
        lambda c, a, b: F.mean_squared_error(a, b),
        lambda a, b: ((a - b) ** 2).mean(),
        (MATRIX, OTHER),
    ),
    Row(
        "mean_squared_error",
        lambda c, a: F.mean_squared_error(a, c(OTHER)),
        lambda a: ((a - OTHER) ** 2).mean(),
        (MATRIX,),
    ),
    Row(
        "mean_squared_error",
        lambda c, a, b: F.mean_squared_error(a, b, weights=c(COUNTS)),
        lambda a, b: (COUNTS * (a - b) ** 2).sum() / (COUNTS * np.ones_like(a)).sum(),
        (MATRIX, OTHER),
    ),
    Row(
        "mean_squared_error",
        lambda c, a: F.mean_squared_error(a, c(OTHER), "sum", weights=c(OTHER > 0)),
        lambda a: (((a - OTHER) ** 2)[OTHER > 0]).sum(),
        (MATRIX,),
    ),
]
