"""Attention, each form one fused operation: scores, mask, softmax and the weighted sum of values.

For one head with queries Q (t, d), keys K (s, d), values V (s, e), and G the gradient of the result R (t, e):

    W = softmax of K Q^T / sqrt(d) over keys, shape (s, t)        R  = W^T V
    dV = W G        dW = V G^T        dS = W * (dW - sum of dW * W over keys)
    dK = dS Q / sqrt(d)               dQ = dS^T K / sqrt(d)

Keys are rows of W, and not columns as in the literature: NumPy reduces over rows several times as fast.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from minipipe import backend
from minipipe.backend import Array, array_module
from minipipe.errors import TensorError
from minipipe.functional.precision import in_float32
from minipipe.tensor import Operand, Tensor, as_real, operands, record


def attention(query: Operand, key: Operand, value: Operand, is_causal: bool = False) -> Tensor:
    """Return softmax(query key^T / sqrt(d)) value, over the last two axes.

    Parameters
    ----------
    query : Tensor of shape (..., t, d)
    key : Tensor of shape (..., s, d)
    value : Tensor of shape (..., s, e)
        The axes before the last two are the same in all three: samples, heads.
    is_causal : bool
        Whether query i sees keys 0 to i only.

    Returns
    -------
    Tensor of shape (..., t, e)

    Raises
    ------
    TensorError
        Code ``shape``, naming all three shapes.

    References
    ----------
    Vaswani et al. 2017, "Attention is all you need", equation 1.

    Examples
    --------
    A query that finds all keys equally near gets the mean of their values.

    >>> from minipipe import Tensor, functional
    >>> key, value = Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor([[10.0], [20.0]])
    >>> functional.attention(Tensor([[0.0, 0.0]]), key, value)
    Tensor([[15.]])
    """
    query, key = operands(query, key)
    query, value = operands(query, value)
    query, key, value = as_real(query), as_real(key), as_real(value)
    shapes = query.shape, key.shape, value.shape
    fits = all(len(shape) >= 2 and shape[:-2] == shapes[0][:-2] for shape in shapes)
    if not fits or shapes[0][-1] != shapes[1][-1] or shapes[1][-2] != shapes[2][-2] or 0 in shapes[1][-2:]:
        raise TensorError(
            "shape",
            f"attention: queries {shapes[0]}, keys {shapes[1]} and values {shapes[2]} do not fit; "
            "expected (..., t, d), (..., s, d) and (..., s, e), and not nothing to attend to.",
        )
    if backend.is_half(query.dtype):
        return in_float32(attention, query, key, value, is_causal=is_causal)
    head = _Head.of(query.data, key.data, value.data, is_causal)
    return record(
        head.weights.mT @ value.data,
        (query, lambda g: head.query_gradient(head.score_gradient(g))),
        (key, lambda g: head.key_gradient(head.score_gradient(g))),
        (value, lambda g: head.weights @ g),
    )


def self_attention(projections: Tensor, num_heads: int, is_causal: bool = False) -> Tensor:
    """Return the attention of a sequence to itself, several heads side by side.

    Parameters
    ----------
    projections : Tensor of shape (n, t, 3 * width)
        The queries, keys and values of each position, one behind the other. Each head has its part of each.
    num_heads : int
        Divides width.
    is_causal : bool
        Whether position i sees positions 0 to i only.

    Returns
    -------
    Tensor of shape (n, t, width)

    Raises
    ------
    TensorError
        Code ``shape``.

    References
    ----------
    Vaswani et al. 2017, "Attention is all you need", section 3.2.2.

    Examples
    --------
    Two positions with query 0, key 0 and values 1 and 3; the first one sees itself alone.

    >>> from minipipe import Tensor, functional
    >>> projections = Tensor([[[0.0, 0.0, 1.0], [0.0, 0.0, 3.0]]])
    >>> functional.self_attention(projections, num_heads=1, is_causal=True).numpy().tolist()
    [[[1.0], [2.0]]]
    """
    projections = as_real(projections)
    shape, xp = projections.shape, array_module(projections.data)
    if num_heads < 1 or len(shape) != 3 or shape[2] % (3 * num_heads) or 0 in shape[1:]:
        raise TensorError(
            "shape",
            f"self_attention: the projections have shape {shape}; expected (n, t, 3 * width), where width is a "
            f"multiple of the number of heads, {num_heads}.",
        )
    if backend.is_half(projections.dtype):
        return in_float32(self_attention, projections, num_heads=num_heads, is_causal=is_causal)
    n, t, width = shape[0], shape[1], shape[2] // 3
    by_head = backend.reshape(projections.data, (n, t, 3, num_heads, width // num_heads))
    query, key, value = (xp.permute_dims(by_head[:, :, i, ...], (0, 2, 1, 3)) for i in range(3))
    head = _Head.of(query, key, value, is_causal)

    def merged(heads: Array) -> Array:
        return backend.reshape(xp.permute_dims(heads, (0, 2, 1, 3)), (n, t, width))

    def vjp(g: Array) -> Array:
        g = xp.permute_dims(backend.reshape(g, (n, t, num_heads, width // num_heads)), (0, 2, 1, 3))
        scores = head.score_gradient(g)
        parts = head.query_gradient(scores), head.key_gradient(scores), head.weights @ g
        return xp.concat([merged(part) for part in parts], axis=2)

    return record(merged(head.weights.mT @ value), (projections, vjp))


class _Head(NamedTuple):
    """What attention keeps: queries (scaled), keys, values and weights of all heads, over the last two axes."""

    queries: Array
    keys: Array
    values: Array
    weights: Array

    @classmethod
    def of(cls, query: Array, key: Array, value: Array, is_causal: bool) -> _Head:
        query = query * (1 / math.sqrt(query.shape[-1]))
        scores = key @ query.mT
        if is_causal:
            xp, (s, t) = array_module(scores), scores.shape[-2:]
            scores += xp.tril(xp.full((s, t), -math.inf, dtype=scores.dtype), k=-1)
        return cls(query, key, value, _softmax_over_rows(scores))

    def score_gradient(self, g: Array) -> Array:
        scores = self.values @ g.mT
        scores *= self.weights
        scores -= self.weights * _sum_over_rows(scores)
        return scores

    def query_gradient(self, scores: Array) -> Array:
        gradient = scores.mT @ self.keys
        gradient *= 1 / math.sqrt(self.keys.shape[-1])
        return gradient

    def key_gradient(self, scores: Array) -> Array:
        return scores @ self.queries


def _softmax_over_rows(scores: Array) -> Array:
    xp = array_module(scores)
    scores -= _largest_of_rows(scores)
    weights = xp.exp(scores)
    weights /= _sum_over_rows(weights)
    return weights


def _sum_over_rows(array: Array) -> Array:
    """Return the sum over the last axis but one, (..., 1, t), as a product: a quarter of the time of a reduction."""
    return backend.ones((1, array.shape[-2]), array) @ array


def _largest_of_rows(array: Array) -> Array:
    """Return the maximum over the last axis but one, (..., 1, t), by halving: a third of the time of a reduction."""
    xp = array_module(array)
    while (count := array.shape[-2]) > 1:
        half = (count + 1) // 2  # of an odd number of rows the middle one is in both halves
        array = xp.maximum(array[..., :half, :], array[..., count - half :, :])
    return array
