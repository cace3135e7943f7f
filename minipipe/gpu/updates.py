"""Updates of all parameters of an optimiser in one launch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, array_module
from minipipe.gpu.kernels import REALS, launch
from minipipe.optim.launches import Item, Update
from minipipe.optim.optimiser import ParameterGroup
from minipipe.optim.rules import next_rates

_CHUNK = 4096
"""Elements of a block, as in the source."""
_THREADS = 256


def sgd(items: Sequence[Item], group: ParameterGroup, update: Update) -> None:
    """Change several parameters as ``optim.SGD`` does."""
    launches: dict[Any, list[list[Array]]] = {}
    for values, gradient, state in _fitting(items, group, update):
        arrays = [values, gradient]
        if group.momentum:
            if "velocity" not in state:
                state["velocity"] = array_module(values).zeros_like(values)
            arrays.append(state["velocity"])
        launches.setdefault(values.dtype, []).append(arrays)
    numbers = group.learning_rate, group.momentum, group.weight_decay
    for rows in launches.values():
        _launch("updates.sgd", rows, *numbers, int(group.nesterov))


def adam(
    items: Sequence[Item], group: ParameterGroup, update: Update, is_decoupled: bool
) -> None:
    """Change several parameters as ``optim.Adam`` does, or ``optim.AdamW`` if the
    weight decay is decoupled.
    """
    shrink = 1.0
    decay = group.weight_decay
    if is_decoupled:
        shrink -= group.learning_rate * decay
        decay = 0.0
    launches: dict[Any, list[list[Array]]] = {}
    for values, gradient, state in _fitting(items, group, update):
        rates = next_rates(values, state, group)
        arrays = [values, gradient, state["mean"], state["mean_square"]]
        launches.setdefault((values.dtype, rates), []).append(arrays)
    for (_, rates), rows in launches.items():
        numbers = *group.betas, *rates, shrink, decay
        _launch("updates.adam", rows, *numbers, int(group.nesterov))


def _fitting(
    items: Iterable[Item], group: ParameterGroup, update: Update
) -> Iterator[Item]:
    """Yield what a kernel can change; change the others one by one."""
    for values, gradient, state in items:
        arrays = [values, gradient, *filter(backend.is_array, state.values())]
        dtype = values.dtype
        fits = backend.numpy_dtype(dtype).name in REALS
        if fits and all(x.dtype == dtype and x.flags.c_contiguous for x in arrays):
            yield values, gradient, state
        else:
            update(values, gradient, state, group)


def _launch(kernel: str, rows: list[list[Array]], *numbers: float) -> None:
    """Launch a kernel over the values, gradients and states of some parameters."""
    entries: list[list[int]] = []
    num_chunks = 0
    for arrays in rows:
        addresses = [array.data.ptr for array in arrays]
        size = arrays[0].size
        entries.append([*addresses, *[0] * (4 - len(arrays)), size, num_chunks])
        num_chunks += -(-size // _CHUNK)
    first = rows[0][0]
    table = _on_device(array_module(first), np.array(entries, np.int64).tobytes())
    launch(kernel, first, num_chunks, _THREADS, table, len(rows), *numbers)


@lru_cache(maxsize=32)  # it is copied again when an address has changed
def _on_device(xp: ModuleType, entries: bytes) -> Array:
    return xp.asarray(np.frombuffer(entries, np.int64))
