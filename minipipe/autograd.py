"""The graph of a computation, and the walk through it that gives gradients.

A node stands for one result; its edges lead to what the result was computed from, each with the function that turns
the gradient of the result into the gradient of that input (a vector-Jacobian product, vjp):

    node.edges = [(parent, vjp), …]        vjp(gradient of this) -> gradient of parent

A node is apart from the tensor: once nobody holds a tensor, its array dies, unless a vjp needs it.

The walk goes from the latest node to the earliest, so that a node has all its contributions before it is passed. It
may be taken whole, or in two halves (Qi et al. 2023, "Zero bubble pipeline parallelism"). A node that depends on the
stage's input is an *activation*; every other node is *weight-side*. The first half follows the edges to activations
and notes the edges to weight-side nodes; the second half follows those and whatever lies behind them. No operation
needs code of its own for that, and the bits are the same: in both ways every node, and every parameter, adds up its
contributions in the same order, the latest consumer first.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from weakref import ref

import numpy as np

from minipipe import backend
from minipipe.backend import Array
from minipipe.errors import TensorError
from minipipe.recording import mode, next_order

__all__ = [
    "Leaf",
    "Node",
    "Recomputation",
    "RecomputedNode",
    "StageInput",
    "WeightWork",
    "backward",
    "backward_input",
]

Vjp = Callable[[Array], Array]
Edge = tuple["Node", Vjp | None]


# -- the graph -----------------------------------------------------------------------------------------------


class Node:
    """One result in the graph.

    Attributes
    ----------
    edges : list of (Node, function or None), or None
        The inputs. An edge without a function says: depends on it, but passes no gradient to it. None once a backward
        walk has used the node.
    order : int
        Later results have larger numbers. -1 for a leaf, which may change.
    needs_gradient : bool
        Whether a gradient that arrives here is of use to anybody.
    is_activation : bool
        Whether it depends on the input of a stage.
    is_boundary : bool
        Whether this value passes from one layer of a sequence to the next. Its gradient is made contiguous, because it
        would be if the model were cut here and the gradient came in a message.
    watched : list of (weak reference, bytes), or None
        If the result is small: it and whatever small went into it, and what they held when it was recorded.
    """

    __slots__ = ("edges", "is_activation", "is_boundary", "needs_gradient", "order", "watched")

    def __init__(
        self, edges: list[Edge] | None, order: int, needs_gradient: bool = True, is_activation: bool = False
    ) -> None:
        self.edges = edges
        self.order = order
        self.needs_gradient = needs_gradient
        self.is_activation = is_activation
        self.is_boundary = False
        self.watched: list[tuple[ref[Array], bytes]] | None = None

    def __lt__(self, other: Node) -> bool:
        # Asked for two results of one number, which there are only where a module that is computed again does more than
        # the first time. Either may go first.
        return False

    def watch(self, arrays: list[Array]) -> None:
        """Note what arrays hold, without keeping them alive. Only NumPy's can be watched."""
        limit = mode().watched_size
        self.watched = [(ref(a), a.tobytes()) for a in arrays if isinstance(a, np.ndarray) and a.size <= limit]

    def expand(self) -> list[Edge]:
        """Return edges where there are none (any more)."""
        raise TensorError(
            "backward-twice",
            "backward() was called on a result whose graph an earlier backward() has already used and released. "
            "Compute the result again, or add the losses and call backward() once.",
        )


class Leaf(Node):
    """A node with nothing behind it, which keeps its gradient: a parameter, or a tensor with ``requires_grad``.

    Attributes
    ----------
    shape : tuple of int or None
        That of its values, and so of its gradient; None for any.
    grad : array or None
        The sum of the gradients that arrived.
    changed : int
        When its values were last changed, on the scale of ``order``.
    """

    __slots__ = ("changed", "grad", "shape")

    def __init__(self, shape: tuple[int, ...] | None = None) -> None:
        super().__init__([], -1)
        self.shape = shape
        self.grad: Array | None = None
        self.changed = -1

    def add(self, gradient: Array, is_own: bool = False) -> None:
        """Add a gradient; the first one is copied, unless nobody else has it (``is_own``)."""
        if gradient.shape != self.shape and self.shape is not None:
            raise TensorError(
                "shape",
                f"A gradient of shape {gradient.shape} came to a tensor of shape {self.shape}: the vjp of the "
                "operation that used it must return the shape of its input (where that was broadcast, sum over those "
                "axes).",
            )
        if self.grad is not None:
            self.grad += gradient
        elif is_own and backend.is_fresh(gradient):
            self.grad = gradient
        else:
            self.grad = backend.copy(gradient)


class StageInput(Node):
    """The input of a stage for one microbatch. What depends on it is an activation.

    Attributes
    ----------
    grad : array or None
        Its gradient, which arrives once, ready to be sent: contiguous, and not copied.
    """

    __slots__ = ("grad",)

    def __init__(self, needs_gradient: bool) -> None:
        super().__init__([], next_order(), needs_gradient, is_activation=True)
        self.is_boundary = True
        self.grad: Array | None = None


class Recomputation:
    """A part of the graph that was not recorded, and is once the walk comes to it ("activation checkpointing").

    Chen et al. 2016, "Training deep nets with sublinear memory cost", section 3. The walk goes on through what is
    recorded then as if it had been there from the beginning: the numbers are the same, so is every sum.

    Parameters
    ----------
    parents : list of Node
        Of the inputs.
    compute_again : function
        Computes the results again and returns their nodes; None for one that depends on nothing with a gradient.
    """

    __slots__ = ("_roots", "compute_again", "parents")

    def __init__(self, parents: list[Node], compute_again: Callable[[], list[Node | None]]) -> None:
        self.parents = parents
        self.compute_again: Callable[[], list[Node | None]] | None = compute_again
        self._roots: list[Node | None] = []

    def root(self, number: int) -> Node | None:
        """Return the node of one of the results, and compute all of them again if that was not done yet."""
        if self.compute_again is not None:
            compute_again, self.compute_again = self.compute_again, None
            self._roots = compute_again()
        return self._roots[number]


