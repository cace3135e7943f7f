"""A part of the graph that is recorded only when the walk reaches it ("activation checkpointing").

The new nodes get the numbers of the first computation, so the walk visits them in the same order and the sums have the
same bits::

    recorded first      y ──> R ────────────────────> x       R holds the input x and the module
    the walk is at R    y ──> R ──> tanh ──> linear ──> x     the module has run again

References
----------
Chen et al. 2016, "Training deep nets with sublinear memory cost", section 3.
"""

from __future__ import annotations

from collections.abc import Callable

from minipipe.autograd.backend import Array
from minipipe.autograd.graph import CUSTOM, Backward, Node, unchanged


class Recomputation:
    """The results of a module that were computed without a graph.

    Parameters
    ----------
    parents : list of Node
        The nodes of the inputs.
    compute_again : function
        Computes the results again and returns their nodes; None for a result that depends on nothing with a gradient.

    Attributes
    ----------
    roots : list of Node or None
        The nodes of the results, once they were computed again.
    """

    __slots__ = ("compute_again", "parents", "roots")

    def __init__(self, parents: list[Node], compute_again: Callable[[], list[Node | None]]) -> None:
        self.parents = parents
        self.compute_again: Callable[[], list[Node | None]] | None = compute_again
        self.roots: list[Node | None] = []

    def root(self, number: int) -> Node | None:
        """Return the node of one result; the first time, compute all of them again."""
        if self.compute_again is not None:
            compute_again, self.compute_again = self.compute_again, None
            self.roots = compute_again()
        return self.roots[number]


class RecomputedNode(Node):
    """One result of a :class:`Recomputation`, the ``number``-th. Its only input is the result recorded later."""

    __slots__ = ("number", "recomputation")

    def __init__(
        self, recomputation: Recomputation, number: int, order: int, needs_gradient: bool, like: Array
    ) -> None:
        is_activation = any(parent.is_activation for parent in recomputation.parents)
        super().__init__(None, (), (), order, needs_gradient, is_activation, like.shape, like.dtype)
        self.recomputation: Recomputation | None = recomputation
        self.number = number

    def release(self, gradient: Array) -> Backward:
        """Compute again; the gradient goes to the result that is recorded now."""
        if self.recomputation is not None:
            if not isinstance(self.saved, tuple):
                self.saved.take()
            recomputation, self.recomputation = self.recomputation, None
            root = recomputation.root(self.number)
            self.plan, self.inputs, self.saved = CUSTOM[0], (), ()
            if root is not None:
                self.plan, self.inputs, self.saved = CUSTOM[1], (root,), (unchanged,)
        return super().release(gradient)
