"""The array module of the data at hand, and what the array modules do differently.

NumPy, CuPy and array-api-strict share most of their names. Operations ask for ``array_module(x)`` and use the shared
names; the few calls that differ hide here. This is the only file that may import CuPy.
"""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

import numpy as np

__all__ = [
    "Array",
    "array_module",
    "as_array",
    "contiguous",
    "copy",
    "gpu_description",
    "index_add",
    "is_array",
    "is_floating",
    "is_integer",
    "masked",
    "one_per_row",
    "prod",
    "reduce_sum",
    "reshape",
    "to_numpy",
]

Array = Any
"""An array of whichever module: ``numpy.ndarray``, ``cupy.ndarray`` or array-api-strict's."""


def array_module(array: Array) -> ModuleType:
    """Return the module that the array belongs to: NumPy, CuPy or one that follows the array API standard."""
    if isinstance(array, np.ndarray):
        return np
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    cupy = sys.modules.get("cupy")  # an array of CuPy's means that somebody imported it
    return cupy if cupy is not None and isinstance(array, cupy.ndarray) else np


def is_array(value: object) -> bool:
    """Tell whether a value is an array of some module, and no number, list or NumPy scalar."""
    return isinstance(value, np.ndarray) or (
        not isinstance(value, np.generic)
        and (hasattr(value, "__array_namespace__") or hasattr(value, "__cuda_array_interface__"))
    )


def as_array(data: Any, dtype: Any = None, like: Array | None = None) -> Array:
    """Return ``data`` as an array: what is one stays one of its module; the rest goes to the module of ``like``."""
    if is_array(data):
        return data if dtype is None or data.dtype == dtype else array_module(data).astype(data, dtype)
    return (np if like is None else array_module(like)).asarray(data, dtype=dtype)


def is_floating(dtype: Any) -> bool:
    """Tell whether a dtype holds real numbers, the only kind that has gradients."""
    return np.dtype(_name(dtype)).kind == "f"


def is_integer(dtype: Any) -> bool:
    """Tell whether a dtype holds whole numbers."""
    return np.dtype(_name(dtype)).kind in "iu"


def _name(dtype: Any) -> Any:
    return dtype if isinstance(dtype, np.dtype | type) else str(dtype).rsplit(".", 1)[-1]


def contiguous(array: Array) -> Array:
    """Return the array in C order, with the very strides of a fresh one.

    A product sums in an order that depends on the strides, so equal bits need equal strides. NumPy calls an array
    with an axis of length one contiguous whatever that axis' stride; here it is made plain too.
    """
    if not hasattr(array, "flags"):
        return array  # the array API standard knows no strides
    if not array.flags.c_contiguous:
        return array_module(array).ascontiguousarray(array)
    if 1 in array.shape:
        return array.reshape(-1).reshape(array.shape)
    return array


def copy(array: Array) -> Array:
    """Return a copy that shares no memory, in C order: whoever loads a transposed array must get the same bits."""
    if isinstance(array, np.ndarray):
        return np.array(array, order="C")
    return contiguous(array_module(array).asarray(array, copy=True))


def masked(array: Array, mask: Array) -> Array:
    """Return the array where the mask is true, and 0 elsewhere."""
    if isinstance(array, np.ndarray):
        return array * mask  # a third of the time of np.where, which branches at every element
    return array_module(array).where(mask, array, 0)


def one_per_row(matrix: Array, columns: Array) -> Array:
    """Return ``matrix[i, columns[i]]`` for each row i; shapes (n, k) and (n,) give (n,)."""
    xp = array_module(matrix)
    return xp.take_along_axis(matrix, columns[:, None], axis=1)[:, 0]


def reshape(array: Array, shape: tuple[int, ...]) -> Array:
    """Return the elements in another shape; arrays of the array API standard have no such method."""
    return array.reshape(shape) if hasattr(array, "reshape") else array_module(array).reshape(array, shape)


def reduce_sum(array: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """Return the sum over one axis, several, or all."""
    if isinstance(array, np.ndarray):
        add: Any = np.add
        return add.reduce(array, axis=axis, keepdims=keepdims)  # half the time of np.sum's wrapper
    return array_module(array).sum(array, axis=axis, keepdims=keepdims)


def index_add(target: Array, index: Any, values: Array) -> None:
    """Add ``values`` to ``target[index]`` in place; where an index repeats, all its values add."""
    xp = array_module(target)
    parts = index if isinstance(index, tuple) else (index,)
    if not any(hasattr(part, "shape") or isinstance(part, list) for part in parts):
        target[index] += values  # slices and single numbers never repeat
    elif xp is np:
        np.add.at(target, index, values)
    elif hasattr(xp, "add") and hasattr(xp.add, "at"):
        xp.add.at(target, index, values)
    else:
        host = np.array(target)
        np.add.at(host, tuple(np.asarray(part) if hasattr(part, "shape") else part for part in parts), values)
        target[...] = xp.asarray(host)


def to_numpy(array: Array) -> np.ndarray:
    """Return the values in NumPy's memory, copied only where they are elsewhere."""
    return array.get() if hasattr(array, "get") else np.asarray(array)


def prod(shape: tuple[int, ...]) -> int:
    """Return the number of elements of a shape as a Python integer, which leaves float32 alone."""
    return math.prod(shape)


def gpu_description() -> str:
    """Return the GPUs that CuPy sees, or why it sees none."""
    try:
        import cupy
    except ImportError:
        return "no CuPy: pip install 'minipipe-mpi[gpu]'"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
        names = [cupy.cuda.runtime.getDeviceProperties(i)["name"].decode() for i in range(count)]
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CuPy {cupy.__version__}, but no GPU: {error}"
    return f"CuPy {cupy.__version__}, {', '.join(names) or 'no GPU'}"
