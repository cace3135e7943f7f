"""Attention, each form one fused operation: scores, mask, softmax and the weighted sum of values.

For one head with queries Q (t, d), keys K (s, d), values V (s, e), and G the gradient of the result R (t, e):

    W = softmax of K Q^T / sqrt(d) over keys, shape (s, t)        R  = W^T V
    dV = W G        dW = V G^T        dS = W * (dW - sum of dW * W over keys)
    dK = dS Q / sqrt(d)               dQ = dS^T K / sqrt(d)

With dropout the values are weighed by D = W * M, where M is 0 or 1 / (1 - probability); then dW = M * (V G^T), so that
W * dW = D * (V G^T).

Keys are rows of W, and not columns as in the literature: NumPy reduces over rows several times as fast.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from minipipe import backend
from minipipe.backend import Array, array_module
from minipipe.errors import TensorError
from minipipe.functional.dropout import drawn
from minipipe.tensor import Operand, Tensor, as_real, operands, record


def attention(
    query: Operand,
    key: Operand,
    value: Operand,
    is_causal: bool = False,
    mask: Operand | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Return softmax(query key^T / sqrt(d)) value, over the last two axes.

    A query that sees no key gets zeros, and all gradients through it are 0.

    Parameters
    ----------
    query : Tensor of shape (..., t, d)
    key : Tensor of shape (..., s, d)
    value : Tensor of shape (..., s, e)
        The axes before the last two are the same in all three: samples, heads.
    is_causal : bool
        Whether query i sees keys 0 to i only, and among them those of the mask.
    mask : array or Tensor of truth values, or of 0 and 1, optional
        Which keys are seen, True or 1: of shape (n, s), by key, for instance all but padding; or (n, t, s), by query
        and key. Two axes are (n, s), whatever the lengths. n is the first axis of the queries, or 1 for all samples
        alike; heads share the mask. It has no gradient.
    dropout : float
        The probability with which a weight is set to 0, after the softmax; see :func:`minipipe.functional.dropout`.

    Returns
    -------
    Tensor of shape (..., t, e)

    Raises
    ------
    TensorError
        Code ``shape``, naming all shapes; for the mask, also ``dtype`` and ``range``; for dropout, ``range`` and
        ``no-random-key``.

    References
    ----------
    Vaswani et al. 2017, "Attention is all you need", equation 1; dropout: their published code, and Devlin et al. 2018
    (BERT), appendix A.2.

    Examples
    --------
    A query that finds all keys equally near gets the mean of their values.

    >>> from minipipe import Tensor, functional
    >>> key, value = Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor([[10.0], [20.0]])
    >>> functional.attention(Tensor([[0.0, 0.0]]), key, value)
    Tensor([[15.]])

    Two samples of the same; the second key of the second one is padding.

    >>> query, key, value = (functional.stack([x, x]) for x in (Tensor([[0.0, 0.0]]), key, value))
    >>> functional.attention(query, key, value, mask=[[True, True], [True, False]]).numpy().tolist()
    [[[15.0]], [[10.0]]]
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
    head = _Head.of("attention", query.data, key.data, value.data, is_causal, mask, dropout)
    return record(
        head.result(),
        (query, lambda g: head.query_gradient(head.score_gradient(g))),
        (key, lambda g: head.key_gradient(head.score_gradient(g))),
        (value, lambda g: head.value_gradient(g)),
    )


def self_attention(
    projections: Tensor,
    num_heads: int,
    is_causal: bool = False,
    mask: Operand | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Return the attention of a sequence to itself, several heads side by side.

    Parameters
    ----------
    projections : Tensor of shape (n, t, 3 * width)
        The queries, keys and values of each position, one behind the other. Each head has its part of each.
    num_heads : int
        Divides width.
    is_causal : bool
        Whether position i sees positions 0 to i only.
    mask : array or Tensor, optional
        Which positions are seen, (n, t) or (n, t, t), as in :func:`attention`.
    dropout : float
        The probability with which a weight is set to 0, as there.

    Returns
    -------
    Tensor of shape (n, t, width)

    Raises
    ------
    TensorError
        Code ``shape``; for mask and dropout, those of :func:`attention`.

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
    n, t, width = shape[0], shape[1], shape[2] // 3
    by_head = backend.reshape(projections.data, (n, t, 3, num_heads, width // num_heads))
    query, key, value = (xp.permute_dims(by_head[:, :, i, ...], (0, 2, 1, 3)) for i in range(3))
    head = _Head.of("self_attention", query, key, value, is_causal, mask, dropout)

    def merged(heads: Array) -> Array:
        return backend.reshape(xp.permute_dims(heads, (0, 2, 1, 3)), (n, t, width))

    def vjp(g: Array) -> Array:
        g = xp.permute_dims(backend.reshape(g, (n, t, num_heads, width // num_heads)), (0, 2, 1, 3))
        scores = head.score_gradient(g)
        parts = head.query_gradient(scores), head.key_gradient(scores), head.value_gradient(g)
        return xp.concat([merged(part) for part in parts], axis=2)

    return record(merged(head.result()), (projections, vjp))


class _Head(NamedTuple):
    """What attention keeps: queries (scaled), keys, values and weights of all heads, over the last two axes."""

    queries: Array
    keys: Array
    values: Array
    weights: Array
    dropped: Array  # the weights after dropout; without, the weights themselves

    @classmethod
    def of(
        cls,
        name: str,
        query: Array,
        key: Array,
        value: Array,
        is_causal: bool,
        mask: Operand | None,
        dropout: float,
    ) -> _Head:
        visible = _visible(name, mask, query, key.shape[-2])
        query = query * (1 / math.sqrt(query.shape[-1]))
        scores = key @ query.mT
        if is_causal:
            xp, (s, t) = array_module(scores), scores.shape[-2:]
            scores += xp.tril(xp.full((s, t), -math.inf, dtype=scores.dtype), k=-1)
        if visible is not None:
            zero = backend.filled((), 0.0, scores)
            scores += array_module(scores).where(_beside_heads(visible, scores.ndim), zero, -math.inf)
        weights = _softmax_over_rows(scores, may_see_nothing=visible is not None)
        drop = drawn(name, weights, dropout)
        return cls(query, key, value, weights, weights if drop is None else drop(weights))

    def result(self) -> Array:
        return self.dropped.mT @ self.values

    def score_gradient(self, g: Array) -> Array:
        scores = self.values @ g.mT
        scores *= self.dropped
        scores -= self.weights * _sum_over_rows(scores)
        return scores

    def query_gradient(self, scores: Array) -> Array:
        gradient = scores.mT @ self.keys
        gradient *= 1 / math.sqrt(self.keys.shape[-1])
        return gradient

    def key_gradient(self, scores: Array) -> Array:
        return scores @ self.queries

    def value_gradient(self, g: Array) -> Array:
        return self.dropped @ g


def _visible(name: str, mask: Operand | None, like: Array, num_keys: int) -> Array | None:
    """Return which keys a mask shows to queries of shape (n, ..., t, d), as truth values of shape (n, s, t or 1)."""
    if mask is None:
        return None
    values = mask.data if isinstance(mask, Tensor) else backend.as_array(mask, like=like)
    if not backend.is_boolean(values.dtype):
        values = _truth_values(name, values)
    n, t = like.shape[0] if like.ndim > 2 else None, like.shape[-2]
    if n is None or values.shape[:1] not in ((n,), (1,)) or values.shape[1:] not in ((num_keys,), (t, num_keys)):
        expected = f"({n}, {num_keys}) or ({n}, {t}, {num_keys})" if n is not None else "queries of three axes or more"
        raise TensorError(
            "shape",
            f"{name}: the mask has shape {values.shape}; expected {expected}: by sample and key, or by sample, query "
            "and key. The first axis may be 1, for all samples alike.",
        )
    return values.mT if values.ndim == 3 else values[:, :, None]


def _truth_values(name: str, mask: Array) -> Array:
    xp = array_module(mask)
    if not backend.is_integer(mask.dtype):
        raise TensorError(
            "dtype",
            f"{name}: the mask is {mask.dtype}; expected truth values, True where a key may be seen, or whole numbers, "
            "1 there and 0 elsewhere.",
        )
    is_seen = mask == 1
    if not bool(xp.all(is_seen | (mask == 0))):
        raise TensorError(
            "range",
            f"{name}: the mask holds other numbers than 0 and 1. Say which keys are seen: mask == …, or mask > 0.",
        )
    return is_seen


def _beside_heads(visible: Array, ndim: int) -> Array:
    """Return an array of shape (n, s, t) with axes of length one for the heads."""
    n, s, t = visible.shape
    return backend.reshape(visible, (n, *(1,) * (ndim - 3), s, t))


def _softmax_over_rows(scores: Array, may_see_nothing: bool) -> Array:
    """Return the softmax over the last axis but one, in place; 0 where all scores are -inf, if there may be such."""
    xp = array_module(scores)
    largest = _largest_of_rows(scores)
    if may_see_nothing:
        largest = xp.clip(largest, float(xp.finfo(scores.dtype).min), None)  # -inf - (-inf) would be no number
    scores -= largest
    weights = xp.exp(scores)
    sums = _sum_over_rows(weights)
    if may_see_nothing:
        sums = xp.clip(sums, 1.0, None)  # the largest of a row counts 1, so less is nothing
    weights /= sums
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
