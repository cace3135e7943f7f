"""Values that the host knows of arrays on a device, without waiting for it.

A device runs behind the host. If a rank reads a value, it waits until the device has
come so far; then the device waits for more work. So checks of labels and ids read the
arrays of the host from which these were copied, and numbers are read together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

import numpy as np

from minipipe.core.autograd.backend import Array, array_module, reshape, to_numpy

_SOURCES: dict[int, tuple[Callable[[], Any], np.ndarray]] = {}  # by id, while it lives


def note_source(array: Array, source: np.ndarray) -> None:
    """Note from which values of NumPy's an array of a device was copied, for
    :func:`known`. Nobody may change them or the array while it exists.
    """
    number = id(array)
    same = ref(array, lambda _: _SOURCES.pop(number, None))
    _SOURCES[number] = same, source


def known(array: Array) -> Array:
    """Return the values from which an array of a device was copied, if they were noted;
    or the array itself.

    Examples
    --------
    >>> import array_api_strict
    >>> source = np.asarray([1, 2])
    >>> array = array_api_strict.asarray(source)
    >>> note_source(array, source)
    >>> known(array) is source
    True
    """
    if isinstance(array, np.ndarray) or id(array) not in _SOURCES:
        return array
    same, source = _SOURCES[id(array)]
    return source if same() is array else array


def numbers(arrays: Sequence[Array]) -> list[Any]:
    """Return arrays of one element as Python's numbers, which stay as they are. A
    device is waited for once.

    Examples
    --------
    >>> numbers([np.asarray(1.5), np.asarray([True])])
    [1.5, True]
    """
    if not arrays or type(arrays[0]) is float:
        return list(arrays)
    if isinstance(arrays[0], np.ndarray | np.generic):
        return [array.item() for array in arrays]
    one = [reshape(array, ()) for array in arrays]
    return to_numpy(array_module(one[0]).stack(one)).tolist()
