"""The weight gradients of several microbatches as one product: less work, the same sum in another order.

The gradient of a weight is a sum over the rows of a microbatch, x.T @ g. Over several microbatches it is the same sum
over all their rows: one large product instead of several small ones that are then added. It is off by default.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from minipipe.autograd.backend import Array, array_module
from minipipe.autograd.graph import Node
from minipipe.autograd.split import WeightWork
from minipipe.functional.linear import gradient_of_bias, gradient_of_weight

# Vjps that sum over rows: function(*arrays, gradient), all with the same number of rows in their first axes.
SUMS_OVER_ROWS: tuple[Callable[..., Array], ...] = (gradient_of_weight, gradient_of_bias)


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
        for parent, vjp in node.edges or ():
            function, captured = (vjp.func, vjp.args) if isinstance(vjp, partial) else (vjp, ())
            if function in SUMS_OVER_ROWS and gradient.ndim > 1:
                arrays = (*captured, gradient)
                key = parent, function, *(array.shape[1:] for array in arrays)
                order, parts = rows.get(key, (node.order, []))
                parts.append(arrays)
                rows[key] = min(order, node.order), parts
            else:
                others.append((parent, vjp))
        if node.edges is None or others:  # None: it will be computed again
            together.postponed[node if node.edges is None else Node(others, node.order)] = gradient
    for (parent, function, *_), (order, parts) in rows.items():
        together.postponed[Node([(parent, _of_all(function, parts))], order)] = parts[0][-1]
    return together


def _of_all(function: Callable[..., Array], parts: list[tuple[Array, ...]]) -> Callable[[Any], Array]:
    """Return a vjp that knows its gradients: their rows are concatenated only when it is called."""
    xp = array_module(parts[0][0])
    return lambda _: function(*map(xp.concat, zip(*parts)))
