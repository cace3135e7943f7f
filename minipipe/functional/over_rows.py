"""The weight gradients of several microbatches as one product: less work, the same sum in another order.

The gradient of a weight is a sum over the rows of a microbatch, x.T @ g. Over several microbatches it is the same sum
over all their rows, one behind the other: one large product instead of several small ones that are then added.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from minipipe.autograd.backend import Array, array_module
from minipipe.autograd.graph import Node
from minipipe.autograd.split import WeightWork


class OverRows(partial[Array]):
    """A vjp that sums over rows: ``function(*arrays, gradient)``, all with the same number of rows in their first axes.

    Examples
    --------
    >>> import numpy as np
    >>> OverRows(lambda x, g: x.T @ g, np.array([[1.0], [2.0]]))(np.array([[3.0], [4.0]]))
    array([[11.]])
    """

    __slots__ = ()


def stacked(works: list[WeightWork]) -> WeightWork:
    """Return the work of several microbatches as one, in which each such vjp is called once for all of them.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, autograd, functional
    >>> w, works = Tensor([[1.0], [1.0]], requires_grad=True), []
    >>> for row in ([1.0, 2.0], [10.0, 20.0]):
    ...     x = Tensor([row])
    ...     x.node = autograd.StageInput(needs_gradient=True)
    ...     works.append(autograd.backward_input({functional.linear(x, w).node: np.ones((1, 1), np.float32)}))
    >>> stacked(works).run()
    >>> w.grad
    array([[11.],
           [22.]], dtype=float32)
    """
    if len(works) == 1:
        return works[0]
    together = WeightWork()
    rows: dict[Any, tuple[int, list[tuple[Array, ...]]]] = {}  # by node behind the edge, function and shapes
    for node, gradient in (item for work in works for item in work.postponed.items()):
        others = []
        for edge in node.edges or ():
            parent, vjp = edge
            if isinstance(vjp, OverRows) and gradient.ndim > 1:
                arrays = (*vjp.args, gradient)
                key = parent, vjp.func, *(array.shape[1:] for array in arrays)
                order, parts = rows.get(key, (node.order, []))
                parts.append(arrays)
                rows[key] = min(order, node.order), parts
            else:
                others.append(edge)
        if node.edges is None or others:  # None: it will be computed again
            together.postponed[node if node.edges is None else Node(others, node.order)] = gradient
    for (parent, function, *_), (order, parts) in rows.items():
        together.postponed[Node([(parent, _of_all(function, parts))], order)] = parts[0][-1]
    return together


def _of_all(function: Callable[..., Array], parts: list[tuple[Array, ...]]) -> Callable[[Any], Array]:
    """Return a vjp that knows its gradients already: they are put behind each other only when it is called."""
    xp = array_module(parts[0][0])
    return lambda _: function(*map(xp.concat, zip(*parts)))
