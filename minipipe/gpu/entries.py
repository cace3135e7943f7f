"""The operations that have kernels, and the functions that launch them: each takes and
returns what the operation's own function does.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Arrays, array_module
from minipipe.functional import dropping
from minipipe.functional.embedding import embedding
from minipipe.functional.gelu import gelu
from minipipe.gpu import dropout, updates
from minipipe.gpu.embedding import gradient_of_weight
from minipipe.gpu.kernels import over_elements
from minipipe.gpu.versions import add_version
from minipipe.optim.rules import SGD, Adam, AdamW

_gelu_erf = over_elements("activations.gelu_erf", num_outputs=2)
_gelu_tanh = over_elements("activations.gelu_tanh", num_outputs=2)


def empty_like(array: Array) -> Array:
    """Return a new array of the shape and dtype of another, in C order."""
    return array_module(array).empty(array.shape, dtype=array.dtype)


def _gelu(x: Array, approximate: bool = False) -> Arrays:
    x = backend.contiguous(x)
    value = empty_like(x)
    slope = empty_like(x)
    if approximate:
        _gelu_tanh(x, value, slope)
    else:
        _gelu_erf(x, value, slope)
    return value, slope


ENTRIES: dict[Any, dict[str, Callable[..., Any]]] = {
    gelu: {"forward": _gelu},
    embedding: {"weight": gradient_of_weight},
    dropping._dropout: {"a": dropout.kept},
}
"""By operation, its functions for arrays of a GPU: ``forward``, and by the names of
inputs and shared values their gradients; see ``versions.py``.
"""

TABLES: list[tuple[dict[str, Any], Callable[..., Any]]] = [
    (dropping.KERNELS, dropout.dropped),
    (SGD.launches, updates.sgd),
    (Adam.launches, updates.adam),
    (AdamW.launches, updates.adamw),
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