class RecomputedNode(Node):
    """One result of a :class:`Recomputation`, the ``number``-th."""

    __slots__ = ("number", "recomputation")

    def __init__(self, recomputation: Recomputation, number: int, order: int, needs_gradient: bool) -> None:
        is_activation = any(parent.is_activation for parent in recomputation.parents)
        super().__init__(None, order, needs_gradient, is_activation)
        self.recomputation: Recomputation | None = recomputation
        self.number = number

    def expand(self) -> list[Edge]:
        """Lead on to the result that is recorded now."""
        if self.recomputation is None:
            return super().expand()
        recomputation, self.recomputation = self.recomputation, None
        root = recomputation.root(self.number)
        return [] if root is None else [(root, _unchanged)]


def _unchanged(gradient: Array) -> Array:
    return gradient


# -- the walk ------------------------------------------------------------------------------------------------


def backward(roots: dict[Node, Array]) -> None:
    """Add to every leaf behind the roots its gradient, and release the graph.

    Parameters
    ----------
    roots : dict of Node to array
        Of the values that are differentiated, and their gradients, of the same shapes.
    """
    _walk(roots, None)


class WeightWork:
    """The second half of a backward walk: what is left to do for the weights.

    Holds only the edges that lead to weight-side nodes, each with the gradient that goes along it.
    """

    def __init__(self) -> None:
        self.postponed: dict[Node, Array] = {}

    def postpone(self, node: Node, edges: list[Edge], gradient: Array) -> None:
        """Note the weight-side edges of a node, and the gradient that arrived at it."""
        self.postponed[Node(edges, node.order)] = gradient

    def run(self) -> None:
        """Add to every weight-side leaf its gradient, and release the rest of the graph."""
        postponed, self.postponed = self.postponed, {}
        _walk(postponed, None)


def backward_input(roots: dict[Node, Array]) -> WeightWork:
    """Walk the first half: the gradients of all activations, down to the input of the stage.

    Parameters
    ----------
    roots : dict of Node to array
        Of the stage's results, and their gradients.

    Returns
    -------
    WeightWork
        The second half; ``run`` it at any later time.
    """
    work = WeightWork()
    activations = {}
    for root, gradient in roots.items():
        if root.is_activation:
            activations[root] = gradient
        else:
            work.postponed[Node([(root, _unchanged)], next_order())] = gradient
    _walk(activations, work)
    return work


def _walk(roots: dict[Node, Array], work: WeightWork | None) -> None:
    """Pass gradients along the edges, latest node first; given ``work``, postpone the edges to weight-side nodes."""
    pending = {root: gradient for root, gradient in roots.items() if not isinstance(root, Leaf)}
    queue = [(-node.order, node) for node in pending]
    heapify(queue)
    for root, gradient in roots.items():
        if isinstance(root, Leaf):
            root.add(gradient)
    while queue:
        node = heappop(queue)[1]
        gradient = pending.pop(node)
        if node.is_boundary:
            gradient = backend.contiguous(gradient)
            if isinstance(node, StageInput):
                node.grad = gradient
                continue
        if node.watched is not None:
            _check_unchanged(node.watched)
        edges = node.edges
        if edges is None:
            edges = node.expand()
        node.edges = None
        if work is not None:
            edges = _postpone_weight_side(node, edges, gradient, work)
        for parent, vjp in edges:
            if vjp is None:
                continue
            contribution = vjp(gradient)
            if contribution is None:
                raise _nothing_returned(vjp)
            if isinstance(parent, Leaf):
                if parent.changed > node.order:
                    raise _changed_in_place("A parameter, or another tensor made with requires_grad=True,")
                parent.add(contribution, contribution is not gradient)
            elif parent in pending:
                pending[parent] = pending[parent] + contribution
            else:
                pending[parent] = contribution
                heappush(queue, (-parent.order, parent))


def _check_unchanged(watched: list[tuple[ref[Array], bytes]]) -> None:
    for reference, before in watched:
        array = reference()
        if array is not None and array.tobytes() != before:
            raise _changed_in_place(f"An array of shape {array.shape}")


def _postpone_weight_side(node: Node, edges: list[Edge], gradient: Array, work: WeightWork) -> list[Edge]:
    """Return the edges to activations, and postpone the others."""
    to_activations: list[Edge] = []
    weight_side: list[Edge] = []
    for edge in edges:
        if edge[0].is_activation:
            to_activations.append(edge)
        elif edge[1] is not None:
            weight_side.append(edge)
    if weight_side:
        work.postpone(node, weight_side, gradient)
    return to_activations


def _nothing_returned(vjp: Vjp) -> TensorError:
    name = getattr(vjp, "__qualname__", "a vjp")
    return TensorError(
        "no-gradient", f"{name} returned None; expected the gradient, an array. Is a `return` missing in that vjp?"
    )


def _changed_in_place(what: str) -> TensorError:
    return TensorError(
        "changed-in-place",
        f"{what} was changed after the graph had recorded it and before backward(), so its gradient would be wrong. "
        "Call backward() first, or change a copy: x = x + 1 makes a new array, x.data += 1 changes the recorded one.",
    )
