"""The weight gradients of several microbatches as one product: less work, the same sum
in another order.

The gradient of a weight is a sum over the rows of a microbatch, x.T @ g. Over several
microbatches it is the same sum over all their rows: one large product instead of
several small ones that are then added. It is off by default.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from minipipe.autograd.memory import saved_by
from minipipe.core.autograd.backend import Array, array_module
from minipipe.core.autograd.graph import CUSTOM, Node
from minipipe.core.autograd.operation import GRADIENT, GradientRule, Plan
from minipipe.core.autograd.split import WeightWork


def stacked(works: list[WeightWork]) -> WeightWork:
    """Return the work of several microbatches as one, in which each such gradient is
    computed once for all of them.

    Operations say which of their gradients are sums over rows
    (``Operation.sums_over_rows``).

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, autograd, functional
    >>> w, works = Tensor([[1.0], [1.0]], requires_grad=True), []
    >>> for row in ([1.0, 2.0], [10.0, 20.0]):
    ...     x = Tensor([row])
    ...     x.node = autograd.StageInput(needs_gradient=True)
    ...     works.append(
    ...         autograd.backward_input(
    ...             {functional.linear(x, w).node: np.ones((1, 1), np.float32)}
    ...         )
    ...     )
    >>> stacked(works).run()
    >>> w.grad
    array([[11.],
           [22.]], dtype=float32)
    """
    if len(works) == 1:
        return works[0]
    together = WeightWork()
    # by operation, weights and shapes of rows
    alike: dict[Any, list[tuple[Node, Array]]] = {}
    for node, gradient in (item for work in works for item in work.postponed.items()):
        if node.plan is not None and gradient.ndim > 1 and _sums_over_rows(node.plan):
            shapes = [array.shape[1:] for array in (gradient, *saved_by(node))]
            kind = (node.plan, *node.inputs, *shapes)
            alike.setdefault(kind, []).append((node, gradient))
        else:
            together.postponed[node] = gradient
    for (plan, *_), nodes in alike.items():
        rows = [(gradient, *saved_by(node)) for node, gradient in nodes]
        vjps = tuple([partial(_of_all, plan, value, rows) for *_, value in plan.steps])
        order = min(node.order for node, _ in nodes)
        first, gradient = nodes[0]
        node = Node(CUSTOM[len(vjps)], first.inputs, vjps, order)
        together.postponed[node] = gradient
    return together


def _sums_over_rows(plan: Plan) -> bool:
    return all(value.name in plan.operation.sums_over_rows for *_, value in plan.steps)


def _of_all(
    plan: Plan, value: GradientRule, rows: list[tuple[Array, ...]], _: Array
) -> Array:
    """Return the gradient over all rows, whose gradients are among them: they are
    concatenated only now.
    """
    columns = dict(zip((GRADIENT, *plan.names), zip(*rows)))
    concat = array_module(rows[0][0]).concat
    return value.function(*[concat(columns[name]) for name in (GRADIENT, *value.needs)])
