"""A part of the graph that is recorded only when the walk reaches it ("activation
checkpointing").

The new nodes get the numbers of the first computation, so the walk visits them in the
same order and the sums have the same bits::

    recorded first      y ──> R ────────────────────> x       R holds the input x and the module
    the walk is at R    y ──> R ──> tanh ──> linear ──> x     the module has run again

References
----------
Chen et al. 2016, "Training deep nets with sublinear memory cost", section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minipipe.core.autograd.backend import Array
from minipipe.core.autograd.graph import CUSTOM, Backward, Node, unchanged

Compute = Callable[[list[Any]], "list[Node | None]"]
"""From the inputs to the nodes of the results; None for a result that depends on
nothing with a gradient.
"""


class Recomputation:
    """The results of a module that were computed without a graph.

    Parameters
    ----------
    inputs : list of Tensor
        Tensors of its own, with the values and nodes of the inputs.
    compute : Compute

    Attributes
    ----------
    roots : list of Node or None
        The nodes of the results, once they were computed again. Then ``inputs`` is
        empty.
    """

    __slots__ = ("compute", "inputs", "roots")

    def __init__(self, inputs: list[Any], compute: Compute | None) -> None:
        self.inputs = inputs
        self.compute = compute
        self.roots: list[Node | None] = []

    @property
    def parents(self) -> list[Node]:
        """The nodes of the inputs, and of the results if these were computed again."""
        nodes = [*(tensor.node for tensor in self.inputs), *self.roots]
        return [node for node in nodes if node is not None]

    def root(self, number: int) -> Node | None:
        """Return the node of one result; the first time, compute all of them again."""
        if self.compute is not None:
            compute = self.compute
            self.compute = None
            inputs = self.inputs
            self.inputs = []
            self.roots = compute(inputs)
        return self.roots[number]


class RecomputedNode(Node):
    """One result of a :class:`Recomputation`, the ``number``-th. Its only input is the
    result recorded later.
    """

    __slots__ = ("number", "recomputation")

    def __init__(
        self,
        recomputation: Recomputation,
        number: int,
        order: int,
        needs_gradient: bool,
        like: Array,
    ) -> None:
        is_activation = any(parent.is_activation for parent in recomputation.parents)
        super().__init__(
            None, (), (), order, needs_gradient, is_activation, like.shape, like.dtype
        )
        self.recomputation: Recomputation | None = recomputation
        self.number = number

    def release(self, gradient: Array) -> Backward:
        """Compute again; the gradient goes to the result that is recorded now."""
        if self.recomputation is not None:
            if not isinstance(self.saved, tuple):
                self.saved.take()
            recomputation = self.recomputation
            self.recomputation = None
            root = recomputation.root(self.number)
            roots = [] if root is None else [root]
            self.plan = CUSTOM[len(roots)]
            self.inputs = roots
            self.saved = (unchanged,) * len(roots)
        return super().release(gradient)
