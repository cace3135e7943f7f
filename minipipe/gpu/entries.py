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
from minipipe.functional.attention import softmax_of_scores, through_softmax
from minipipe.functional.embedding import add_rows
from minipipe.functional.exponentials import log_softmax, softmax
from minipipe.functional.gelu import gelu, silu
from minipipe.functional.normalisation import layer_norm, rms_norm
from minipipe.functional.shape import added
from minipipe.gpu import dropout, updates
from minipipe.gpu import embedding as rows_by_number
from minipipe.gpu.kernels import (
    Kernel,
    computed,
    over_columns,
    over_elements,
    over_rows,
)
from minipipe.gpu.versions import add_version
from minipipe.optim import scaling
from minipipe.optim.muon import Muon
from minipipe.optim.rules import SGD, Adam, AdamW

# -- activations -----------------------------------------------------------------------


def _activation(name: str, num_outputs: int) -> Kernel:
    """Return a kernel; a compiled step may call another one that adds a bias first."""
    with_bias = over_rows(f"activations.bias_{name}", num_outputs)
    return over_elements(f"activations.{name}", num_outputs, with_bias=with_bias)


_gelu_erf = _activation("gelu_erf", num_outputs=2)
_gelu_tanh = _activation("gelu_tanh", num_outputs=2)
_silu = _activation("silu", num_outputs=2)
_silu_gradient = over_elements("activations.silu_gradient", num_outputs=1)
_relu = _activation("relu", num_outputs=1)
_relu_gradient = over_elements("activations.relu_gradient", num_outputs=1)


def _gelu(x: Array, approximate: bool = False) -> Arrays:
    if approximate:
        return computed(_gelu_tanh, x)
    return computed(_gelu_erf, x)


# -- normalisation ---------------------------------------------------------------------

_sum_of_rows = over_columns("normalisation.sum_of_rows", num_outputs=1)
_sum_of_products = over_columns("normalisation.sum_of_products", num_outputs=1)


def _norm(name: str) -> dict[str, Callable[..., Any]]:
    """Return the versions of a normalisation of rows."""
    kernel = over_rows(f"normalisation.{name}", num_outputs=3)
    gradient = over_rows(f"normalisation.{name}_gradient", num_outputs=1)

    def forward(x: Array, *vectors: Array, epsilon: float) -> Arrays:
        rows = rows_of(x)
        shapes = [x.shape, rows.shape, (rows.shape[0], 1)]
        return computed(kernel, rows, *vectors, float(epsilon), shapes=shapes)

    return {
        "forward": forward,
        "products": lambda g: None,  # no gradient needs it here
        "x": lambda g, normalised, scale, weight: computed(
            gradient, rows_of(g), normalised, scale, weight, shapes=[g.shape]
        ),
        "weight": lambda g, normalised: computed(
            _sum_of_products, rows_of(g), normalised, shapes=[g.shape[-1:]]
        ),
    }


def _of_bias(g: Array) -> Array:
    return computed(_sum_of_rows, rows_of(g), shapes=[g.shape[-1:]])


# -- softmax ---------------------------------------------------------------------------


def _along_rows(name: str) -> dict[str, Callable[..., Any]]:
    """Return the versions of an operation along an axis, if that is the last one."""
    kernel = over_rows(f"softmax.{name}", num_outputs=1)
    gradient = over_rows(f"softmax.{name}_gradient", num_outputs=1)

    def over_last(function: Kernel, axis: int, x: Array, *others: Array) -> Array:
        if x.ndim == 0 or axis not in (-1, x.ndim - 1):
            return NotImplemented
        return computed(function, x, *others)

    return {
        "forward": lambda x, axis: over_last(kernel, axis, x),
        "a": lambda g, result, axis: over_last(gradient, axis, g, result),
    }


_softmax_over_keys = over_columns("attention.softmax_over_keys", num_outputs=1)
_masked_over_keys = over_columns("attention.masked_softmax_over_keys", num_outputs=1)
_gradient_of_scores = over_columns("attention.gradient_of_scores", num_outputs=1)


