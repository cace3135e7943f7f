"""The walk back through the graph: from the latest node to the earliest, gradients pass along the edges.

The latest node comes first. All contributions to its gradient have arrived then, because every consumer of a result is
created after it. For ``y = x @ w + x`` (the graph is drawn in ``graph.py``)::

    [1] latest node   [2] its gradient   [3] [4] contributions
    y                 g                  g to the product, which enters the queue; g to x
    product           g                  g @ w.T to x; x.T @ g to w

Here x and w are leaves: they add up their contributions in ``grad`` at once, and never enter the queue.

File 10 of 12 on the first path through the code (README.md):
after ``tensor.py``, before ``autograd/split.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop

from minipipe.autograd import backend
from minipipe.autograd.backend import Array
from minipipe.autograd.graph import BackwardWalk, Edge, Node
from minipipe.autograd.watch import check_contribution

Postpone = Callable[[Node, Array, list[Edge]], list[Edge]]


def backward(roots: dict[Node, Array], postpone: Postpone | None = None) -> None:
    """Add to every leaf behind the roots its gradient, and release the graph.

    Parameters
    ----------
    roots : dict of Node to array
        The nodes of the values that are differentiated, each with its gradient, of the value's shape and dtype.
    postpone : function, optional
        ``(node, gradient, edges) -> edges``: returns the edges to follow now, and keeps the others.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor
    >>> x = Tensor([1.0, 2.0], requires_grad=True)
    >>> y = x * x
    >>> backward({y.node: np.ones(2, np.float32)})
    >>> x.grad
    array([2., 4.], dtype=float32)
    """
    walk = BackwardWalk()
    queue = walk.queue
    for root, walk.gradient in roots.items():  # set first, so that a root that is a leaf copies the caller's array
        root.add(walk.gradient, walk)
    try:
        while queue:
            node = heappop(queue)[-1]  # [1]
            gradient, node.pending = node.pending, None  # [2]
            if node.is_boundary:
                gradient = backend.contiguous(gradient)
            edges = node.release(gradient)
            if postpone is not None:
                edges = postpone(node, gradient, edges)
            walk.order, walk.gradient = node.order, gradient
            for parent, vjp in edges:
                contribution = vjp(gradient)  # [3]
                if contribution is None or contribution.dtype is not parent.dtype or contribution.shape != parent.shape:
                    check_contribution(contribution, parent, vjp)
                parent.add(contribution, walk)  # [4]
    finally:
        for _, _, node in queue:  # after an error: another walk may reach these
            node.pending = None
