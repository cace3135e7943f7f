"""Memory held by graphs: a walk through them and into every vjp. Never in the hot path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import BuiltinMethodType, CellType, FunctionType, MethodType, MethodWrapperType
from typing import Any

from minipipe.autograd import backend
from minipipe.autograd.backend import Array
from minipipe.autograd.graph import Node
from minipipe.autograd.recompute import RecomputedNode
from minipipe.autograd.split import WeightWork


def held_bytes(held: Iterable[Node | WeightWork], not_counted: Iterable[Array]) -> int:
    """Return how many bytes the graphs keep alive. Parameters are as in :func:`held_buffers`."""
    return sum(held_buffers(held, not_counted).values())


def held_buffers(held: Iterable[Node | WeightWork], not_counted: Iterable[Array]) -> dict[int, int]:
    """Return the buffers that the graphs keep alive: the bytes of each, by its identity.

    Views of the same buffer count once, as that buffer.

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
        Takes the roots of a recomputed part, before the backward goes through it. Not a closure: objects that a
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
    return [*node.inputs]


def _captured(nodes: list[Node]) -> Iterator[Array]:
    for node in nodes:
        if isinstance(node, RecomputedNode) and node.recomputation is not None:
            yield from arrays_in(node.recomputation.compute_again)
        yield from arrays_in(saved_by(node))


def saved_by(node: Node) -> tuple[Any, ...]:
    """Return the values that a node keeps for its backward, without taking them."""
    return node.saved if isinstance(node.saved, tuple) else node.saved.values


def arrays_in(item: Any) -> Iterator[Array]:
    """Yield the arrays that a vjp has captured; objects of other classes than those below are not looked into."""
    yield from filter(backend.is_array, captured_by(item))


def captured_by(item: Any) -> Iterator[Any]:
    """Yield what a vjp has captured: arrays (also the arrays of tensors), and any object that is not searched.

    Examples
    --------
    >>> import numpy as np
    >>> list(captured_by(lambda g, rows=np.ones(2), factor=3.0: g * rows * factor))
    [3.0, array([1., 1.])]
    """
    seen, coming = set[int](), [item]
    while coming:
        item = coming.pop()
        if backend.is_array(item):
            yield item
        elif (data := _data_of(item)) is not None:
            yield data
        elif id(item) not in seen:  # a function may refer to itself
            seen.add(id(item))
            inside = _inside(item)
            if inside is None:
                yield item
            else:
                coming += inside


def _data_of(item: Any) -> Array | None:
    """Return the array of a tensor; None for anything else, and for a parameter without values."""
    try:
        data = getattr(item, "data", None)
    except Exception:  # a property of any class
        return None
    return data if backend.is_array(data) else None


def _inside(item: Any) -> list[Any] | None:
    """Return the objects that a function or a container refers to; None for an object of any other class."""
    if isinstance(item, tuple | list):
        return [*item]
    if isinstance(item, dict):
        return [*item.values()]
    if isinstance(item, partial):
        return [item.func, *item.args, *item.keywords.values()]
    if isinstance(item, FunctionType):
        cells = [contents for cell in item.__closure__ or () for contents in contents_of(cell)]
        return [*cells, *(item.__defaults__ or ()), *(item.__kwdefaults__ or {}).values()]
    if isinstance(item, MethodType | BuiltinMethodType | MethodWrapperType) and item.__self__ is not None:
        return [item.__self__]
    return None


def contents_of(cell: CellType) -> list[Any]:
    """Return the contents of a cell; none while its variable has no value."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def buffer_of(array: Array) -> Array:
    """Return the array that owns the memory of a view, through any number of views; any other array as it is.

    Of an array of another module in host memory it is one of NumPy's.

    Examples
    --------
    A view of :func:`numpy.lib.stride_tricks.as_strided`, and one of a memoryview, have an object between.

    >>> import numpy as np
    >>> a = np.arange(6.0)
    >>> buffer_of(np.lib.stride_tricks.as_strided(a, (2, 2))) is a, buffer_of(np.asarray(memoryview(a))[1:]) is a
    (True, True)
    """
    owner = array if hasattr(array, "base") else backend.to_numpy(array)
    base = owner.base
    while base is not None:
        if backend.is_array(base):
            owner = base
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return owner
