"""The walk in two halves: activation gradients now (I), weight gradients at any later
time (W).

A node that depends on the stage's input is an *activation*; every other node is on the
*weight side*. The first half computes the gradients of activations and postpones the
others, each with the values that it needs; the second half walks from there. No
operation needs code for this: its plan (``operation.py``) says which values each half
needs. For ``y = (x @ w1) @ w2``, with the stage's input x::

    I    y ──> x @ w1 ──> x         W    y postponed with its gradient ───────> w2
                                         x @ w1 postponed with its gradient ──> w1

The bits are the same as in one walk: every node, and every parameter, adds up its
contributions in the same order, the latest consumer first.

References
----------
Qi et al. 2023, "Zero bubble pipeline parallelism", section 2.

File 12 of 13 on the first path through the code (README.md): after
``core/autograd/walk.py``, before ``core/comm/thread.py``.
"""

from __future__ import annotations

from minipipe.core.autograd.backend import Array
from minipipe.core.autograd.graph import Node
from minipipe.core.autograd.walk import backward


class WeightWork:
    """The second half of a walk: the gradients of weights, with the values that they
    need.

    Attributes
    ----------
    postponed : dict of Node to array
        Nodes whose inputs are all on the weight side, and their gradients.

    Examples
    --------
    See :func:`backward_input`, which makes one.

    >>> WeightWork().run()
    """

    def __init__(self) -> None:
        self.postponed: dict[Node, Array] = {}

    @property
    def graph(self) -> list[WeightWork]:
        """The roots of the graph, for ``memory.held_buffers``: the work itself."""
        return [self]

    def run(self) -> None:
        """Add to every leaf on the weight side its gradient, and release the rest of
        the graph.
        """
        postponed = self.postponed
        self.postponed = {}
        backward(postponed)


def backward_input(roots: dict[Node, Array]) -> WeightWork:
    """Walk the first half: the gradients of all activations, down to the input of the
    stage.

    Parameters
    ----------
    roots : dict of Node to array
        The nodes of the stage's results, each with its gradient.

    Returns
    -------
    WeightWork
        The second half; ``run`` it at any later time.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, autograd
    >>> x, w = Tensor([[1.0, 2.0]]), Tensor([[3.0], [4.0]], requires_grad=True)
    >>> x.node = autograd.StageInput(needs_gradient=True)
    >>> work = backward_input({(x @ w).node: np.ones((1, 1), np.float32)})
    >>> x.grad, w.grad
    (array([[3., 4.]], dtype=float32), None)
    >>> work.run()
    >>> w.grad
    array([[1.],
           [2.]], dtype=float32)
    """
    work = WeightWork()
    activations: dict[Node, Array] = {}
    for root, gradient in roots.items():
        side = activations if root.is_activation else work.postponed
        side[root] = gradient
    backward(activations, work.postponed)
    return work
