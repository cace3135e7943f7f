"""Launches over many arrays: updates of parameters; the norm and a factor of their
gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import isfinite
from types import ModuleType
from typing import Any

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, array_module
from minipipe.gpu.kernels import launch, real_of
from minipipe.optim.launches import Item, Update
from minipipe.optim.optimiser import ParameterGroup
from minipipe.optim.rules import next_rates

_THREADS = 256


def sgd(items: Sequence[Item], group: ParameterGroup, update: Update) -> None:
    """Change several parameters as ``optim.SGD`` does."""
    rows: list[list[Any]] = []
    for values, gradient, state in _fitting(items, group, update):
        rows.append([values, gradient])
        if group.momentum:
            if "velocity" not in state:
                state["velocity"] = array_module(values).zeros_like(values)
            rows[-1].append(state["velocity"])
    numbers = group.learning_rate, group.momentum, group.weight_decay
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
    launches: dict[tuple[float, float, float], list[list[Any]]] = {}
    for values, gradient, state in _fitting(items, group, update):
        rates = next_rates(values, state, group)
        row = [values, gradient, state["mean"], state["mean_square"]]
        launches.setdefault(rates, []).append(row)
    for rates, rows in launches.items():
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
        if are_alike and real_of(dtype) is not None:
            yield values, gradient, state
        else:
            update(values, gradient, state, group)


def sums_of_squares(*arrays: Array) -> list[float]:
    """Return the sum of the squares of each array, in float64, with the bits of NumPy.

    They are computed by two launches for each dtype, and read together.
    """
    xp = array_module(arrays[0])
    results = xp.empty(len(arrays), dtype=xp.float64)
    rows: list[list[Any]] = []
    for place, array in enumerate(arrays):
        if real_of(array.dtype) is None:
            array = backend.as_array(array, xp.float64)
        rows.append([backend.contiguous(array), place])
    for first, num_blocks, table, num_rows in _tables(rows):
        sums = xp.empty(num_blocks, dtype=xp.float64)
        given = table, sums.data.ptr
        launch("updates.sums_of_parts", first, num_blocks, _THREADS, *given, num_rows)
        place = results.data.ptr
        launch("updates.sums_of_entries", first, num_rows, _THREADS, *given, place)
    return backend.to_numpy(results).tolist()


def are_finite(*arrays: Array) -> Any:
    """Return True if all elements are finite, and if not, or if squares of float64
    overflow, leave it to the plain function.
    """
    return all(map(isfinite, sums_of_squares(*arrays))) or NotImplemented


def scaled(*arrays: Array, factor: float) -> Sequence[Array]:
    """Multiply arrays by a number, in place, by a launch for each dtype."""
    rows: dict[int, list[Any]] = {}  # by address, since two may be the same
    for place, array in enumerate(arrays):
        address = array.data.ptr
        fits = real_of(array.dtype) is not None and array.flags.c_contiguous
        if fits and address not in rows:
            rows[address] = [array, place]
        else:
            array *= factor
    _launch("updates.scale", list(rows.values()), factor)
    return arrays


def _launch(kernel: str, rows: list[list[Any]], *numbers: float) -> None:
    """Launch a kernel over the elements of the first array of each row."""
    for first, num_blocks, *table in _tables(rows):
        launch(kernel, first, num_blocks, _THREADS, *table, *numbers)


def _tables(rows: list[list[Any]]) -> Iterator[tuple[Array, int, Array, int]]:
    """Yield an array, the number of blocks, the table and its length for each dtype.

    A row has up to four arrays of one size, or numbers.
    """
    for dtype in dict.fromkeys(row[0].dtype for row in rows):
        found = [row for row in rows if row[0].dtype == dtype]
        entries: list[list[int]] = []
        num_blocks = 0
        for row in found:
            numbers = [each if type(each) is int else each.data.ptr for each in row]
            unused = [0] * (4 - len(row))
            size = row[0].size
            entries.append([*numbers, *unused, size, num_blocks])
            # as in the source: 32 parts of up to 136 elements
            num_blocks += 1 << max(0, (size // 136).bit_length() - 5)
        first = found[0][0]
        table = np.array(entries, np.int64).tobytes()
        yield first, num_blocks, _on_device(array_module(first), table), len(found)


@lru_cache(maxsize=64)  # it is copied again when an address has changed
def _on_device(xp: ModuleType, entries: bytes) -> Array:
    return xp.asarray(np.frombuffer(entries, np.int64))
