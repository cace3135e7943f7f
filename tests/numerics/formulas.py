"""The operations once more, written with NumPy, and the arrays to try them on. For
test_operations.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from minipipe import Tensor


class Row(NamedTuple):
    """One example call.

    ``call(c, *tensors)`` computes with minipipe; ``c`` turns a constant array into one
    of the module at hand. ``formula(*arrays)`` computes the same with NumPy.
    ``not_strict`` says why array-api-strict refuses the call.
    """

    covers: str
    call: Callable[..., Tensor]
    formula: Callable[..., np.ndarray]
    arrays: tuple[np.ndarray, ...]
    not_strict: str = ""


def somewhere(*shape: int, seed: int = 0) -> np.ndarray:
    """Return numbers of both signs, their distance from 0 and from each other far more
    than a central difference.
    """
    size = int(np.prod(shape))
    ladder = (0.3 + np.arange(size) / max(1, size)) * np.where(
        np.arange(size) % 2, -1.0, 1.0
    )
    return np.random.default_rng(seed).permutation(ladder).reshape(shape)


def positive(*shape: int, seed: int = 0) -> np.ndarray:
    return np.asarray(abs(somewhere(*shape, seed=seed)))


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(axis, keepdims=True)


def dropped_array(a: np.ndarray, probability: float) -> np.ndarray:
    keep = np.random.Generator(
        np.random.Philox(key=[3, 0], counter=[0, 1, 0, 1])
    ).random(a.shape, np.float32)
    return a * (keep >= probability) / (1 - probability)


def phi(x: np.ndarray) -> np.ndarray:
    """Return the probability that a standard normal number is smaller, element by
    element.
    """
    return np.array(
        [0.5 * math.erfc(-element * math.sqrt(0.5)) for element in x.ravel()]
    ).reshape(x.shape)


def normalised(x: np.ndarray, epsilon: float = 1e-5) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)


def normalised_in_groups(
    x: np.ndarray, groups: int, epsilon: float = 1e-5
) -> np.ndarray:
    parts = np.split(x, groups, axis=1)
    return np.concatenate(
        [
            normalised(part.reshape(len(x), -1), epsilon).reshape(part.shape)
            for part in parts
        ],
        axis=1,
    )


def of_mean_square_one(x: np.ndarray, epsilon: float = 1e-5) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)


def attended(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    is_causal: bool = False,
    mask: np.ndarray | None = None,
    dropout: float = 0.0,
) -> np.ndarray:
    """Return softmax(Q K^T / sqrt(d)) V (Vaswani et al. 2017, equation 1); scores of
    what is not seen are -inf.

    A mask has shape (n, s) or (n, t, s); a query that sees nothing gets zeros. Dropout
    is drawn for keys by queries.
    """
    scores = query @ np.swapaxes(key, -1, -2) / math.sqrt(query.shape[-1])
    if is_causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -math.inf)
    if mask is not None:
        by_query = mask[:, None, :] if mask.ndim == 2 else mask
        heads = range(1, scores.ndim - 2)
        scores = np.where(
            np.expand_dims(by_query == 1, tuple(heads)), scores, -math.inf
        )
    weights = np.exp(scores)
    sums = weights.sum(-1, keepdims=True)
    weights /= np.where(sums == 0, 1, sums)
    return np.asarray(
        np.swapaxes(dropped_array(np.swapaxes(weights, -1, -2), dropout), -1, -2)
        @ value
    )


def attended_by_heads(
    projections: np.ndarray,
    num_heads: int,
    is_causal: bool = False,
    mask: np.ndarray | None = None,
) -> np.ndarray:
    """Return head after head, side by side; each has its columns of the queries, of the
    keys and of the values.
    """
    query, key, value = np.split(projections, 3, axis=-1)
    heads = (np.split(part, num_heads, axis=-1) for part in (query, key, value))
    return np.concatenate(
        [attended(*head, is_causal, mask) for head in zip(*heads)], axis=-1
    )


def turned(
    x: np.ndarray, positions: np.ndarray | None = None, base: float = 10000.0
) -> np.ndarray:
    """Return vectors turned by their positions, as complex numbers: elements i and i +
    d / 2 are one.
    """
    d = x.shape[-1]
    positions = np.arange(x.shape[-2]) if positions is None else positions
    angles = np.multiply.outer(positions, base ** (-2 * np.arange(d // 2) / d))
    if positions.ndim == 2:
        angles = np.expand_dims(angles, tuple(range(1, x.ndim - 2)))
    plane = (x[..., : d // 2] + 1j * x[..., d // 2 :]) * np.exp(1j * angles)
    return np.concatenate([plane.real, plane.imag], axis=-1)


def windows(
    x: np.ndarray, kernel: tuple[int, int], stride: tuple[int, int]
) -> np.ndarray:
    """Return every window of images (n, c, h, w), one by one: (n, c, oh, ow, kh,
    kw).
    """
    (kh, kw), (down, right) = kernel, stride
    tops, lefts = (
        range(0, x.shape[2] - kh + 1, down),
        range(0, x.shape[3] - kw + 1, right),
    )
    rows = [
        np.stack([x[:, :, top : top + kh, left : left + kw] for left in lefts], 2)
        for top in tops
    ]
    return np.stack(rows, 2)


def convolved(
    x: np.ndarray,
    w: np.ndarray,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
) -> np.ndarray:
    padded = np.pad(x, [(0, 0), (0, 0), *((zeros, zeros) for zeros in padding)])
    return np.asarray(
        np.einsum("ncyxij,ocij->noyx", windows(padded, w.shape[2:], stride), w)
    )


def grouped(
    x: np.ndarray,
    w: np.ndarray,
    groups: int,
    zeros: tuple[int, int, int, int],
    dilation: tuple[int, int] = (1, 1),
) -> np.ndarray:
    """Return a convolution of each group of channels, with zeros above, below, left and
    right, and in the kernel.
    """
    (down, right), (o, c, kh, kw) = dilation, w.shape
    spread = np.zeros((o, c, down * (kh - 1) + 1, right * (kw - 1) + 1))
    spread[:, :, ::down, ::right] = w
    padded = np.pad(x, [(0, 0), (0, 0), zeros[:2], zeros[2:]])
    parts = zip(np.split(padded, groups, axis=1), np.split(spread, groups))
    return np.concatenate([convolved(*part) for part in parts], axis=1)


def remembered(
    x: np.ndarray, w: np.ndarray, u: np.ndarray, b: np.ndarray | float = 0.0
) -> np.ndarray:
    """Return the hidden states of an LSTM, written as in Gers et al. 2000, one time
    after another.
    """
    hidden = cell = np.zeros((len(x), len(u)))
    states = []
    for now in np.swapaxes(x, 0, 1):
        z = now @ w + hidden @ u + b
        i, f, g, o = np.split(z, 4, axis=1)
        i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
        cell = f * cell + i * np.tanh(g)
        hidden = o * np.tanh(cell)
        states.append(hidden)
    return np.stack(states, 1)


MATRIX, OTHER, ROW, COLUMN = (
    somewhere(3, 4),
    somewhere(3, 4, seed=1),
    somewhere(4, seed=2),
    somewhere(3, 1, seed=3),
)
COUNTS = np.array([[0.0], [0.5], [2.0]])  # how much each row of OTHER counts
POSITIVE, POSITIVE_ROW = positive(3, 4), positive(4, seed=1)
SCALAR, CUBE, VECTOR = np.array(0.7), somewhere(2, 3, 4, seed=4), somewhere(3, seed=5)
REVERSED = somewhere(4, 3, 2, seed=8)
WEIGHT, BIAS = somewhere(4, 2, seed=6), somewhere(2, seed=7)
WIDE_BIAS, TABLE = somewhere(4, seed=9), somewhere(5, 4, seed=10)
IDS = np.array([[3, 0, 3], [4, 3, 0]])
IMAGES, KERNELS, SMALL = (
    somewhere(2, 3, 5, 4, seed=10),
    somewhere(2, 3, 3, 2, seed=11),
    somewhere(4, 3, 1, 1, seed=12),
)
CHANNELS = somewhere(2, 6, 2, 3, seed=31)
DEPTHWISE = somewhere(6, 1, 2, 3, seed=26)
SERIES, FILTERS = somewhere(2, 3, 7, seed=13), somewhere(4, 3, 3, seed=14)
QUERIES, KEYS, VALUES = (
    somewhere(2, 3, 4, seed=15),
    somewhere(2, 5, 4, seed=16),
    somewhere(2, 5, 2, seed=17),
)
HEADS, PROJECTIONS = somewhere(2, 2, 3, 2, seed=18), somewhere(2, 4, 12, seed=19)
BY_KEY = np.array([[True, False, True, True, False], [False, True, True, False, False]])
BY_QUERY = np.stack([np.roll(BY_KEY, i, axis=1) for i in range(3)], axis=1)  # (2, 3, 5)
BY_QUERY[1, 2] = False  # the last query of the second sample sees nothing
MASK = np.array(
    [
        [True, False, True, False],
        [False, False, True, True],
        [False, False, False, False],
    ]
)
