"""Launches over many arrays: updates of parameters; the norm and a factor of their
gradients.
"""

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
    items: Sequence[Item],
    group: ParameterGroup,
    update: Update,
    is_decoupled: bool,
    looks_ahead: bool = True,
) -> None:
    """Change several parameters as ``optim.Adam`` does, or ``optim.AdamW`` if the
    weight decay is decoupled; ``looks_ahead`` is whether ``nesterov`` counts.
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
        is_ahead = int(looks_ahead and group.nesterov)
        _launch("updates.adam", rows, *numbers, is_ahead)


def _fitting(
    items: Iterable[Item], group: ParameterGroup, update: Update
) -> Iterator[Item]:
    """Yield what a kernel can change; change the others one by one."""
    for values, gradient, state in items:
        arrays = [values, gradient, *filter(backend.is_array, state.values())]
        dtype = values.dtype
        are_alike = all(x.dtype == dtype and x.flags.c_contiguous for x in arrays)
        if are_alike and _is_real(values):
            yield values, gradient, state
        else:
            update(values, gradient, state, group)


def sums_of_squares(arrays: Sequence[Array]) -> list[float]:
    """Return the sum of the squares of each array, in float64, with the bits of NumPy.

    They are computed by two launches for each dtype, and read together.
    """
    xp = array_module(arrays[0])
    launches: dict[Any, list[list[Any]]] = {}
    for place, array in enumerate(arrays):
        if not _is_real(array):
            array = backend.as_array(array, xp.float64)
        row = [backend.contiguous(array), place]
        launches.setdefault(array.dtype, []).append(row)
    results = xp.empty(len(arrays), dtype=xp.float64)
    for rows in launches.values():
        table, num_blocks = _table(rows)
        first = rows[0][0]
        sums = xp.empty(num_blocks, dtype=xp.float64)
        to_sums = table, sums.data.ptr
        launch(
            "updates.sums_of_parts", first, num_blocks, _THREADS, *to_sums, len(rows)
        )
        to_results = *to_sums, results.data.ptr
        launch("updates.sums_of_entries", first, len(rows), _THREADS, *to_results)
    return backend.to_numpy(results).tolist()


def scale(arrays: Sequence[Array], factor: float) -> Sequence[Array]:
    """Multiply arrays by a number, in place, by a launch for each dtype."""
    launches: dict[Any, list[list[Any]]] = {}
    seen: set[int] = set()
    for place, array in enumerate(arrays):
        is_new = array.data.ptr not in seen
        if is_new and _is_real(array) and array.flags.c_contiguous:
            launches.setdefault(array.dtype, []).append([array, place])
            seen.add(array.data.ptr)
        else:
            array *= factor
    for rows in launches.values():
        _launch("updates.scale", rows, factor)
    return arrays


def _is_real(array: Array) -> bool:
    return backend.numpy_dtype(array.dtype).name in REALS


def _launch(kernel: str, rows: list[list[Any]], *numbers: float) -> None:
    """Launch a kernel over the elements of the first array of each row."""
    table, num_blocks = _table(rows)
    launch(kernel, rows[0][0], num_blocks, _THREADS, table, len(rows), *numbers)


def _table(rows: list[list[Any]]) -> tuple[Array, int]:
    """Return the table of a kernel, and its number of blocks. A row has up to four
    arrays of one size, or numbers.
    """
    entries: list[list[int]] = []
    num_blocks = 0
    for row in rows:
        found = [x if type(x) is int else x.data.ptr for x in row]
        size = row[0].size
        entries.append([*found, *[0] * (4 - len(row)), size, num_blocks])
        # as in the source: 32 parts of up to 136 elements
        num_blocks += 1 << max(0, (size // 136).bit_length() - 5)
    xp = array_module(rows[0][0])
    return _on_device(xp, np.array(entries, np.int64).tobytes()), num_blocks


@lru_cache(maxsize=64)  # it is copied again when an address has changed
def _on_device(xp: ModuleType, entries: bytes) -> Array:
    return xp.asarray(np.frombuffer(entries, np.int64))
