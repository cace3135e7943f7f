"""The pytree of one microbatch, in a batch or between two stages: arrays, or tuples,
lists and dicts of them.

A payload describes itself (shapes, dtypes, names, and which gradients are needed), so
ranks agree on nothing beforehand. A single array of real numbers travels unchanged;
anything else is packed into one array of bytes, behind a description in JSON.
"""

from __future__ import annotations

import json
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.comm.message import join, split
from minipipe.core.pytree import Bundle, rebuilt, tensors_in


class Payload(NamedTuple):
    """The pytree of one microbatch: inputs or targets, activations between two stages,
    or gradients of them.

    Attributes
    ----------
    arrays : list of array or None
        In the order of the pytree. None if there is no gradient.
    requires_grad : list of bool
        For each array, whether its gradient is used.
    treedef : tuple, list, dict or None
        The structure of their pytree, nested or not, with None for each array; None for
        a single one.
    replicated : frozenset of int
        In a batch, the positions of arrays that every microbatch gets; they have no
        samples. It is not sent.
    """

    arrays: list[Any]
    requires_grad: list[bool]
    treedef: Any = None
    replicated: frozenset[int] = frozenset()

    @classmethod
    def of(cls, value: Bundle) -> Payload:
        """Return the payload of a stage's result."""
        tensors = tensors_in(value)
        arrays = [tensor.data for tensor in tensors]
        requires_grad = [tensor.requires_grad for tensor in tensors]
        return cls(arrays, requires_grad, rebuilt(value, [None] * len(tensors)))

    def rebuilt(self, items: list[Any] | None = None) -> Any:
        """Return the arrays, or other items instead of them, as the pytree of this
        payload.
        """
        return rebuilt(self.treedef, self.arrays if items is None else items)

    # -- in flight ---------------------------------------------------------------------

    def to_message(self, may_be_on_device: bool = False) -> Array:
        """Return the payload as one array, in NumPy's memory unless a single one may
        stay elsewhere.
        """
        first = self.arrays[0]
        arrays = list[np.ndarray]()
        parts = list[Any]()
        if self.treedef is None and self._is_plain(first):
            is_here = may_be_on_device or type(first) is np.ndarray
            return first if is_here else backend.to_numpy(first)
        for array in self.arrays:
            if array is None:
                parts.append(None)
            else:
                arrays.append(backend.to_numpy(array))
                parts.append((backend.dtype_name(arrays[-1].dtype), array.shape))
        requires_grad = tuple(self.requires_grad)
        return join(
            _written(_as_lists(self.treedef), requires_grad, tuple(parts)), arrays
        )

    def _is_plain(self, array: Array | None) -> bool:
        """Return whether an array needs no description. Bytes do: they would be taken
        for a packed payload.
        """
        if type(array) is np.ndarray and array.dtype.kind == "f":  # like most of them
            return self.requires_grad[0]
        if array is None or backend.numpy_dtype(array.dtype) == np.uint8:
            return False
        return self.requires_grad[0] == backend.is_floating(array.dtype)

    @classmethod
    def from_message(cls, message: Array, xp: ModuleType = np) -> Payload:
        """Return the payload that was sent, its arrays in a module; in NumPy's they are
        views of the message.
        """
        if type(message) is np.ndarray and message.dtype.kind == "f" and xp is np:
            return cls([message], [True])  # like most of them
        if backend.numpy_dtype(message.dtype) != np.uint8:
            is_floating = backend.is_floating(message.dtype)
            return cls([backend.moved(message, xp)], [is_floating])
        description, take = split(backend.to_numpy(message))
        treedef, requires_grad, parts = _read(description)
        arrays = [part and backend.moved(take(*part), xp) for part in parts]
        return cls(arrays, list(requires_grad), _as_treedef(treedef))


# Payloads of one stage boundary are alike, so each description is written and read
# once.
@lru_cache(maxsize=256)
def _written(treedef: tuple | None, requires_grad: tuple, parts: tuple) -> bytes:
    return json.dumps([treedef, requires_grad, parts]).encode()


@lru_cache(maxsize=256)
def _read(description: bytes) -> list[Any]:
    return json.loads(description)


def _as_lists(treedef: Any) -> tuple | None:
    """Return the structure of a pytree for JSON: its kind, and its parts."""
    if isinstance(treedef, dict):
        return "dict", *((name, _as_lists(part)) for name, part in treedef.items())
    if treedef is None:
        return None
    return type(treedef).__name__, *map(_as_lists, treedef)


def _as_treedef(lists: list | None) -> Any:
    if lists is None:
        return None
    kind, *parts = lists
    if kind == "dict":
        return {name: _as_treedef(part) for name, part in parts}
    return (tuple if kind == "tuple" else list)(map(_as_treedef, parts))
