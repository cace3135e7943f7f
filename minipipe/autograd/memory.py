"""Memory held by graphs: a walk through them, and the arrays of what their nodes saved.
Never in the hot path.
"""

from __future__ import annotations

import builtins
import gc
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import (
    BuiltinMethodType,
    CellType,
    FunctionType,
    MethodType,
    MethodWrapperType,
)
from typing import Any

from minipipe.autograd.recompute import Compute, RecomputedNode
from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.autograd.graph import Node
from minipipe.core.autograd.split import WeightWork

_METHODS = (MethodType, BuiltinMethodType, MethodWrapperType)
_SEARCHED = (tuple, list, dict, FunctionType, CellType, partial, *_METHODS)


def held_bytes(held: Iterable[Node | WeightWork], not_counted: Iterable[Array]) -> int:
    """Return how many bytes the graphs keep alive. Parameters are as in
    :func:`held_buffers`.
    """
    return sum(held_buffers(held, not_counted).values())


def held_buffers(
    held: Iterable[Node | WeightWork], not_counted: Iterable[Array]
) -> dict[int, int]:
    """Return the buffers that the graphs keep alive: the bytes of each, by its
    identity.

    Views of the same buffer count once, as that buffer.

    Parameters
    ----------
    held : iterable of Node or WeightWork
    not_counted : iterable of array
        Parameters, and inputs that the caller holds anyway.
    """
    buffers: dict[int, int] = {}
    for item in held:
        gradients = {} if isinstance(item, Node) else item.postponed
        nodes = behind([item] if isinstance(item, Node) else list(gradients))
        kept = [*gradients.values(), *map(saved_by, nodes), *map(inputs_again, nodes)]
        for array in arrays_in(kept):
            base = buffer_of(array)
            buffers[id(base)] = backend.num_bytes(base)
    for array in not_counted:
        buffers.pop(id(buffer_of(array)), None)
    return buffers


def observe_recomputation(
    roots: Iterable[Node], observe: Callable[[list[Node]], None]
) -> None:
    """Call a function whenever a backward through graphs computes a part of them again.

    Parameters
    ----------
    roots : iterable of Node
        Of the graphs.
    observe : function
        Takes the roots of a recomputed part, before the backward goes through it.
    """
    for node in behind(list(roots)):
        again = node.recomputation if isinstance(node, RecomputedNode) else None
        if again is not None and again.compute is not None:
            again.compute = partial(_observed, again.compute, observe)


def _observed(
    compute: Compute, observe: Callable[[list[Node]], None], inputs: list[Any]
) -> list[Node | None]:
    roots = compute(inputs)
    computed = [root for root in roots if root is not None]
    observe_recomputation(computed, observe)  # one recomputation may lie inside another
    observe(computed)
    return roots


def behind(roots: list[Node]) -> list[Node]:
    """Return the roots and every node behind them."""
    seen = set(roots)
    stack = list(roots)
    while stack:
        node = stack.pop()
        again = node.recomputation if isinstance(node, RecomputedNode) else None
        for parent in node.inputs if again is None else again.parents:
            if parent not in seen:
                seen.add(parent)
                stack.append(parent)
    return list(seen)


def saved_by(node: Node) -> tuple[Any, ...]:
    """Return the values that a node keeps for its backward, without taking them."""
    return node.saved if isinstance(node.saved, tuple) else node.saved.values


def inputs_again(node: Node) -> list[Any]:
    """Return the tensors from which a node will be computed again."""
    again = node.recomputation if isinstance(node, RecomputedNode) else None
    return [] if again is None else again.inputs


def arrays_in(item: Any) -> Iterator[Array]:
    """Yield the arrays of containers and tensors, and those that functions refer to, as
    custom vjps do.

    These are in closures, defaults, arguments of partial functions, and the objects of
    methods. Objects of other classes are not searched.

    Examples
    --------
    >>> import numpy as np
    >>> list(arrays_in(lambda g, rows=np.ones(2), factor=3.0: g * rows * factor))
    [array([1., 1.])]
    """
    seen = {id(vars(builtins))}
    coming = [item]
    while coming:
        item = coming.pop()
        if isinstance(item, _SEARCHED):
            if id(item) not in seen:  # a function may refer to itself
                seen |= {id(item), id(getattr(item, "__globals__", None))}
                coming += gc.get_referents(item)
        elif (array := _array_of(item)) is not None:
            yield array


def _array_of(item: Any) -> Array | None:
    """Return an array, or the values of a tensor; None for anything else, and for a
    parameter without values.
    """
    if backend.is_array(item):
        return item
    try:
        data = getattr(item, "data", None)
    except Exception:  # a property of any class
        return None
    return data if backend.is_array(data) else None


def buffer_of(array: Array) -> Array:
    """Return the array that owns the memory of a view, through any number of views; any
    other array as it is.

    Of an array of another module in host memory it is one of NumPy's.

    Examples
    --------
    A view of :func:`numpy.lib.stride_tricks.as_strided`, and one of a memoryview, have
    an object between.

    >>> import numpy as np
    >>> a = np.arange(6.0)
    >>> (
    ...     buffer_of(np.lib.stride_tricks.as_strided(a, (2, 2))) is a,
    ...     buffer_of(np.asarray(memoryview(a))[1:]) is a,
    ... )
    (True, True)
    """
    owner = array if hasattr(array, "base") else backend.to_numpy(array)
    base = owner.base
    while base is not None:
        if backend.is_array(base):
            owner = base
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return owner
