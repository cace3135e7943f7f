"""The operations that have kernels, and the functions that launch them: each takes and
returns what the operation's own function does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Arrays, Shape, array_module, rows_of
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
from minipipe.optim import scaling
from minipipe.optim.muon import Muon
from minipipe.optim.rules import SGD, Adam, AdamW

Kernel = Callable[..., None]


def computed(kernel: Kernel, shapes: list[Shape], *given: Any) -> Arrays:
    """Return the outputs of a kernel.

    Parameters
    ----------
    kernel : function
        Of :func:`backend.kernel`.
    shapes : list of Shape
        The shapes of its outputs, whose dtype is the one of the first input.
    *given : array, int or float
        Its inputs, which are made contiguous.
    """
    empty = array_module(given[0]).empty
    outputs = [empty(shape, dtype=given[0].dtype) for shape in shapes]
    inputs = [backend.contiguous(x) if backend.is_array(x) else x for x in given]
    kernel(*inputs, *outputs)
    return tuple(outputs)


# -- activations -----------------------------------------------------------------------


def _activation(name: str, num_outputs: int) -> Kernel:
    """Return a kernel; a compiled step may call another one that adds a bias first."""
    with_bias = over_rows(f"activations.bias_{name}", num_outputs)
    return over_elements(f"activations.{name}", num_outputs, with_bias=with_bias)


_gelu_erf = _activation("gelu_erf", num_outputs=2)
_gelu_tanh = _activation("gelu_tanh", num_outputs=2)
_relu_kernel = _activation("relu", num_outputs=1)
_relu_gradient = over_elements("activations.relu_gradient", num_outputs=1)


def _gelu(x: Array, approximate: bool = False) -> Arrays:
    kernel = _gelu_erf
    if approximate:
        kernel = _gelu_tanh
    return computed(kernel, [x.shape, x.shape], x)


def _is_real(array: Array) -> bool:
    return backend.numpy_dtype(array.dtype).name in REALS


def _relu(x: Array) -> Array:
    if not _is_real(x):  # halves, and integers
        return backend.positive_part(x)
    return computed(_relu_kernel, [x.shape], x)[0]


def _of_relu(g: Array, result: Array) -> Array:
    if not _is_real(g):
        return backend.masked_like(g, result)
    return computed(_relu_gradient, [g.shape], g, result)[0]


# -- normalisation ---------------------------------------------------------------------

_layer_norm = over_rows("normalisation.layer_norm", num_outputs=3)
_rms_norm = over_rows("normalisation.rms_norm", num_outputs=3)
_layer_norm_gradient = over_rows("normalisation.layer_norm_gradient", num_outputs=1)
_rms_norm_gradient = over_rows("normalisation.rms_norm_gradient", num_outputs=1)
_sum_of_rows = over_columns("normalisation.sum_of_rows", num_outputs=1)
_sum_of_products = over_columns("normalisation.sum_of_products", num_outputs=1)


def _normalised(kernel: Kernel, x: Array, *vectors: Array, epsilon: float) -> Arrays:
    rows = rows_of(x)
    shapes = [x.shape, rows.shape, (rows.shape[0], 1)]
    return computed(kernel, shapes, rows, *vectors, float(epsilon))


def _gradients(kernel: Kernel) -> dict[str, Callable[..., Any]]:
    return {
        "products": lambda g: None,  # no gradient needs it here
        "x": lambda g, normalised, scale, weight: computed(
            kernel, [g.shape], rows_of(g), normalised, scale, weight
        )[0],
        "weight": lambda g, normalised: computed(
            _sum_of_products, [g.shape[-1:]], rows_of(g), normalised
        )[0],
    }


def _of_bias(g: Array) -> Array:
    return computed(_sum_of_rows, [g.shape[-1:]], rows_of(g))[0]


# -- attention -------------------------------------------------------------------------

_softmax = over_columns("attention.softmax_over_keys", num_outputs=1)
_masked_softmax = over_columns("attention.masked_softmax_over_keys", num_outputs=1)
_gradient_of_scores = over_columns("attention.gradient_of_scores", num_outputs=1)


def _weights(
    scores: Array, num_queries: int, is_causal: bool, visible: Array | None
) -> Array:
    """Return the softmax over keys of scores of shape (..., s, g * t)."""
    shapes = [scores.shape]
    options = num_queries, int(is_causal)
    if visible is None:
        return computed(_softmax, shapes, scores, *options)[0]
    num_samples, _, mask_width = visible.shape
    of_sample = backend.prod(scores.shape[:-2]) // max(num_samples, 1)
    mask = visible, mask_width, of_sample
    return computed(_masked_softmax, shapes, scores, *mask, *options)[0]


def _score_gradient(g: Array, weights: Array, dropped: Array) -> Array:
    """Return the gradient of scores, from g, the gradient of dropped-out weights."""
    return computed(_gradient_of_scores, [g.shape], g, weights, dropped)[0]


# -- cross-entropy ---------------------------------------------------------------------

_log_softmax = over_rows("cross_entropy.log_softmax_and_label", num_outputs=2)
_gradient_of_logits = over_rows("cross_entropy.gradient_of_logits", num_outputs=1)
_plain_cross_entropy = loss.cross_entropy.operation.forward


def _cross_entropy(logits: Array, labels: Array, **options: Any) -> tuple[Any, ...]:
    is_plain = options["ignore_index"] is None and options["class_weights"] is None
    if not is_plain or options["label_smoothing"]:
        return _plain_cross_entropy(logits, labels, **options)
    loss.check_labels(logits, labels, None)
    loss.check_reduction("cross_entropy", options["reduction"])
    columns = backend.reshape(labels, (-1,))
    columns = backend.contiguous(backend.as_array(columns, array_module(logits).int64))
    rows = rows_of(logits)
    shapes = [rows.shape, columns.shape]
    log_probabilities, of_label = computed(_log_softmax, shapes, rows, columns)
    total = 1.0
    if options["reduction"] == "mean":
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
    kept = log_probabilities, wanted
    if wanted.ndim > 1:
        return loss.gradient_of_logits(g, *kept, total, counts_all, shape)
    return computed(_gradient_of_logits, [shape], *kept, g, total)[0]


# -- the table -------------------------------------------------------------------------

ENTRIES: dict[Any, dict[str, Callable[..., Any]]] = {
    gelu: {"forward": _gelu},
    relu: {"forward": _relu, "a": _of_relu},
    layer_norm: {
        "forward": partial(_normalised, _layer_norm),
        **_gradients(_layer_norm_gradient),
        "bias": _of_bias,
    },
    rms_norm: {
        "forward": partial(_normalised, _rms_norm),
        **_gradients(_rms_norm_gradient),
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
    (scaling.KERNELS, (updates.sums_of_squares, updates.scale)),
    (SGD.launches, updates.sgd),
    (Adam.launches, partial(updates.adam, is_decoupled=False)),
    (AdamW.launches, partial(updates.adam, is_decoupled=True)),
    (Muon.launches, partial(updates.adam, is_decoupled=True, looks_ahead=False)),
]
"""Tables of functions by the name of the array module, with those for a GPU."""

_installed: set[str] = set()


def install(xp: ModuleType) -> None:
    """Give operations their entries for a module: kernels compute its arrays from now
    on. Nothing changes for arrays of other modules.

    Examples
    --------
    Whether an operation has an entry:

    >>> from minipipe import functional
    >>> functional.gelu in ENTRIES, functional.tanh in ENTRIES
    (True, False)
    """
    name = xp.__name__
    if name in _installed:
        return
    _installed.add(name)
    for function, versions in ENTRIES.items():
        add_version(function, name, **versions)
    for table, version in TABLES:
        table[name] = version
