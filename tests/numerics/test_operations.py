"""Every operation, from one table of example calls.

A row is one call: what it computes (written with NumPy), where, and whether the array API standard allows it. The same
rows are checked against NumPy, against central differences, in float32, and on array-api-strict.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import types
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import array_api_strict
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from minipipe import Tensor, functional, random_key
from minipipe import functional as F
from minipipe.errors import TensorError
from minipipe.testing import check_gradients


class Row(NamedTuple):
    """One example call.

    ``call(c, *tensors)`` computes with minipipe; ``c`` turns a constant array into one of the module at hand.
    ``formula(*arrays)`` computes the same with NumPy. ``not_strict`` says why array-api-strict refuses the call.
    """

    covers: str
    call: Callable[..., Tensor]
    formula: Callable[..., np.ndarray]
    arrays: tuple[np.ndarray, ...]
    not_strict: str = ""


def somewhere(*shape: int, seed: int = 0) -> np.ndarray:
    """Return numbers of both signs, their distance from 0 and from each other far more than a central difference."""
    size = int(np.prod(shape))
    ladder = (0.3 + np.arange(size) / max(1, size)) * np.where(np.arange(size) % 2, -1.0, 1.0)
    return np.random.default_rng(seed).permutation(ladder).reshape(shape)


def positive(*shape: int, seed: int = 0) -> np.ndarray:
    return np.asarray(abs(somewhere(*shape, seed=seed)))


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(axis, keepdims=True)


def dropped(a: Tensor, probability: float) -> Tensor:
    with random_key(3, step=1):
        return F.dropout(a, probability)


def dropped_array(a: np.ndarray, probability: float) -> np.ndarray:
    keep = np.random.Generator(np.random.Philox(key=[3, 0], counter=[0, 1, 0, 1])).random(a.shape, np.float32)
    return a * (keep >= probability) / (1 - probability)


def phi(x: np.ndarray) -> np.ndarray:
    """Return the probability that a standard normal number is smaller, element by element."""
    return np.array([0.5 * math.erfc(-element * math.sqrt(0.5)) for element in x.ravel()]).reshape(x.shape)


def normalised(x: np.ndarray, epsilon: float = 1e-5) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)


def of_mean_square_one(x: np.ndarray, epsilon: float = 1e-5) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)


def attended(query: np.ndarray, key: np.ndarray, value: np.ndarray, is_causal: bool = False) -> np.ndarray:
    """Return softmax(Q K^T / sqrt(d)) V (Vaswani et al. 2017, equation 1); scores of the future are -inf."""
    scores = query @ np.swapaxes(key, -1, -2) / math.sqrt(query.shape[-1])
    if is_causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -math.inf)
    return np.asarray(softmax(scores) @ value)


def attended_by_heads(projections: np.ndarray, num_heads: int, is_causal: bool = False) -> np.ndarray:
    """Return head after head, side by side; each has its columns of the queries, of the keys and of the values."""
    query, key, value = np.split(projections, 3, axis=-1)
    heads = (np.split(part, num_heads, axis=-1) for part in (query, key, value))
    return np.concatenate([attended(*head, is_causal) for head in zip(*heads)], axis=-1)


def windows(x: np.ndarray, kernel: tuple[int, int], stride: tuple[int, int]) -> np.ndarray:
    """Return every window of images (n, c, h, w), one by one: (n, c, oh, ow, kh, kw)."""
    (kh, kw), (down, right) = kernel, stride
    tops, lefts = range(0, x.shape[2] - kh + 1, down), range(0, x.shape[3] - kw + 1, right)
    rows = [np.stack([x[:, :, top : top + kh, left : left + kw] for left in lefts], 2) for top in tops]
    return np.stack(rows, 2)


def convolved(
    x: np.ndarray, w: np.ndarray, stride: tuple[int, int] = (1, 1), padding: tuple[int, int] = (0, 0)
) -> np.ndarray:
    padded = np.pad(x, [(0, 0), (0, 0), *((zeros, zeros) for zeros in padding)])
    return np.asarray(np.einsum("ncyxij,ocij->noyx", windows(padded, w.shape[2:], stride), w))


MATRIX, OTHER, ROW, COLUMN = somewhere(3, 4), somewhere(3, 4, seed=1), somewhere(4, seed=2), somewhere(3, 1, seed=3)
POSITIVE, POSITIVE_ROW = positive(3, 4), positive(4, seed=1)
SCALAR, CUBE, VECTOR = np.array(0.7), somewhere(2, 3, 4, seed=4), somewhere(3, seed=5)
REVERSED = somewhere(4, 3, 2, seed=8)
WEIGHT, BIAS = somewhere(4, 2, seed=6), somewhere(2, seed=7)
WIDE_BIAS, TABLE = somewhere(4, seed=9), somewhere(5, 4, seed=10)
IDS = np.array([[3, 0, 3], [4, 3, 0]])
IMAGES, KERNELS, SMALL = somewhere(2, 3, 5, 4, seed=10), somewhere(2, 3, 3, 2, seed=11), somewhere(4, 3, 1, 1, seed=12)
SERIES, FILTERS = somewhere(2, 3, 7, seed=13), somewhere(4, 3, 3, seed=14)
QUERIES, KEYS, VALUES = somewhere(2, 3, 4, seed=15), somewhere(2, 5, 4, seed=16), somewhere(2, 5, 2, seed=17)
HEADS, PROJECTIONS = somewhere(2, 2, 3, 2, seed=18), somewhere(2, 4, 12, seed=19)
MASK = np.array([[True, False, True, False], [False, False, True, True], [False, False, False, False]])

FEWER_AXES = "the standard wants one index for each axis, or an ellipsis"
LISTS = "the standard indexes with arrays, not with lists"
MIXED = "the standard does not mix integer arrays with slices"
NONE_WRITTEN = "the standard reads through None, but writes through none, and the gradient is written"
LEFT = "array-api-strict's arrays do not leave an operator to the operand on the right"

ROWS = [
    # -- elementwise, two operands; more shapes below, drawn by hypothesis
    Row("add", lambda c, a, b: F.add(a, b), lambda a, b: a + b, (MATRIX, ROW)),
    Row("add", lambda c, a: F.add(a, a), lambda a: 2 * a, (MATRIX,)),
    Row("subtract", lambda c, a, b: F.subtract(a, b), lambda a, b: a - b, (COLUMN, ROW)),
    Row("multiply", lambda c, a, b: F.multiply(a, b), lambda a, b: a * b, (SCALAR, MATRIX)),
    Row("multiply", lambda c, a: F.multiply(a, a), lambda a: a * a, (MATRIX,)),
    Row("divide", lambda c, a, b: F.divide(a, b), lambda a, b: a / b, (ROW, MATRIX)),
    Row("power", lambda c, a, b: F.power(a, b), lambda a, b: a**b, (POSITIVE, ROW)),
    Row("power", lambda c, a: F.power(a, 2), lambda a: a * a, (MATRIX,)),
    Row("power", lambda c, a: F.power(a, 2.0), lambda a: a * a, (SCALAR,)),
    Row("power", lambda c, a: F.power(a, 3), lambda a: a * a * a, (MATRIX,)),
    Row("power", lambda c, a: F.power(a, -0.5), lambda a: 1 / np.sqrt(a), (POSITIVE,)),
    Row("Tensor.__add__", lambda c, a, b: a + b, lambda a, b: a + b, (MATRIX, COLUMN)),
    Row("Tensor.__radd__", lambda c, a: 2 + a, lambda a: 2 + a, (MATRIX,)),
    Row("Tensor.__radd__", lambda c, a: c(OTHER) + a, lambda a: OTHER + a, (ROW,), LEFT),
    Row("Tensor.__sub__", lambda c, a, b: a - b, lambda a, b: a - b, (MATRIX, MATRIX)),
    Row("Tensor.__rsub__", lambda c, a: 1 - a, lambda a: 1 - a, (MATRIX,)),
    Row("Tensor.__rsub__", lambda c, a: c(OTHER) - a, lambda a: OTHER - a, (COLUMN,), LEFT),
    Row("Tensor.__mul__", lambda c, a, b: a * b, lambda a, b: a * b, (COLUMN, ROW)),
    Row("Tensor.__rmul__", lambda c, a: 0.5 * a, lambda a: 0.5 * a, (MATRIX,)),
    Row("Tensor.__rmul__", lambda c, a: c(OTHER) * a, lambda a: OTHER * a, (SCALAR,), LEFT),
    Row("Tensor.__truediv__", lambda c, a, b: a / b, lambda a, b: a / b, (MATRIX, ROW)),
    Row("Tensor.__rtruediv__", lambda c, a: 1 / a, lambda a: 1 / a, (MATRIX,)),
    Row("Tensor.__rtruediv__", lambda c, a: c(OTHER) / a, lambda a: OTHER / a, (ROW,), LEFT),
    Row("Tensor.__pow__", lambda c, a, b: a**b, lambda a, b: a**b, (POSITIVE_ROW, COLUMN)),
    Row("Tensor.__rpow__", lambda c, a: 2**a, lambda a: 2**a, (MATRIX,)),
    Row("Tensor.__rpow__", lambda c, a: c(POSITIVE) ** a, lambda a: POSITIVE**a, (ROW,), LEFT),
    # -- elementwise, one operand
    Row("negative", lambda c, a: F.negative(a), lambda a: -a, (MATRIX,)),
    Row("exp", lambda c, a: F.exp(a), np.exp, (MATRIX,)),
    Row("log", lambda c, a: F.log(a), np.log, (POSITIVE,)),
    Row("sqrt", lambda c, a: F.sqrt(a), np.sqrt, (POSITIVE,)),
    Row("tanh", lambda c, a: F.tanh(a), np.tanh, (MATRIX,)),
    Row("sigmoid", lambda c, a: F.sigmoid(a), lambda a: 1 / (1 + np.exp(-a)), (MATRIX,)),
    Row("relu", lambda c, a: F.relu(a), lambda a: np.where(a > 0, a, 0), (MATRIX,)),
    Row("relu", lambda c, a: F.relu(a), lambda a: a, (SCALAR,)),
    Row("silu", lambda c, a: F.silu(a), lambda a: a / (1 + np.exp(-a)), (MATRIX,)),
    Row("silu", lambda c, a: F.silu(a), lambda a: a / (1 + np.exp(-a)), (SCALAR,)),
    Row("gelu", lambda c, a: F.gelu(a), lambda a: a * phi(a), (3 * MATRIX,)),
    Row("gelu", lambda c, a: F.gelu(a), lambda a: a * phi(a), (SCALAR,)),
    Row(
        "gelu",
        lambda c, a: F.gelu(a, approximate=True),
        lambda a: a * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3))),
        (3 * MATRIX,),
    ),
    Row("gelu", lambda c, a: F.gelu(F.transpose(a), approximate=False), lambda a: a.T * phi(a.T), (CUBE,)),
    Row("erf", lambda c, a: F.erf(a), lambda a: 2 * phi(a * math.sqrt(2)) - 1, (3 * MATRIX,)),
    Row("erf", lambda c, a: F.erf(a), lambda a: np.array(math.erf(a)), (SCALAR,)),
    Row("where", lambda c, a, b: F.where(c(MASK), a, b), lambda a, b: np.where(MASK, a, b), (MATRIX, OTHER)),
    Row("where", lambda c, a, b: F.where(c(MASK), a, b), lambda a, b: np.where(MASK, a, b), (COLUMN, ROW)),
    Row("where", lambda c, a: F.where(c(MASK), a, 0.5), lambda a: np.where(MASK, a, 0.5), (SCALAR,)),
    Row("where", lambda c, a: F.where(c(MASK), 1, a), lambda a: np.where(MASK, 1.0, a), (CUBE[:, :, :1],)),
    Row("masked_fill", lambda c, a: F.masked_fill(a, c(MASK), -2), lambda a: np.where(MASK, -2.0, a), (MATRIX,)),
    Row("masked_fill", lambda c, a: F.masked_fill(a, c(MASK), 0.25), lambda a: np.where(MASK, 0.25, a), (CUBE,)),
    Row("masked_fill", lambda c, a: F.masked_fill(a, c(MASK), 3), lambda a: np.where(MASK, 3.0, a), (ROW,)),
    Row("clip", lambda c, a: F.clip(a, -0.7, 0.6), lambda a: np.minimum(np.maximum(a, -0.7), 0.6), (MATRIX,)),
    Row("clip", lambda c, a: F.clip(a, low=0), lambda a: np.maximum(a, 0), (CUBE,)),
    Row("clip", lambda c, a: F.clip(a, high=0.25), lambda a: np.minimum(a, 0.25), (SCALAR,)),
    Row("Tensor.__neg__", lambda c, a: -a, lambda a: -a, (CUBE,)),
    Row("Tensor.exp", lambda c, a: a.exp(), np.exp, (SCALAR,)),
    Row("Tensor.log", lambda c, a: a.log(), np.log, (POSITIVE_ROW,)),
    Row("Tensor.sqrt", lambda c, a: a.sqrt(), np.sqrt, (POSITIVE_ROW,)),
    Row("Tensor.tanh", lambda c, a: a.tanh(), np.tanh, (SCALAR,)),
    Row("Tensor.sigmoid", lambda c, a: a.sigmoid(), lambda a: 1 / (1 + np.exp(-a)), (SCALAR,)),
    Row("Tensor.relu", lambda c, a: a.relu(), lambda a: np.where(a > 0, a, 0), (CUBE,)),
    # -- reductions
    Row("total", lambda c, a: F.total(a), lambda a: a.sum(), (CUBE,)),
    Row("total", lambda c, a: F.total(a, 1), lambda a: a.sum(1), (CUBE,)),
    Row("total", lambda c, a: F.total(a, (0, -1), keepdims=True), lambda a: a.sum((0, 2), keepdims=True), (CUBE,)),
    Row("total", lambda c, a: F.total(a), lambda a: a, (SCALAR,)),
    Row("mean", lambda c, a: F.mean(a), lambda a: a.mean(), (CUBE,)),
    Row("mean", lambda c, a: F.mean(a, (0, 2)), lambda a: a.mean((0, 2)), (CUBE,)),
    Row("mean", lambda c, a: F.mean(a, -1, keepdims=True), lambda a: a.mean(-1, keepdims=True), (CUBE,)),
    Row("amax", lambda c, a: F.amax(a), lambda a: a.max(), (CUBE,)),
    Row("amax", lambda c, a: F.amax(a, (-1, 0)), lambda a: a.max((0, 2)), (CUBE,)),
    Row("amax", lambda c, a: F.amax(a, 1, keepdims=True), lambda a: a.max(1, keepdims=True), (CUBE,)),
    Row("amin", lambda c, a: F.amin(a), lambda a: a.min(), (CUBE,)),
    Row("amin", lambda c, a: F.amin(a, (-1, 0)), lambda a: a.min((0, 2)), (CUBE,)),
    Row("amin", lambda c, a: F.amin(a, 1, keepdims=True), lambda a: a.min(1, keepdims=True), (CUBE,)),
    Row("amin", lambda c, a: F.amin(a), lambda a: a, (SCALAR,)),
    Row("variance", lambda c, a: F.variance(a), lambda a: a.var(), (CUBE,)),
    Row(
        "variance", lambda c, a: F.variance(a, (0, -1), keepdims=True), lambda a: a.var((0, 2), keepdims=True), (CUBE,)
    ),
    Row("variance", lambda c, a: F.variance(a, 1, correction=1), lambda a: a.var(1, ddof=1), (CUBE,)),
    Row("logsumexp", lambda c, a: F.logsumexp(a), lambda a: np.log(np.exp(a).sum()), (CUBE,)),
    Row("logsumexp", lambda c, a: F.logsumexp(a, -1), lambda a: np.log(np.exp(a).sum(-1)), (CUBE,)),
    Row(
        "logsumexp",
        lambda c, a: F.logsumexp(a, (0, 2), keepdims=True),
        lambda a: np.log(np.exp(a).sum((0, 2), keepdims=True)),
        (CUBE,),
    ),
    Row("logsumexp", lambda c, a: F.logsumexp(a), lambda a: a, (SCALAR,)),
    Row("Tensor.min", lambda c, a: a.min(axis=-1), lambda a: a.min(-1), (MATRIX,)),
    Row("Tensor.var", lambda c, a: a.var(), lambda a: a.var(), (ROW,)),
    Row("Tensor.var", lambda c, a: a.var(-1, True, correction=1), lambda a: a.var(-1, ddof=1, keepdims=True), (CUBE,)),
    Row("Tensor.sum", lambda c, a: a.sum(axis=0), lambda a: a.sum(0), (MATRIX,)),
    Row("Tensor.sum", lambda c, a: a.sum(np.int64(1)), lambda a: a.sum(1), (MATRIX,)),
    Row("Tensor.mean", lambda c, a: a.mean(axis=1), lambda a: a.mean(1), (MATRIX,)),
    Row("Tensor.max", lambda c, a: a.max(axis=0), lambda a: a.max(0), (MATRIX,)),
    # -- matrix products; more shapes below
    Row("linear", lambda c, x, w, b: F.linear(x, w, b), lambda x, w, b: x @ w + b, (MATRIX, WEIGHT, BIAS)),
    Row("linear", lambda c, x, w: F.linear(x, w), lambda x, w: x @ w, (MATRIX, WEIGHT)),
    Row("linear", lambda c, x, w, b: F.linear(x, w, b), lambda x, w, b: x @ w + b, (ROW, WEIGHT, BIAS)),
    Row("linear", lambda c, x, w, b: F.linear(x, w, b), lambda x, w, b: x @ w + b, (CUBE, WEIGHT, BIAS)),
    Row("linear", lambda c, x, w: F.linear(F.transpose(x), w), lambda x, w: x.T @ w, (REVERSED, WEIGHT)),
    Row("linear", lambda c, x: F.linear(x, c(WEIGHT), c(BIAS)), lambda x: x @ WEIGHT + BIAS, (MATRIX,)),
    Row("linear", lambda c, w, b: F.linear(c(MATRIX), w, b), lambda w, b: MATRIX @ w + b, (WEIGHT, BIAS)),
    Row("matmul", lambda c, a, b: F.matmul(a, b), lambda a, b: a @ b, (MATRIX, WEIGHT)),
    Row("matmul", lambda c, a, b: F.matmul(a, b), lambda a, b: a @ b, (ROW, WEIGHT)),
    Row("matmul", lambda c, a, b: F.matmul(a, b), lambda a, b: a @ b, (CUBE, ROW)),
    Row("matmul", lambda c, a: F.matmul(a, a), lambda a: a @ a, (ROW,)),
    Row("matmul", lambda c, a, b: F.matmul(a, b), lambda a, b: a @ b, (CUBE[:, None], CUBE.transpose(0, 2, 1))),
    Row("Tensor.__matmul__", lambda c, a, b: a @ b, lambda a, b: a @ b, (CUBE, WEIGHT)),
    Row("Tensor.__matmul__", lambda c, a: a @ c(WEIGHT), lambda a: a @ WEIGHT, (MATRIX,)),
    Row("Tensor.__rmatmul__", lambda c, b: c(MATRIX) @ b, lambda b: MATRIX @ b, (WEIGHT,), LEFT),
    # -- moving elements
    Row("reshape", lambda c, a: F.reshape(a, (4, 3)), lambda a: a.reshape(4, 3), (MATRIX,)),
    Row("reshape", lambda c, a: F.reshape(a, (2, -1)), lambda a: a.reshape(2, -1), (MATRIX,)),
    Row("Tensor.reshape", lambda c, a: a.reshape(-1), lambda a: a.reshape(-1), (CUBE,)),
    Row("Tensor.reshape", lambda c, a: a.reshape(np.prod((2, 3)), 4), lambda a: a.reshape(6, 4), (CUBE,)),
    Row("Tensor.reshape", lambda c, a: a.reshape(np.prod((3, 4))), lambda a: a.reshape(12), (MATRIX,)),
    Row("Tensor.reshape", lambda c, a: a.reshape((3, 8)), lambda a: a.reshape(3, 8), (CUBE,)),
    Row("transpose", lambda c, a: F.transpose(a), lambda a: a.T, (CUBE,)),
    Row("transpose", lambda c, a: F.transpose(a, (1, 2, 0)), lambda a: a.transpose(1, 2, 0), (CUBE,)),
    Row("Tensor.transpose", lambda c, a: a.transpose(0, -1, 1), lambda a: a.transpose(0, 2, 1), (CUBE,)),
    Row("Tensor.transpose", lambda c, a: a.transpose((2, 0, 1)), lambda a: a.transpose(2, 0, 1), (CUBE,)),
    Row("Tensor.transpose", lambda c, a: a.transpose(), lambda a: a.T, (MATRIX,)),
    Row("Tensor.T", lambda c, a: a.T, lambda a: a.T, (MATRIX,)),
    Row("contiguous", lambda c, a: F.contiguous(F.transpose(a)), lambda a: a.T, (MATRIX,)),
    Row("contiguous", lambda c, a: F.contiguous(a), lambda a: a, (MATRIX,)),
    Row("concatenate", lambda c, a, b: F.concatenate([a, b]), lambda a, b: np.concatenate([a, b]), (MATRIX, OTHER)),
    Row(
        "concatenate",
        lambda c, a, b: F.concatenate([a, b, a], axis=-1),
        lambda a, b: np.concatenate([a, b, a], -1),
        (MATRIX, COLUMN),
    ),
    Row("stack", lambda c, a, b: F.stack([a, b]), lambda a, b: np.stack([a, b]), (MATRIX, OTHER)),
    Row("stack", lambda c, a, b: F.stack([a, b, a], axis=1), lambda a, b: np.stack([a, b, a], 1), (MATRIX, OTHER)),
    Row("stack", lambda c, a, b: F.stack((a, b), axis=-1), lambda a, b: np.stack([a, b], -1), (MATRIX, OTHER)),
    Row("stack", lambda c, a: F.stack([a, a]), lambda a: np.stack([a, a]), (SCALAR,)),
    Row("split", lambda c, a: F.split(a, 3)[1], lambda a: a[1:2], (MATRIX,)),
    Row("split", lambda c, a: F.split(a, np.int64(2), axis=-1)[1], lambda a: a[..., 2:], (CUBE,)),
    Row("split", lambda c, a: F.split(a, [1, 0, 2], axis=1)[2], lambda a: a[:, 1:], (CUBE,)),
    Row(
        "split",
        lambda c, a: F.concatenate(F.split(a, (3, 1), -1)[::-1], -1) * F.split(a, 1, -1)[0],
        lambda a: np.concatenate([a[:, 3:], a[:, :3]], 1) * a,
        (MATRIX,),
    ),
    Row("index", lambda c, a: F.index(a, (0, -1)), lambda a: a[0, -1], (MATRIX,)),
    Row("index", lambda c, a: F.index(a, (slice(1, None), slice(None, None, 2))), lambda a: a[1:, ::2], (MATRIX,)),
    Row("index", lambda c, a: F.index(a, c(MASK)), lambda a: a[MASK], (MATRIX,)),
    Row("Tensor.__getitem__", lambda c, a: a[..., 1], lambda a: a[..., 1], (CUBE,)),
    Row("Tensor.__getitem__", lambda c, a: a[::-1, None, 1:3], lambda a: a[::-1, None, 1:3], (MATRIX,), NONE_WRITTEN),
    Row("Tensor.__getitem__", lambda c, a: a[c([2, 0, 2, 2])], lambda a: a[[2, 0, 2, 2]], (VECTOR,)),
    Row("Tensor.__getitem__", lambda c, a: a[Tensor(c([1, 0, 1]))], lambda a: a[[1, 0, 1]], (VECTOR,)),
    Row("Tensor.__getitem__", lambda c, a: a[c([2, 0, 2]), c([1, 3, 1])], lambda a: a[[2, 0, 2], [1, 3, 1]], (MATRIX,)),
    Row("Tensor.__getitem__", lambda c, a: a[1], lambda a: a[1], (MATRIX,), FEWER_AXES),
    Row("Tensor.__getitem__", lambda c, a: a[np.int64(1)], lambda a: a[1], (MATRIX,), FEWER_AXES),
    Row("Tensor.__getitem__", lambda c, a: a[c([2, 0, 2, 2])], lambda a: a[[2, 0, 2, 2]], (MATRIX,), FEWER_AXES),
    Row("Tensor.__getitem__", lambda c, a: a[[2, 0, 2, 2]], lambda a: a[[2, 0, 2, 2]], (VECTOR,), LISTS),
    Row("Tensor.__getitem__", lambda c, a: a[:, c([0, 0, 3])], lambda a: a[:, [0, 0, 3]], (MATRIX,), MIXED),
    Row("identity", lambda c, a: F.identity(a), lambda a: a, (MATRIX,)),
    # -- dropout
    Row("dropout", lambda c, a: dropped(a, 0.5), lambda a: dropped_array(a, 0.5), (CUBE,)),
    Row("dropout", lambda c, a: dropped(a, 0), lambda a: a, (MATRIX,)),
    # -- embedding and normalisation
    Row("embedding", lambda c, w: F.embedding(w, c(IDS)), lambda w: w[IDS], (TABLE,)),
    Row("embedding", lambda c, w: F.embedding(w, Tensor(c(IDS[0]))), lambda w: w[IDS[0]], (TABLE,)),
    Row(
        "embedding",
        lambda c, w: F.embedding(w, [2, 2, 2, 2, 0, 2, 2, 2]),
        lambda w: w[[2] * 4 + [0] + [2] * 3],
        (TABLE,),
    ),
    Row("embedding", lambda c, w: F.embedding(w, 4), lambda w: w[4], (TABLE,)),
    Row("embedding", lambda c, w: F.embedding(w, c(np.array([1, 1], np.uint8))), lambda w: w[[1, 1]], (TABLE,)),
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
    Row("rms_norm", lambda c, x, w: F.rms_norm(x, w), lambda x, w: of_mean_square_one(x) * w, (MATRIX, ROW)),
    Row("rms_norm", lambda c, x, w: F.rms_norm(x, w, 0.1), lambda x, w: of_mean_square_one(x, 0.1) * w, (CUBE, ROW)),
    Row("rms_norm", lambda c, x: F.rms_norm(x, c(ROW)), lambda x: of_mean_square_one(x) * ROW, (WIDE_BIAS,)),
    # -- attention
    Row("attention", lambda c, q, k, v: F.attention(q, k, v), attended, (MATRIX, TABLE, somewhere(5, 2, seed=20))),
    Row("attention", lambda c, q, k, v: F.attention(q, k, v), attended, (QUERIES, KEYS, VALUES)),
    Row(
        "attention",
        lambda c, q, k, v: F.attention(q, k, v, is_causal=True),
        lambda q, k, v: attended(q, k, v, is_causal=True),
        (QUERIES, KEYS, VALUES),  # fewer queries than keys: the last keys are never seen
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
        (HEADS, somewhere(2, 2, 1, 2, seed=21), somewhere(2, 2, 1, 3, seed=22)),  # one key, with all the weight
    ),
    Row(
        "attention",
        lambda c, k: F.attention(c(5 * MATRIX), F.transpose(k), c(TABLE[:4])),
        lambda k: attended(5 * MATRIX, k.T, TABLE[:4]),
        (somewhere(4, 4, seed=23),),
    ),
    Row("self_attention", lambda c, x: F.self_attention(x, 1), lambda x: attended_by_heads(x, 1), (PROJECTIONS,)),
    Row("self_attention", lambda c, x: F.self_attention(x, 2), lambda x: attended_by_heads(x, 2), (PROJECTIONS,)),
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
    Row("conv2d", lambda c, x, w: F.conv2d(x, w, stride=3), lambda x, w: convolved(x, w, (3, 3)), (IMAGES, SMALL)),
    Row("conv2d", lambda c, x, w: F.conv2d(x, w), convolved, (IMAGES[:1], IMAGES)),
    Row("conv2d", lambda c, w: F.conv2d(c(IMAGES), w), lambda w: convolved(IMAGES, w), (KERNELS,)),
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
    Row("max_pool2d", lambda c, x: F.max_pool2d(x, 2), lambda x: windows(x, (2, 2), (2, 2)).max((4, 5)), (IMAGES,)),
    Row(
        "max_pool2d",
        lambda c, x: F.max_pool2d(x, (3, 2), stride=1),
        lambda x: windows(x, (3, 2), (1, 1)).max((4, 5)),
        (IMAGES,),
    ),
    Row("max_pool2d", lambda c, x: F.max_pool2d(x, 1, (2, 3)), lambda x: x[:, :, ::2, ::3], (IMAGES,)),
    # -- softmax and losses
    Row("softmax", lambda c, a: F.softmax(a), softmax, (MATRIX,)),
    Row("softmax", lambda c, a: F.softmax(a, axis=1), lambda a: softmax(a, 1), (CUBE,)),
    Row("log_softmax", lambda c, a: F.log_softmax(a), lambda a: np.log(softmax(a)), (MATRIX,)),
    Row("log_softmax", lambda c, a: F.log_softmax(a, axis=0), lambda a: np.log(softmax(a, 0)), (CUBE,)),
    Row(
        "cross_entropy",
        lambda c, a: F.cross_entropy(a, c([3, 0, 3])),
        lambda a: -np.log(softmax(a))[[0, 1, 2], [3, 0, 3]].mean(),
        (MATRIX,),
    ),
    Row(
        "cross_entropy",
        lambda c, a: F.cross_entropy(a, [[3, 0, 1], [1, 2, 0]]),
        lambda a: -np.log(softmax(a)).reshape(6, 4)[range(6), [3, 0, 1, 1, 2, 0]].mean(),
        (CUBE,),
    ),
    Row("cross_entropy", lambda c, a: F.cross_entropy(a, 2), lambda a: -np.log(softmax(a))[2], (ROW,)),
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
]

STRICT_ROWS = [row for row in ROWS if not row.not_strict]


def named(rows: list[Row]) -> Any:
    """Parametrise by row, with a readable name for each."""
    shapes = [" ".join("x".join(map(str, array.shape)) or "scalar" for array in row.arrays) for row in rows]
    names = [f"{i}-{row.covers}-{shape}" for i, (row, shape) in enumerate(zip(rows, shapes))]
    return pytest.mark.parametrize("row", rows, ids=names)


def tensors_of(row: Row, dtype: Any, module: types.ModuleType) -> list[Tensor]:
    return [Tensor(module.asarray(np.array(array), dtype=dtype), requires_grad=True) for array in row.arrays]


def evaluate(row: Row, dtype: str, module: types.ModuleType) -> tuple[Tensor, list[Any]]:
    """Return the result of a row on arrays of a module, and the gradients of its inputs."""
    tensors = tensors_of(row, getattr(module, dtype), module)
    result = row.call(module.asarray, *tensors)
    upstream = np.random.default_rng(9).standard_normal(result.shape)
    result.backward(module.asarray(upstream, dtype=getattr(module, dtype)))
    return result, [tensor.grad for tensor in tensors]


# -- the table is complete -----------------------------------------------------------------------------------


def attached_to_tensor() -> set[str]:
    """Return the operators, methods and properties that functional/ has given to Tensor, whatever they are."""
    found = set()
    for name, member in vars(Tensor).items():
        function = member.fget if isinstance(member, property) else member
        if getattr(function, "__module__", "").startswith("minipipe.functional"):
            found.add(f"Tensor.{name}")
    return found


def without_a_row(rows: Iterable[Row]) -> set[str]:
    return (set(functional.__all__) | attached_to_tensor()) - {row.covers for row in rows}


def test_every_operation_and_every_operator_has_a_row_in_the_table():
    assert without_a_row(ROWS) == set()


@pytest.mark.parametrize("name", ["relu", "Tensor.__rsub__", "Tensor.T"])
def test_an_operation_without_a_row_would_be_noticed(name):
    assert without_a_row(row for row in ROWS if row.covers != name) == {name}


def test_every_row_names_something_that_exists():
    assert {row.covers for row in ROWS} <= set(functional.__all__) | attached_to_tensor()


# -- each row, four times ------------------------------------------------------------------------------------


@named(ROWS)
def test_the_values_are_those_of_the_formula(row):
    expected = np.asarray(row.formula(*row.arrays))
    given_, _ = evaluate(row, "float64", np)
    assert given_.shape == expected.shape
    assert type(given_.data) is np.ndarray  # also where NumPy would rather return a scalar
    np.testing.assert_allclose(given_.numpy(), expected, rtol=1e-13, atol=1e-14)


@named(ROWS)
def test_the_gradients_are_those_of_central_differences(row):
    check_gradients(lambda *tensors: row.call(np.asarray, *tensors), *row.arrays, tolerance=1e-8)


@named(ROWS)
def test_float32_stays_float32_in_values_and_gradients(row):
    # The constants of the rows are float64 and int64 arrays, numpy scalars and Python numbers.
    result, gradients = evaluate(row, "float32", np)
    exact, exact_gradients = evaluate(row, "float64", np)
    assert result.dtype == np.float32
    assert {gradient.dtype for gradient in gradients} == {np.dtype(np.float32)}
    np.testing.assert_allclose(result.numpy(), exact.numpy(), rtol=1e-5, atol=1e-5)
    for gradient, exact_gradient in zip(gradients, exact_gradients):
        np.testing.assert_allclose(gradient, exact_gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@named(STRICT_ROWS)
def test_arrays_of_the_array_api_standard_give_the_values_and_gradients_of_numpy(row, dtype):
    on_numpy, numpy_gradients = evaluate(row, dtype, np)
    on_strict, strict_gradients = evaluate(row, dtype, array_api_strict)
    for strict, expected in zip([on_strict.data, *strict_gradients], [on_numpy.data, *numpy_gradients]):
        assert strict.__array_namespace__() is array_api_strict  # nothing went through NumPy by the way
        assert strict.dtype == getattr(array_api_strict, dtype)
        np.testing.assert_array_equal(np.asarray(strict), expected)


@named([row for row in ROWS if row.not_strict])
def test_what_the_table_excuses_the_standard_really_refuses(row):
    with pytest.raises((IndexError, TypeError)):
        evaluate(row, "float64", array_api_strict)


@named(ROWS)
def test_a_gradient_has_the_shape_of_its_input_and_shares_no_memory_with_it(row):
    tensors = tensors_of(row, np.float64, np)
    result = row.call(np.asarray, *tensors)
    upstream = np.ones(result.shape)
    result.backward(upstream)
    for tensor in tensors:
        assert tensor.grad.shape == tensor.shape
        assert tensor.grad.flags.c_contiguous and tensor.grad.flags.writeable
        assert not np.shares_memory(tensor.grad, tensor.data) and not np.shares_memory(tensor.grad, upstream)


# -- attention -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**16), st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_attention_of_any_length_is_that_of_the_formula(dtype, seed, num_queries, num_keys, is_causal):
    generator = np.random.default_rng(seed)
    shapes = (2, num_queries, 3), (2, num_keys, 3), (2, num_keys, 2)
    query, key, value = (generator.standard_normal(shape).astype(dtype) for shape in shapes)
    given_ = F.attention(Tensor(query), Tensor(key), Tensor(value), is_causal)
    assert given_.dtype == dtype
    np.testing.assert_allclose(given_.numpy(), attended(query, key, value, is_causal), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("is_causal", [False, True])
def test_scores_of_any_size_overflow_in_neither_direction(is_causal):
    # exp(800) is infinite even in float64, and a query whose scores are all -800 would divide 0 by 0.
    query = Tensor(np.array([[40.0], [-40.0]], np.float32), requires_grad=True)
    key, value = np.array([[20.0], [20.001]], np.float32), np.array([[1.0], [3.0]], np.float32)
    result = F.attention(query, key, value, is_causal)
    result.sum().backward()
    assert np.isfinite(result.numpy()).all() and np.isfinite(query.grad).all()
    expected = attended(query.numpy(), key - 20, value, is_causal)  # the same scores but for a constant
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-3)


@pytest.mark.parametrize("num_keys", range(1, 10))
def test_the_largest_score_may_be_that_of_any_key(num_keys):
    """It comes by halving: an odd number of keys must lose none, or exp of its score is infinite."""
    for place in range(num_keys):
        key = np.zeros((num_keys, 1), np.float32)
        key[place] = 1000
        value = np.arange(num_keys, dtype=np.float32)[:, None]
        assert F.attention(Tensor(np.ones((1, 1), np.float32)), key, value).item() == place


def test_no_bit_of_the_future_reaches_a_causal_result_or_its_gradients():
    generator = np.random.default_rng(0)
    now = generator.standard_normal((2, 5, 12)).astype(np.float32)
    later = np.concatenate([now[:, :3], generator.standard_normal((2, 2, 12)).astype(np.float32)], axis=1)
    results = []
    for projections in (now, later):
        x = Tensor(projections, requires_grad=True)
        result = F.self_attention(x, 2, is_causal=True)
        seen = result[:, :3]
        seen.backward(np.ones(seen.shape, np.float32))
        results.append((seen.numpy().tobytes(), x.grad[:, :3].tobytes()))
        assert not x.grad[:, 3:].any()
    assert results[0] == results[1]


# -- broadcasting --------------------------------------------------------------------------------------------

BINARY = {
    "add": (F.add, np.add, somewhere),
    "subtract": (F.subtract, np.subtract, somewhere),
    "multiply": (F.multiply, np.multiply, somewhere),
    "divide": (F.divide, np.divide, somewhere),
    "power": (F.power, np.power, positive),
}


@pytest.mark.parametrize("name", BINARY)
@settings(max_examples=20, deadline=None)
@given(mutually_broadcastable_shapes(num_shapes=2, max_dims=3, min_side=0, max_side=3))
def test_operands_of_any_shapes_that_fit_are_broadcast_and_gradients_summed_back(name, shapes):
    operation, formula, draw = BINARY[name]
    a, b = (draw(*shape, seed=i) for i, shape in enumerate(shapes.input_shapes))
    np.testing.assert_array_equal(operation(Tensor(a), Tensor(b)).numpy(), formula(a, b))
    check_gradients(operation, a, b)


@settings(max_examples=40, deadline=None)
@given(mutually_broadcastable_shapes(signature="(m?,n),(n,p?)->(m?,p?)", max_dims=2, max_side=3))
def test_matmul_broadcasts_its_leading_axes_and_takes_vectors_as_numpy_does(shapes):
    a, b = (somewhere(*shape, seed=i) for i, shape in enumerate(shapes.input_shapes))
    np.testing.assert_allclose(F.matmul(Tensor(a), Tensor(b)).numpy(), a @ b, rtol=1e-13, atol=1e-14)
    check_gradients(F.matmul, a, b)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 3), max_size=3), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_linear_takes_any_number_of_leading_axes(leading, k, n, with_bias):
    arrays = [somewhere(*leading, k), somewhere(k, n, seed=1)] + [somewhere(n, seed=2)] * with_bias
    check_gradients(F.linear, *arrays)


@pytest.mark.parametrize("name", BINARY)
@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 3), max_size=3), st.lists(st.integers(1, 3), max_size=3))
@example([2, 3], [2])
@example([2, 3], [3, 3])
def test_operands_whose_shapes_do_not_fit_are_refused_by_the_name_of_the_operation(name, left, right):
    operation, formula, _ = BINARY[name]
    a, b = np.ones(left), np.ones(right)
    try:
        shape = formula(a, b).shape
    except ValueError:
        with pytest.raises(TensorError, match=f"^{name}: ") as caught:
            operation(Tensor(a), Tensor(b))
        assert caught.value.code == "shape"
    else:
        assert operation(Tensor(a), Tensor(b)).shape == shape


@pytest.mark.parametrize("leading", [(), (1,), (5,)])
def test_a_bias_of_any_other_shape_than_that_of_the_last_axis_is_refused(leading):
    x, weight = Tensor(np.ones((5, 3))), Tensor(np.ones((3, 2)))
    F.linear(x, weight, Tensor(np.ones(2)))
    with pytest.raises(TensorError, match="bias") as caught:
        F.linear(x, weight, Tensor(np.ones((*leading, 1))))
    assert caught.value.code == "shape"


WRONG_SHAPES = {
    "linear, axes": lambda x: F.linear(x, Tensor(np.ones((4, 2)))),
    "linear, scalar": lambda x: F.linear(Tensor(np.array(1.0)), x),
    "linear, weight": lambda x: F.linear(x, Tensor(np.ones(3))),
    "matmul, axes": lambda x: x @ x,
    "matmul, scalar": lambda x: x @ np.ones(()),
    "matmul, leading": lambda x: F.reshape(x, (2, 1, 3)) @ Tensor(np.ones((3, 3, 1))),
    "reshape": lambda x: x.reshape(4, 2),
    "reshape, -1": lambda x: x.reshape(4, -1),
    "reshape, -1 twice": lambda x: x.reshape(-1, -1),
    "transpose, too few": lambda x: x.transpose(0),
    "transpose, twice": lambda x: x.transpose(1, 1),
    "transpose, no such axis": lambda x: x.transpose(0, 3),
    "sum": lambda x: x.sum(2),
    "mean": lambda x: x.mean(-3),
    "max": lambda x: x.max((0, 2)),
    "sum of a scalar": lambda x: x.sum().sum(0),
    "min": lambda x: x.min(2),
    "var": lambda x: x.var((0, -3)),
    "logsumexp": lambda x: F.logsumexp(x, 2),
    "where, mask": lambda x: F.where(np.array([True, False]), x, x),
    "where, branches": lambda x: F.where(np.array(True), x, x.T),
    "masked_fill": lambda x: F.masked_fill(x, np.array([True, False]), 0),
    "stack, none": lambda x: F.stack([]),
    "stack, shapes": lambda x: F.stack([x, x.T]),
    "stack, no such axis": lambda x: F.stack([x, x], axis=3),
    "split, unequal": lambda x: F.split(x, 2, axis=1),
    "split, into none": lambda x: F.split(x, 0),
    "split, lengths": lambda x: F.split(x, [1, 1], axis=-1),
    "split, negative": lambda x: F.split(x, [4, -1], axis=1),
    "split, no such axis": lambda x: F.split(x, 1, axis=2),
    "embedding, weight": lambda x: F.embedding(x.sum(0), [0]),
    "layer_norm, weight": lambda x: F.layer_norm(x, Tensor(np.ones(2)), Tensor(np.ones(3))),
    "layer_norm, bias": lambda x: F.layer_norm(x, Tensor(np.ones(3)), Tensor(np.ones((1, 3)))),
    "layer_norm, scalar": lambda x: F.layer_norm(x.sum(), Tensor(np.ones(())), Tensor(np.ones(()))),
    "rms_norm, weight": lambda x: F.rms_norm(x, Tensor(np.ones(()))),
    "rms_norm, empty": lambda x: F.rms_norm(F.split(x, [0, 3], 1)[0], Tensor(np.ones(0))),
    "attention, keys": lambda x: F.attention(x, x.T, x.T),
    "attention, values": lambda x: F.attention(x, x, x.T),
    "attention, leading axes": lambda x: F.attention(x, F.stack([x, x]), F.stack([x, x])),
    "attention, vectors": lambda x: F.attention(x.sum(0), x, x),
    "attention, no keys": lambda x: F.attention(x, F.split(x, [0, 2])[0], F.split(x, [0, 2])[0]),
    "self_attention, axes": lambda x: F.self_attention(x, 1),
    "self_attention, width": lambda x: F.self_attention(x.reshape(1, 3, 2), 1),
    "self_attention, heads": lambda x: F.self_attention(x.reshape(1, 2, 3), 2),
    "concatenate, none": lambda x: F.concatenate([]),
    "concatenate, lengths": lambda x: F.concatenate([x, x.T]),
    "concatenate, axes": lambda x: F.concatenate([x, x.sum(0)]),
    "concatenate, no such axis": lambda x: F.concatenate([x, x], axis=2),
    "mean_squared_error": lambda x: F.mean_squared_error(x, x.sum(0)),  # broadcasting there is a mistake
}


@pytest.mark.parametrize("call", WRONG_SHAPES.values(), ids=WRONG_SHAPES)
def test_shapes_that_do_not_fit_raise_the_code_shape(call):
    with pytest.raises(TensorError) as caught:
        call(Tensor(np.ones((2, 3))))
    assert caught.value.code == "shape"
    assert isinstance(caught.value, ValueError)


# -- constants beside tensors --------------------------------------------------------------------------------

CONSTANTS = {
    "Python int": 3,
    "Python float": 0.5,
    "Python bool": True,
    "numpy.float64": np.float64(1.5),
    "numpy.int64, a product of lengths": np.prod((2, 3)),
    "numpy.float32": np.float32(2.5),
    "list": [1.0, 2.0, 3.0],
    "list of whole numbers": [1, 2, 3],
    "array of float64": np.array([1.0, 2.0, 3.0]),
    "array of int64": np.array([1, 2, 3]),
    "array of bool": np.array([True, True, False]),
    "array of float64 without axes": np.array(2.0),
    "tensor of int64": Tensor(np.array([1, 2, 3])),
}
BINARY_OPERATORS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "**": lambda a, b: a**b,
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # 1 / False, and the logarithm of False
@pytest.mark.parametrize("constant", CONSTANTS.values(), ids=CONSTANTS)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("symbol", BINARY_OPERATORS)
def test_no_constant_turns_float32_into_float64(symbol, side, constant):
    tensor = Tensor([[1.5, 2.0, 0.5], [0.25, 1.0, 2.0]], requires_grad=True)
    pair = (constant, tensor) if side == "left" else (tensor, constant)
    result = BINARY_OPERATORS[symbol](*pair)
    result.sum().backward()
    assert type(result) is Tensor and result.shape == (2, 3)
    assert result.dtype == np.float32 and tensor.grad.dtype == np.float32
    expected = BINARY_OPERATORS[symbol](*(np.asarray(operand, dtype=np.float64) for operand in pair))
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("module", [np, array_api_strict], ids=["numpy", "strict"])
def test_division_by_the_number_of_elements_leaves_float32_alone(module):
    x = Tensor(module.ones((2, 3), dtype=module.float32), requires_grad=True)
    y = x.sum() / np.prod(x.shape)
    y.backward()
    assert y.dtype == module.float32 and x.grad.dtype == module.float32 and y.item() == 1.0


TWO_TENSORS = {
    **BINARY_OPERATORS,
    "@": lambda a, b: a @ b,
    "linear": lambda a, b: F.linear(a, b),
    "linear, bias": lambda a, b: F.linear(a, a, b.sum(0)),
    "concatenate": lambda a, b: F.concatenate([a, b]),
    "mean_squared_error": lambda a, b: F.mean_squared_error(a, b),
    "stack": lambda a, b: F.stack([a, b]),
    "where": lambda a, b: F.where(np.array([True, False]), a, b),
    "layer_norm, weight": lambda a, b: F.layer_norm(a, b.sum(0), a.sum(0)),
    "layer_norm, bias": lambda a, b: F.layer_norm(a, a.sum(0), b.sum(0)),
    "rms_norm": lambda a, b: F.rms_norm(a, b.sum(0)),
    "attention, keys": lambda a, b: F.attention(a, b, a),
    "attention, values": lambda a, b: F.attention(a, a, b),
}


@pytest.mark.parametrize("operation", TWO_TENSORS.values(), ids=TWO_TENSORS)
def test_a_float32_tensor_that_meets_a_float64_tensor_raises_the_code_dtype(operation):
    single, double = Tensor(np.ones((2, 2), np.float32)), Tensor(np.ones((2, 2)))
    assert operation(single, single).dtype == np.float32
    assert operation(double, double).dtype == np.float64
    for pair in ((single, double), (double, single)):
        with pytest.raises(TensorError, match="float64") as caught:
            operation(*pair)
        assert caught.value.code == "dtype"


def test_numpy_functions_do_not_swallow_a_tensor_unseen():
    x = Tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(TypeError):
        np.exp(x)
    with pytest.raises(TypeError):
        np.add(np.ones(2), x)
    assert np.asarray(x).tolist() == [1.0, 2.0]  # asked for by name


def test_every_operation_of_a_file_is_offered_by_the_package():
    """An operation that only its own file names would escape the table above."""
    offered = set()
    for module in pkgutil.iter_modules(F.__path__, "minipipe.functional."):
        offered |= set(importlib.import_module(module.name).__all__)
    assert offered == set(F.__all__)
