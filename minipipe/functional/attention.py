"""Attention, each form one fused operation: scores, mask, softmax and the weighted sum
of values.

For one head with queries Q (t, d), keys K (s, d), values V (s, e), and G the gradient
of the result R (t, e):

    W = softmax of K Q^T / sqrt(d) over keys, shape (s, t)        R  = W^T V
    dV = W G        dW = V G^T        dS = W * (dW - sum of dW * W over keys)
    dK = dS Q / sqrt(d)               dQ = dS^T K / sqrt(d)

With dropout the values are weighed by D = W * M, where M is 0 or 1 / (1 - probability);
then dW = M * (V G^T), so that W * dW = D * (V G^T).

Keys are rows of W, and not columns as in the literature: NumPy reduces over rows
several times as fast.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Arrays, Shape, array_module
from minipipe.core.autograd.host import known
from minipipe.core.autograd.modes import next_key
from minipipe.core.functional.operands import data_of, one_real
from minipipe.core.specs import Spec
from minipipe.core.tensor import Operand, Tensor, op
from minipipe.errors import TensorError, shape_error
from minipipe.functional import dropping
from minipipe.functional.precision import real_operands

_BASE = Spec(
    float, above=0, expected="a number above 0", error=TensorError, code="out-of-range"
)


@op(takes=one_real, attributes="positions base", saves="rotation")
def rotary(
    x: Array, positions: Operand | None = None, base: float = 10000.0
) -> tuple[Array, Rotation]:
    """Return vectors turned by angles proportional to their positions.

    Elements i and i + d / 2 are a point in a plane, which is turned by position *
    base^(-2 i / d). These are the pairs of GPT-NeoX and of Llama's weights in Hugging
    Face's form; the paper pairs neighbours, elements 2 i and 2 i + 1, which is the same
    except for the order of the elements. The product of a query and a key that are both
    turned depends on the distance of their positions alone.

    Parameters
    ----------
    x : Tensor of shape (..., t, d)
        Queries or keys; d is even.
    positions : array or Tensor of whole numbers, of shape (t,) or (n, t), optional
        The positions of the vectors. If they differ between samples, n is the first
        axis of x. By default 0 to t - 1.
    base : float
        Above 0. The larger it is, the slower the slowest planes turn.

    Returns
    -------
    Tensor of the same shape

    Raises
    ------
    TensorError
        Codes ``shape``, ``dtype`` and ``out-of-range``.

    References
    ----------
    Su et al. 2021, "RoFormer: enhanced transformer with rotary position embedding",
    equations 14 and 34.

    Examples
    --------
    The vector at position 1 is turned by 1 radian.

    >>> from minipipe import Tensor, functional
    >>> functional.rotary(Tensor([[1.0, 0.0], [1.0, 0.0]])).numpy().round(3).tolist()
    [[1.0, 0.0], [0.5400000214576721, 0.8410000205039978]]
    """
    rotation = Rotation.of("rotary", x, positions, base)
    return rotation.turned(x), rotation


rotary.gradients(x=lambda g, rotation: rotation.turned_back(g))


class Rotation(NamedTuple):
    """Cosine and sine of the angles of all planes, of shape (t, d / 2) or (n, ..., t, d
    / 2).

    Examples
    --------
    >>> import numpy as np
    >>> rotation, x = (
    ...     Rotation.of("rotary", np.ones((3, 2)), None, 10000.0),
    ...     np.ones((3, 2)),
    ... )
    >>> np.allclose(rotation.turned_back(rotation.turned(x)), x)
    True
    """

    cosine: Array
    sine: Array

    @classmethod
    def of(
        cls, name: str, like: Array, positions: Operand | None, base: float
    ) -> Rotation:
        """Return the rotation of arrays of the shape, module and dtype of ``like``.

        Raises
        ------
        TensorError
            Codes ``shape``, ``dtype`` and ``out-of-range``.
        """
        if like.ndim < 2 or like.shape[-1] % 2:
            raise shape_error(name, "(..., t, d), d even", x=like.shape)
        _BASE.check(f"{name}: the base", base)
        xp = array_module(like)
        d = like.shape[-1]
        speeds = float(base) ** (xp.arange(d // 2, dtype=xp.float64) * (-2 / max(d, 1)))
        places = _positions(name, like, positions)[..., None]
        angles = xp.astype(places, xp.float64) * speeds
        cosine = xp.astype(xp.cos(angles), like.dtype)
        return cls(cosine, xp.astype(xp.sin(angles), like.dtype))

    def turned(self, x: Array) -> Array:
        """Return vectors turned by their angles."""
        half = x.shape[-1] // 2
        xp = array_module(x)
        a = x[..., :half]
        b = x[..., half:]
        first = a * self.cosine - b * self.sine
        return xp.concat([first, b * self.cosine + a * self.sine], axis=-1)

    def turned_back(self, x: Array) -> Array:
        """Return vectors turned the other way: the inverse, and the gradient."""
        return Rotation(self.cosine, -self.sine).turned(x)


def _positions(name: str, like: Array, positions: Operand | None) -> Array:
    """Return positions of shape (t,), or (n, ..., t) with axes of length one
    between.
    """
    n = like.shape[0]
    t = like.shape[-2]
    if positions is None:
        return array_module(like).arange(t)
    values = data_of(positions, like)
    if not backend.is_integer(values.dtype):
        message = f"{name}: positions must be whole numbers; these are {values.dtype}."
        raise TensorError("dtype", message)
    if values.shape == (t,):
        return values
    if like.ndim < 3 or values.shape != (n, t):
        expected = f"positions {(t,)}"
        if like.ndim > 2:
            expected += f" or {(n, t)}"
        raise shape_error(name, expected, x=like.shape, positions=values.shape)
    return backend.reshape(values, (n, *(1,) * (like.ndim - 3), t))


def _fitting(query: Operand, key: Operand, value: Operand) -> list[Tensor]:
    """Return the operands as tensors of one dtype whose shapes fit."""
    given = real_operands(query, key, value)
    shapes = [each.data.shape for each in given]
    if not _fit(*shapes):
        fitting = "(..., t, d), (..., s, d) and (..., s, e), s and d above 0"
        expected = f"{fitting}; the query may have a multiple of heads"
        named = dict(zip(("query", "key", "value"), shapes))
        raise shape_error("attention", expected, **named)
    return given


def _fit(query: Shape, key: Shape, value: Shape) -> bool:
    if min(len(query), len(key), len(value)) < 2 or key[:-1] != value[:-1]:
        return False
    if query[-1] != key[-1] or 0 in key[-2:]:
        return False
    heads = query[:-2]
    shared = key[:-2]
    if heads == shared:
        return True
    if len(heads) != len(shared) or heads[:-1] != shared[:-1]:
        return False
    return shared[-1] > 0 and heads[-1] % shared[-1] == 0


@op(
    takes=_fitting,
    attributes="is_causal mask dropout part",
    saves="queries weights dropped",
    in_float32=True,
)
def attention(
    query: Array,
    key: Array,
    value: Array,
    is_causal: bool = False,
    mask: Operand | None = None,
    dropout: float = 0.0,
    part: tuple[int, int] = (0, 1),
) -> Arrays:
    """Return softmax(query key^T / sqrt(d)) value, over the last two axes.

    A query that sees no key gets zeros, and all gradients through it are 0. Heads of
    queries may share a head of keys and values ("grouped queries"): neighbours share.

    Parameters
    ----------
    query : Tensor of shape (..., t, d)
    key : Tensor of shape (..., s, d)
    value : Tensor of shape (..., s, e)
        The axes before the last two are the same in all three: samples, heads. But the
        last of them, the heads, may be a multiple in the queries: (n, h * g, t, d)
        beside (n, h, s, d) and (n, h, s, e).
    is_causal : bool
        Whether query i sees only keys 0 to i, and among them only keys that the mask
        allows.
    mask : array or Tensor of truth values, or of 0 and 1, optional
        Which keys are visible, True or 1: of shape (n, s), by key, for instance all
        except padding; or (n, t, s), by query and key. Two axes always mean (n, s). n
        is the first axis of the queries, or 1 for all samples alike; heads share the
        mask. It has no gradient. Keys and values that are not visible must still be
        finite: their weight is 0, and 0 * inf is NaN, as in PyTorch.
    dropout : float
        The probability with which a weight is set to 0, after the softmax; see
        :func:`minipipe.functional.dropout`.
    part : tuple of int
        (i, count), where these are part i of count equal parts of all heads: dropout
        draws for all and takes its part.

    Returns
    -------
    Tensor of shape (..., t, e)

    Raises
    ------
    TensorError
        Code ``shape``, naming all shapes; for the mask, also ``dtype`` and
        ``out-of-range``; for dropout, ``out-of-range`` and ``missing``.

    References
    ----------
    Vaswani et al. 2017, "Attention is all you need", equation 1; dropout: Radford et
    al. 2018, "Improving language understanding by generative pre-training", section
    4.1; grouped queries: Ainslie et al. 2023, "GQA: training generalized multi-query
    transformer models from multi-head checkpoints", section 2.2.

    Examples
    --------
    A query that is equally near to all keys gets the mean of their values.

    >>> from minipipe import Tensor, functional
    >>> key, value = Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor([[10.0], [20.0]])
    >>> functional.attention(Tensor([[0.0, 0.0]]), key, value)
    Tensor([[15.]])

    Two samples of the same; the second key of the second one is padding.

    >>> query, key, value = (
    ...     functional.stack([x, x]) for x in (Tensor([[0.0, 0.0]]), key, value)
    ... )
    >>> functional.attention(
    ...     query, key, value, mask=[[True, True], [True, False]]
    ... ).numpy().tolist()
    [[[15.0]], [[10.0]]]
    """
    options = is_causal, mask, dropout, part
    return _attended("attention", query, key, value, options)


def _score_gradient(g: Array, value: Array, weights: Array, dropped: Array) -> Array:
    of_dropped = backend.matmul(value, _beside(g, value.shape).mT)
    return through_softmax(of_dropped, weights, dropped)


def through_softmax(g: Array, weights: Array, dropped: Array) -> Array:
    """Return the gradient of scores in place, from the one of weights after dropout."""
    g *= dropped
    g -= weights * backend.sum_over_rows(g)
    return g


def _query_gradient(scores: Array, key: Array, shape: Shape) -> Array:
    gradient = backend.matmul(scores.mT, key)
    gradient *= backend.scalars(key, 1 / math.sqrt(shape[-1]))[0]
    return backend.reshape(gradient, shape)


attention.shared(scores=_score_gradient)
attention.gradients(
    query=lambda g, scores, key, shape: _query_gradient(scores, key, shape),
    key=lambda g, scores, queries: backend.matmul(scores, queries),
    value=lambda g, dropped, shape: backend.matmul(dropped, _beside(g, shape)),
)


@op(
    takes=one_real,
    attributes="num_heads is_causal mask dropout num_key_value_heads rotary_base part",
    saves="keys values queries weights dropped rotation",
    in_float32=True,
)
def self_attention(
    projections: Array,
    num_heads: int,
    is_causal: bool = False,
    mask: Operand | None = None,
    dropout: float = 0.0,
    num_key_value_heads: int | None = None,
    rotary_base: float | None = None,
    part: tuple[int, int] = (0, 1),
) -> tuple[Any, ...]:
    """Return the attention of a sequence to itself, several heads side by side.

    Parameters
    ----------
    projections : Tensor of shape (n, t, 3 * width)
        With ``num_key_value_heads``, the last axis has the length width + 2 * width *
        num_key_value_heads / num_heads.
        The queries, keys and values of each position, one behind the other. Each head
        has its part of each.
    num_heads : int
        Divides width.
    is_causal : bool
        Whether position i sees positions 0 to i only.
    mask : array or Tensor, optional
        Which positions are seen, (n, t) or (n, t, t), as in :func:`attention`.
    dropout : float
        The probability with which a weight is set to 0, as there.
    num_key_value_heads : int, optional
        Heads of keys and values, a divisor of num_heads, by default equal to it;
        neighbouring heads of queries share one.
    rotary_base : float, optional
        Turns queries and keys by their positions, 0 to t - 1, with this base; see
        :func:`minipipe.functional.rotary`.
    part : tuple of int
        (i, count), where these are part i of count equal parts of all heads, as in
        :func:`attention`.

    Returns
    -------
    Tensor of shape (n, t, width)

    Raises
    ------
    TensorError
        Code ``shape``; for mask, dropout and rotary_base, the codes of
        :func:`attention` and :func:`minipipe.functional.rotary`.

    References
    ----------
    Vaswani et al. 2017, "Attention is all you need", section 3.2.2.

    Examples
    --------
    Two positions with query 0, key 0 and values 1 and 3; the first one sees itself
    alone.

    >>> from minipipe import Tensor, functional
    >>> projections = Tensor([[[0.0, 0.0, 1.0], [0.0, 0.0, 3.0]]])
    >>> functional.self_attention(
    ...     projections, num_heads=1, is_causal=True
    ... ).numpy().tolist()
    [[[1.0], [2.0]]]
    """
    if num_key_value_heads is None:
        num_key_value_heads = num_heads
    query, key, value = _heads_of(projections, num_heads, num_key_value_heads)
    rotation = None
    if rotary_base is not None:
        rotation = Rotation.of("self_attention", query, None, rotary_base)
        query = rotation.turned(query)
        key = rotation.turned(key)
    options = is_causal, mask, dropout, part
    result, *saved = _attended("self_attention", query, key, value, options)
    return _merged(result), key, value, *saved, rotation


def _projections_gradient(
    g: Array,
    keys: Array,
    values: Array,
    queries: Array,
    weights: Array,
    dropped: Array,
    rotation: Rotation | None,
    num_heads: int,
) -> Array:
    n, t, width = g.shape
    by_head = backend.reshape(g, (n, t, num_heads, width // num_heads))
    g = backend.permuted(by_head, (0, 2, 1, 3))
    scores = _score_gradient(g, values, weights, dropped)
    of_query = _query_gradient(scores, keys, g.shape)
    of_key = backend.matmul(scores, queries)
    if rotation is not None:
        of_query = rotation.turned_back(of_query)
        of_key = rotation.turned_back(of_key)
    of_value = backend.matmul(dropped, _beside(g, values.shape))
    return _merged(array_module(g).concat([of_query, of_key, of_value], axis=1))


self_attention.gradients(projections=_projections_gradient)


def _heads_of(projections: Array, num_heads: int, shared: int) -> list[Array]:
    """Return the queries, keys and values, of shapes (n, heads, t, width)."""
    shape = projections.shape
    num_parts = num_heads + 2 * shared
    fits = shared > 0 and num_heads > 0 and num_heads % shared == 0
    fits = fits and len(shape) == 3 and shape[2] % num_parts == 0
    if not fits or 0 in shape[1:]:
        heads = f"{num_heads} heads of queries, {shared} of keys, {shared} of values"
        expected = f"(n, t, k), k a multiple of {num_parts}: {heads}"
        expected += f"; {shared} must divide {num_heads}"
        raise shape_error("self_attention", expected, projections=shape)
    n = shape[0]
    t = shape[1]
    width = shape[2] // num_parts
    by_position = backend.reshape(projections, (n, t, num_parts, width))
    by_head = backend.permuted(by_position, (0, 2, 1, 3))
    query = by_head[:, :num_heads, ...]
    rest = by_head[:, num_heads:, ...]
    return [query, rest[:, :shared, ...], rest[:, shared:, ...]]


def _merged(heads: Array) -> Array:
    """Return heads of shape (n, heads, t, width) side by side: (n, t, heads *
    width).
    """
    n, count, t, width = heads.shape
    return backend.reshape(backend.permuted(heads, (0, 2, 1, 3)), (n, t, count * width))


# -- weights ---------------------------------------------------------------------------


_Options = tuple[bool, Operand | None, float, tuple[int, int]]
"""``is_causal``, ``mask``, ``dropout`` and ``part`` of :func:`attention`."""


def _attended(
    name: str, query: Array, key: Array, value: Array, options: _Options
) -> Arrays:
    """Return the result, the scaled queries, and the weights, of shape (..., s, t),
    before and after dropout.

    Queries of heads that share keys and values are stored one after the other, as if
    they belonged to one head.
    """
    is_causal, mask, dropout, part = options
    shape = query.shape
    visible = _visible(name, mask, query, key.shape[-2])
    (factor,) = backend.scalars(query, 1 / math.sqrt(shape[-1]))
    queries = _beside(query * factor, key.shape)
    scores = backend.matmul(key, queries.mT)
    weights = softmax_of_scores(scores, shape[-2], is_causal, visible)
    used = weights
    if dropout:
        dropping.check_probability(name, dropout)
        used = dropping.dropped(weights, dropout, next_key(), part)[0]
    result = backend.matmul(used.mT, value)
    result = backend.reshape(result, (*shape[:-1], value.shape[-1]))
    return result, queries, weights, used


def softmax_of_scores(
    scores: Array, num_queries: int, is_causal: bool, visible: Array | None
) -> Array:
    """Return the softmax over keys of scores of shape (..., s, g * t), in place."""
    if is_causal or visible is not None:
        scores = _hidden(scores, num_queries, is_causal, visible)
    return _softmax_over_rows(scores, may_see_nothing=visible is not None)


def _beside(rows: Array, shared: Shape) -> Array:
    """Return the rows of heads that share keys one after the other: (..., h * g, t, d)
    as (..., h, g * t, d).
    """
    if rows.shape[:-2] == shared[:-2]:
        return rows
    num_rows = rows.shape[-3] // shared[-3] * rows.shape[-2]
    return backend.reshape(rows, (*shared[:-2], num_rows, rows.shape[-1]))


def _hidden(
    scores: Array, num_queries: int, is_causal: bool, visible: Array | None
) -> Array:
    """Return scores of shape (..., s, g * t), of g heads of t queries, with -inf for
    each key that is not seen.
    """
    xp = array_module(scores)
    shape = scores.shape
    s = shape[-2]
    t = num_queries
    later = _small_later if xp is np and s * t <= 2**16 else _later
    if is_causal and visible is None and shape[-1] == t:
        scores += later(s, t, xp, scores.dtype)
        return scores
    by_head = backend.reshape(scores, (*shape[:-1], shape[-1] // max(t, 1), t))
    if is_causal:
        by_head += later(s, t, xp, scores.dtype)[:, None, :]
    if visible is not None:
        n, _, by_query = visible.shape
        seen = backend.reshape(visible, (n, *(1,) * (scores.ndim - 3), s, 1, by_query))
        by_head += xp.where(seen, backend.filled((), 0.0, scores), -math.inf)
    return backend.reshape(by_head, shape)


def _later(s: int, t: int, xp: Any, dtype: Any) -> Array:
    """Return -inf for each key, in rows, that comes after the query, and 0 for all
    others.
    """
    return xp.tril(xp.full((s, t), -math.inf, dtype=dtype), k=-1)


_small_later = lru_cache(maxsize=8)(_later)


def _visible(
    name: str, mask: Operand | None, like: Array, num_keys: int
) -> Array | None:
    """Return which keys a mask shows to queries of shape (n, ..., t, d), as truth
    values of shape (n, s, t or 1).
    """
    if mask is None:
        return None
    values = data_of(mask, like)
    if not backend.is_boolean(values.dtype):
        values = _truth_values(name, values)
    n = like.shape[0] if like.ndim > 2 else None
    t = like.shape[-2]
    fits = n is not None and values.shape[:1] in ((n,), (1,))
    if not fits or values.shape[1:] not in ((num_keys,), (t, num_keys)):
        expected = "a query of three axes or more"
        if n is not None:
            expected = f"({n}, {num_keys}) or ({n}, {t}, {num_keys})"
        expected = f"{expected}; the first axis may be 1, for all samples alike"
        raise shape_error(name, expected, mask=values.shape)
    if values.ndim == 3:
        return values.mT
    return values[:, :, None]


@backend.one_line
def _truth_values(name: str, mask: Array) -> Array:
    if not backend.is_integer(mask.dtype):
        expected = "expected truth values, or 1 for visible keys and 0 for others"
        raise TensorError("dtype", f"{name}: the mask is {mask.dtype}; {expected}.")
    _check_truth_values(name, mask)
    return mask == 1


@backend.on_host
def _check_truth_values(name: str, mask: Array) -> None:
    mask = known(mask)
    if not bool(array_module(mask).all((mask == 1) | (mask == 0))):
        problem = f"{name}: the mask holds numbers other than 0 and 1"
        raise TensorError("out-of-range", f"{problem}. Give mask == … or mask > 0.")


def _softmax_over_rows(scores: Array, may_see_nothing: bool) -> Array:
    """Return the softmax over the last axis but one, in place; 0 if all scores are
    -inf, if there may be such.
    """
    xp = array_module(scores)
    largest = _largest_of_rows(scores)
    if may_see_nothing:
        # -inf - (-inf) would be no number
        largest = xp.clip(largest, float(xp.finfo(scores.dtype).min), None)
    scores -= largest
    weights = xp.exp(scores)
    sums = backend.sum_over_rows(weights)
    if may_see_nothing:
        # the largest of a row counts 1, so less is nothing
        sums = xp.clip(sums, 1.0, None)
    weights /= sums
    return weights


def _largest_of_rows(array: Array) -> Array:
    """Return the maximum over the last axis but one, (..., 1, t), by halving: a third
    of the time of a reduction.
    """
    xp = array_module(array)
    count = array.shape[-2]
    while count > 1:
        # of an odd number of rows the middle one is in both halves
        half = (count + 1) // 2
        array = xp.maximum(array[..., :half, :], array[..., count - half :, :])
        count = half
    return array