def _softmax_of_scores(
    scores: Array, num_queries: int, is_causal: bool, visible: Array | None
) -> Array:
    options = num_queries, int(is_causal)
    if visible is None:
        return computed(_softmax_over_keys, scores, *options)
    num_samples, _, mask_width = visible.shape
    of_sample = backend.prod(scores.shape[:-2]) // max(num_samples, 1)
    mask = visible, mask_width, of_sample
    return computed(_masked_over_keys, scores, *mask, *options)


# -- cross-entropy ---------------------------------------------------------------------

_losses_of_rows = over_rows("softmax.losses_of_rows", num_outputs=2)
_mean_of_losses = over_rows("softmax.mean_of_losses", num_outputs=2)
_gradient_of_logits = over_rows("softmax.gradient_of_logits", num_outputs=1)


def _cross_entropy(
    logits: Array,
    labels: Array,
    ignore_index: int | None,
    label_smoothing: float,
    class_weights: Any,
    reduction: str,
) -> Any:
    k = logits.shape[-1] if logits.ndim else 0
    if class_weights is not None or k == 0:
        return NotImplemented
    loss.check_labels(logits, labels, ignore_index)
    loss.check_options(label_smoothing, None, reduction, k)
    xp = array_module(logits)
    columns = backend.as_array(backend.reshape(labels, (-1,)), xp.int64)
    if ignore_index is not None:
        columns = xp.where(columns == ignore_index, -1, columns)
    rows = rows_of(logits)
    given = rows, columns, float(label_smoothing)
    shapes = [rows.shape, (1, *columns.shape)]
    log_probabilities, losses = computed(_losses_of_rows, *given, shapes=shapes)
    given = losses, columns, int(reduction == "mean")
    result, total = computed(_mean_of_losses, *given, shapes=[(), ()])
    return result, log_probabilities, columns, total, True


def _of_logits(
    g: Array,
    log_probabilities: Array,
    wanted: Array,
    total: Any,
    label_smoothing: float,
    shape: Shape,
) -> Array:
    if wanted.ndim > 1:  # of the plain operation
        return NotImplemented
    given = log_probabilities, wanted, g, total, float(label_smoothing)
    return computed(_gradient_of_logits, *given, shapes=[shape])


# -- the table -------------------------------------------------------------------------

ENTRIES: dict[Any, dict[str, Callable[..., Any]]] = {
    gelu: {"forward": _gelu},
    silu: {
        "forward": partial(computed, _silu),
        "a": lambda g, result, gate: computed(_silu_gradient, g, result, gate),
    },
    relu: {
        "forward": partial(computed, _relu),
        "a": lambda g, result: computed(_relu_gradient, g, result),
    },
    layer_norm: {**_norm("layer_norm"), "bias": _of_bias},
    rms_norm: _norm("rms_norm"),
    softmax: _along_rows("softmax"),
    log_softmax: _along_rows("log_softmax"),
    softmax_of_scores: {"forward": _softmax_of_scores},
    through_softmax: {"forward": partial(computed, _gradient_of_scores)},
    loss.cross_entropy: {"forward": _cross_entropy, "logits": _of_logits},
    add_rows: {"forward": rows_by_number.add_rows},
    added: {"forward": rows_by_number.added},
    dropping.dropped: {"forward": dropout.dropped},
    dropping._dropout: {"a": dropout.kept},
    scaling.sums_of_squares: {"forward": updates.sums_of_squares},
    scaling.scaled: {"forward": updates.scaled},
    scaling.are_finite: {"forward": updates.are_finite},
}
"""By operation, or function of arrays, its versions for arrays of a GPU: ``forward``,
and by the names of inputs and shared values their gradients; see ``versions.py``.
"""

TABLES: list[tuple[dict[str, Any], Any]] = [
    (SGD.launches, updates.sgd),
    (Adam.launches, partial(updates.adam, is_decoupled=False)),
    (AdamW.launches, partial(updates.adam, is_decoupled=True)),
    (Muon.launches, partial(updates.adam, is_decoupled=True, looks_ahead=False)),
]
"""Tables of optimisers by the name of the array module, with functions that launch a
kernel over many parameters.
"""

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
