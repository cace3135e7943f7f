"""The weight gradients of several microbatches as one product: less work, the same sum in another order.

The gradient of a weight is a sum over the rows of a microbatch, x.T @ g. Over several microbatches it is the same sum
over all their rows: one large product instead of several small ones that are then added. It is off by default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minipipe.autograd.backend import Array, array_module
from minipipe.autograd.graph import CUSTOM, Node
from minipipe.autograd.memory import saved_by
from minipipe.autograd.split import WeightWork


def stacked(works: list[WeightWork]) -> WeightWork:
    """Return the work of several microbatches as one, in which each such gradient is computed once for all of them.

    Operations say which of their gradients are sums over rows (``Operation.sums_over_rows``).

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
    rows: dict[Any, tuple[int, list[tuple[Array, ...]]]] = {}  # by node of the weight, gradient and shapes
    for node, gradient in (item for work in works for item in work.postponed.items()):
        plan = node.plan
        if plan is None:  # it will be computed again
            together.postponed[node] = gradient
            continue
        is_apart = []
        for parent, (function, _, _, value) in zip(node.inputs, plan.steps):
            is_apart.append(value.name not in plan.operation.sums_over_rows or gradient.ndim < 2)
            if not is_apart[-1]:
                saved = dict(zip(plan.names, saved_by(node)))
                arrays = (gradient, *[saved[name] for name in value.needs])
                key = parent, function, *(array.shape[1:] for array in arrays)
                order, parts = rows.get(key, (node.order, []))
                parts.append(arrays)
                rows[key] = min(order, node.order), parts
        if any(is_apart):
            rest, _ = plan.halves(tuple(is_apart))
            inputs = [parent for parent, is_alone in zip(node.inputs, is_apart) if is_alone]
            together.postponed[Node(rest, inputs, node.saved, node.order)] = gradient
    for (parent, function, *_), (order, parts) in rows.items():
        together.postponed[Node(CUSTOM[1], (parent,), (_of_all(function, parts),), order)] = parts[0][0]
    return together


def _of_all(function: Callable[..., Array], parts: list[tuple[Array, ...]]) -> Callable[[Any], Array]:
    """Return a vjp that knows its gradients: their rows are concatenated only when it is called."""
    xp = array_module(parts[0][0])
    return lambda _: function(*map(xp.concat, zip(*parts)))
