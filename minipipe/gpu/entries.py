"""The operations that have kernels, and the functions that launch them: each takes and
returns what the operation's own function does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Arrays, Shape, array_module
from minipipe.core.functional import loss
from minipipe.core.functional.elementwise import relu
from minipipe.functional import dropping
from minipipe.functional.attention import KERNELS as SOFTMAX_KERNELS
from minipipe.functional.embedding import embedding
from minipipe.functional.gelu import gelu
from minipipe.functional.normalisation import layer_norm, rms_norm
from minipipe.gpu import dropout, updates
from minipipe.gpu.embedding import gradient_of_weight
from minipipe.gpu.kernels import REALS, over_columns, over_elements, over_rows
from minipipe.gpu.versions import add_version
from minipipe.optim.rules import SGD, Adam, AdamW


def empty(shape: Shape, like: Array) -> Array:
    """Return a new array of a shape and the dtype of another, in C order."""
    return array_module(like).empty(shape, dtype=like.dtype)


# -- activations -----------------------------------------------------------------------


def _activation(name: str, num_outputs: int) -> Callable[..., None]:
    """Return a kernel; a compiled step may call another one that adds a bias first."""
    with_bias = over_rows(f"activations.bias_{name}", num_outputs)
    return over_elements(f"activations.{name}", num_outputs, with_bias=with_bias)


_gelu_erf = _activation("gelu_erf", num_outputs=2)
_gelu_tanh = _activation("gelu_tanh", num_outputs=2)
_relu_kernel = _activation("relu", num_outputs=1)
_relu_gradient = over_elements("activations.relu_gradient", num_outputs=1)


def _gelu(x: Array, approximate: bool = False) -> Arrays:
    x = backend.contiguous(x)
    value = empty(x.shape, x)
    slope = empty(x.shape, x)
    kernel = _gelu_erf
    if approximate:
        kernel = _gelu_tanh
    kernel(x, value, slope)
    return value, slope


def _is_real(array: Array) -> bool:
    return backend.numpy_dtype(array.dtype).name in REALS


def _relu(x: Array) -> Array:
    if not _is_real(x):  # halves, and integers
        return backend.positive_part(x)
    result = empty(x.shape, x)
    _relu_kernel(backend.contiguous(x), result)
    return result


def _of_relu(g: Array, result: Array) -> Array:
    if not _is_real(g):
        return backend.masked_like(g, result)
    gradient = empty(g.shape, g)
    _relu_gradient(backend.contiguous(g), backend.contiguous(result), gradient)
    return gradient


# -- normalisation ---------------------------------------------------------------------

_layer_norm_kernel = over_rows("normalisation.layer_norm", num_outputs=3)
_rms_norm_kernel = over_rows("normalisation.rms_norm", num_outputs=3)
_layer_norm_gradient = over_rows("normalisation.layer_norm_gradient", num_outputs=1)
_rms_norm_gradient = over_rows("normalisation.rms_norm_gradient", num_outputs=1)
_sum_of_rows = over_columns("normalisation.sum_of_rows", num_outputs=1)
_sum_of_products = over_columns("normalisation.sum_of_products", num_outputs=1)


def _layer_norm(x: Array, weight: Array, bias: Array, epsilon: float = 1e-5) -> Arrays:
    vectors = backend.contiguous(weight), backend.contiguous(bias)
    return _normalised(_layer_norm_kernel, x, vectors, epsilon)


def _rms_norm(x: Array, weight: Array, epsilon: float = 1e-5) -> Arrays:
    return _normalised(_rms_norm_kernel, x, (backend.contiguous(weight),), epsilon)


def _normalised(
    kernel: Callable[..., None], x: Array, vectors: Arrays, epsilon: float
) -> Arrays:
    rows = backend.rows_of(backend.contiguous(x))
    result = empty(x.shape, x)
    normalised = empty(rows.shape, x)
    scale = empty((rows.shape[0], 1), x)
    kernel(rows, *vectors, float(epsilon), result, normalised, scale)
    return result, normalised, scale


def _gradient_of_rows(kernel: Callable[..., None]) -> Callable[..., Array]:
    def of_rows(g: Array, normalised: Array, scale: Array, weight: Array) -> Array:
        gradient = empty(g.shape, g)
        rows = backend.rows_of(backend.contiguous(g))
        kernel(rows, normalised, scale, backend.contiguous(weight), gradient)
        return gradient

    return of_rows


def _of_weight(g: Array, normalised: Array) -> Array:
    sums = empty(g.shape[-1:], g)
    _sum_of_products(backend.rows_of(backend.contiguous(g)), normalised, sums)
    return sums


def _of_bias(g: Array) -> Array:
    sums = empty(g.shape[-1:], g)
    _sum_of_rows(backend.rows_of(backend.contiguous(g)), sums)
    return sums


# -- attention -------------------------------------------------------------------------

_softmax = over_columns("attention.softmax_over_keys", num_outputs=1)
_masked_softmax = over_columns("attention.masked_softmax_over_keys", num_outputs=1)
_gradient_of_scores = over_columns("attention.gradient_of_scores", num_outputs=1)


def _weights(
    scores: Array, num_queries: int, is_causal: bool, visible: Array | None
) -> Array:
    """Return the softmax over keys of scores of shape (..., s, g * t)."""
    scores = backend.contiguous(scores)
    weights = empty(scores.shape, scores)
    if visible is None:
        _softmax(scores, num_queries, int(is_causal), weights)
        return weights
    num_samples, _, mask_width = visible.shape
    of_sample = backend.prod(scores.shape[:-2]) // max(num_samples, 1)
    mask = backend.contiguous(visible), mask_width, of_sample
    _masked_softmax(scores, *mask, num_queries, int(is_causal), weights)
    return weights


def _score_gradient(g: Array, weights: Array, dropped: Array) -> Array:
    """Return the gradient of scores, from g, the gradient of dropped-out weights."""
    gradient = empty(g.shape, g)
    kept = backend.contiguous(weights), backend.contiguous(dropped)
    _gradient_of_scores(backend.contiguous(g), *kept, gradient)
    return gradient


# -- cross-entropy ---------------------------------------------------------------------

_log_softmax = over_rows("cross_entropy.log_softmax_and_label", num_outputs=2)
_plain_cross_entropy = loss.cross_entropy.operation.forward
_gradient_of_logits = over_rows("cross_entropy.gradient_of_logits", num_outputs=1)


def _cross_entropy(
    logits: Array,
    labels: Array,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    class_weights: Any = None,
    reduction: str = "mean",
) -> tuple[Array, Array, Array, Any, bool]:
    is_weighed = ignore_index is not None or class_weights is not None
    if is_weighed or label_smoothing:
        options = ignore_index, label_smoothing, class_weights, reduction
        return _plain_cross_entropy(logits, labels, *options)
    loss.check_labels(logits, labels, None)
    loss.check_reduction("cross_entropy", reduction)
    rows = backend.rows_of(backend.contiguous(logits))
    xp = array_module(logits)
    flat = backend.reshape(labels, (-1,))
    columns = backend.contiguous(backend.as_array(flat, xp.int64))
    log_probabilities = empty(rows.shape, rows)
    of_label = empty(columns.shape, rows)
    _log_softmax(rows, columns, log_probabilities, of_label)
    total = 1.0
    if reduction == "mean":
        total = float(columns.shape[0])
    result = backend.reduce_sum(of_label) / -total
    return result, log_probabilities, columns, total, True


def _of_logits(
    g: Array,
    log_probabilities: Array,
    wanted: Array,
    total: Any,
    counts_all: bool,
    shape: Shape,
) -> Array:
    if wanted.ndim > 1:
        kept = log_probabilities, wanted, total, counts_all
        return loss.gradient_of_logits(g, *kept, shape)
    gradient = empty(shape, log_probabilities)
    _gradient_of_logits(log_probabilities, wanted, g, total, gradient)
    return gradient


# -- the table -------------------------------------------------------------------------

ENTRIES: dict[Any, dict[str, Callable[..., Any]]] = {
    gelu: {"forward": _gelu},
    relu: {"forward": _relu, "a": _of_relu},
    layer_norm: {
        "forward": _layer_norm,
        "products": lambda g: None,  # no gradient needs it here
        "x": _gradient_of_rows(_layer_norm_gradient),
        "weight": _of_weight,
        "bias": _of_bias,
    },
    rms_norm: {
        "forward": _rms_norm,
        "products": lambda g: None,
        "x": _gradient_of_rows(_rms_norm_gradient),
        "weight": _of_weight,
    },
    loss.cross_entropy: {"forward": _cross_entropy, "logits": _of_logits},
    embedding: {"weight": gradient_of_weight},
    dropping._dropout: {"a": dropout.kept},
}
"""By operation, its functions for arrays of a GPU: ``forward``, and by the names of
inputs and shared values their gradients; see ``versions.py``.
"""

TABLES: list[tuple[dict[str, Any], Any]] = [
    (SOFTMAX_KERNELS, (_weights, _score_gradient)),
    (dropping.KERNELS, dropout.dropped),
    (SGD.launches, updates.sgd),
    (Adam.launches, partial(updates.adam, is_decoupled=False)),
    (AdamW.launches, partial(updates.adam, is_decoupled=True)),
]
"""Tables of functions by the name of the array module, with those for a GPU."""

_installed: set[str] = set()


def install(xp: ModuleType) -> None:
    """Give operations their entries for a module: kernels compute its arrays from now
    on. Nothing changes for arrays of other modules.
    """
    name = xp.__name__
    if name in _installed:
        return
    _installed.add(name)
    for function, versions in ENTRIES.items():
        add_version(function, name, **versions)
    for table, version in TABLES:
        table[name] = version
