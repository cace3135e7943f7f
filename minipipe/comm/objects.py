"""Trees of objects as messages, without pickle: dicts, lists and tuples of arrays,
numbers, strings and None.

The description of such a message (``core/comm/message.py``) is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.comm.message import join, split
from minipipe.core.comm.process_group import ProcessGroup
from minipipe.errors import MessageError

# in a description, the key of an array's dtype and shape; no name contains a NUL
_ARRAY = "\0array"


def pack(tree: Any) -> np.ndarray:
    """Return a tree as one message: a copy, in which tuples are lists.

    Examples
    --------
    >>> unpack(pack({"value": np.array([1.5, 2.5]), "kept": {"num_steps": 3}}))
    {'value': array([1.5, 2.5]), 'kept': {'num_steps': 3}}
    """
    arrays: list[np.ndarray] = []
    description = _described(tree, arrays)
    text = json.dumps(description, default=lambda number: number.item())
    return join(text.encode(), arrays)


# Not inside pack and unpack: a function that calls itself is in a cycle with its
# variables, and these are the arrays.
def _described(item: Any, arrays: list[np.ndarray]) -> Any:
    """Return a tree for JSON, and add its arrays to others."""
    if backend.is_array(item):
        arrays.append(backend.to_numpy(item))
        return {_ARRAY: [backend.dtype_name(arrays[-1].dtype), arrays[-1].shape]}
    if isinstance(item, Mapping):
        return {name: _described(part, arrays) for name, part in item.items()}
    if isinstance(item, list | tuple):
        return [_described(part, arrays) for part in item]
    return item


def unpack(message: np.ndarray) -> Any:
    """Return the tree of a message from :func:`pack`."""
    description, take = split(message)
    return _rebuilt(json.loads(description), take)


def _rebuilt(item: Any, take: Callable[[str, Sequence[int]], np.ndarray]) -> Any:
    if isinstance(item, list):
        return [_rebuilt(part, take) for part in item]
    if not isinstance(item, dict):
        return item
    if list(item) == [_ARRAY]:
        return take(*item[_ARRAY])
    return {name: _rebuilt(part, take) for name, part in item.items()}


def broadcast(group: ProcessGroup, root: int, value: Any, call: str) -> Any:
    """Return the root's value on every rank. Collective.

    Parameters
    ----------
    group : ProcessGroup
    root : int
    value : tree
        Read on the root.
    call : str
        The call that every rank must make, for errors.

    Raises
    ------
    MessageError
        Code ``disagreement``, if the root is in another collective call.

    Examples
    --------
    >>> from minipipe import spawn
    >>> spawn(
    ...     lambda group: broadcast(group, 0, {"rank": group.rank}, "an example"),
    ...     num_ranks=2,
    ... )
    [{'rank': 0}, {'rank': 0}]
    """
    sent = None
    if group.rank == root:
        sent = pack({"call": call, "value": value})
    message = group.broadcast(sent, root, what=_part_of(call))
    return _value_of(group, message, root, call)


def gather(group: ProcessGroup, value: Any, call: str) -> list[Any]:
    """Return the values of all ranks, by rank, on every rank. Collective; as
    :func:`broadcast`.
    """
    own = pack({"call": call, "value": value})
    messages = enumerate(group.all_gather(own, what=_part_of(call)))
    return [_value_of(group, message, rank, call) for rank, message in messages]


def _value_of(group: ProcessGroup, message: np.ndarray, rank: int, call: str) -> Any:
    found = {}
    with suppress(ValueError, IndexError):  # another call's message
        if message.dtype == np.uint8:
            found = unpack(message)
    other = "another collective call"
    if isinstance(found, dict) and "call" in found:
        other = found["call"]
    if other != call:
        raise MessageError(
            "disagreement",
            f"Rank {group.name()} is in {call}, but rank {group.name(rank)} in "
            f"{other}. Every rank must make the same calls in the same order.",
        )
    return found["value"]


def _part_of(call: str) -> str:
    return f"its part of {call}, which every rank must call,"
