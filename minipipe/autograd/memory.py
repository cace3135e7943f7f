"""What graphs hold in memory. Walks them and looks into every vjp; never in the hot path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from minipipe.autograd import backend
from minipipe.autograd.backend import Array
from minipipe.autograd.graph import Node
from minipipe.autograd.recompute import RecomputedNode
from minipipe.autograd.split import WeightWork


def held_bytes(held: Iterable[Node | WeightWork], not_counted: Iterable[Array]) -> int:
    """Return how many bytes the graphs keep alive. Parameters are those of :func:`held_buffers`."""
    return sum(held_buffers(held, not_counted).values())


def held_buffers(held: Iterable[Node | WeightWork], not_counted: Iterable[Array]) -> dict[int, int]:
    """Return the buffers that the graphs keep alive: the bytes of each, by its identity.

    Views count as the buffer that they look at, once.

    Parameters
    ----------
    held : iterable of Node or WeightWork
    not_counted : iterable of array
        Parameters, and inputs that the caller holds anyway.
    """
    buffers: dict[int, int] = {}
    for item in held:
        for array in _arrays_of(item):
            base = buffer_of(array)
            buffers[id(base)] = backend.num_bytes(base)
    for array in not_counted:
        buffers.pop(id(buffer_of(array)), None)
    return buffers


def observe_recomputation(roots: Iterable[Node], observe: Callable[[list[Node]], None]) -> None:
    """Call a function whenever a backward through graphs computes a part of them again.

    Parameters
    ----------
    roots : iterable of Node
        Of the graphs.
    observe : function
        Takes the roots of the part that was computed, before the backward goes through it. Not a closure: what a
        closure refers to would count as held.
    """
    for node in behind(list(roots)):
        recomputation = node.recomputation if isinstance(node, RecomputedNode) else None
        if recomputation is not None and recomputation.compute_again is not None:
            recomputation.compute_again = partial(_observed, recomputation.compute_again, observe)


def _observed(compute: Callable[[], list[Node | None]], observe: Callable[[list[Node]], None]) -> list[Node | None]:
    roots = compute()
    computed = [root for root in roots if root is not None]
    observe_recomputation(computed, observe)  # one recomputation may lie inside another
    observe(computed)
    return roots


def _arrays_of(item: Node | WeightWork) -> Iterator[Array]:
    if isinstance(item, Node):
        yield from _captured(behind([item]))
    else:
        yield from item.postponed.values()
        yield from _captured(behind(list(item.postponed)))


def behind(roots: list[Node]) -> list[Node]:
    """Return the roots and every node behind them."""
    seen = set(roots)
    stack = list(roots)
    while stack:
        for parent in _parents(stack.pop()):
            if parent not in seen:
                seen.add(parent)
                stack.append(parent)
    return list(seen)


def _parents(node: Node) -> list[Node]:
    if isinstance(node, RecomputedNode):
        recomputation = node.recomputation
        return [] if recomputation is None else [*recomputation.parents, *filter(None, recomputation.roots)]
    return [parent for parent, _ in node.edges or ()]


def _captured(nodes: list[Node]) -> Iterator[Array]:
    for node in nodes:
        if isinstance(node, RecomputedNode) and node.recomputation is not None:
            yield from arrays_in(node.recomputation.compute_again)
        for _, vjp in node.edges or ():
            yield from arrays_in(vjp)


def arrays_in(item: Any) -> Iterator[Array]:
    """Yield the arrays that a vjp has captured; what a method or an object looks at is not seen."""
    if backend.is_array(item):
        yield item
    elif backend.is_array(getattr(item, "data", None)):  # a tensor
        yield item.data
    elif isinstance(item, tuple | list | dict):
        for part in item.values() if isinstance(item, dict) else item:
            yield from arrays_in(part)
    elif callable(item):
        cells = getattr(item, "__closure__", None) or ()
        yield from arrays_in(item.args if isinstance(item, partial) else tuple(cell.cell_contents for cell in cells))


def buffer_of(array: Array) -> Array:
    """Return the array that owns the memory of a view; any other array as it is."""
    while isinstance(getattr(array, "base", None), np.ndarray):
        array = array.base
    return array
