"""The graph of a computation, and the walks through it that give gradients.

A node stands for one result; its edges lead to what the result was computed from, each with the function that turns
the gradient of the result into the gradient of that input (a vector-Jacobian product, vjp):

    node.edges = ((parent, vjp), …)        vjp(gradient of this) -> gradient of parent

A node is apart from the tensor: once nobody holds a tensor, its array dies, unless a vjp needs it.

The backward walk may be taken whole, or in two halves (Qi et al. 2023, "Zero bubble pipeline parallelism"). A node
that depends on the stage's input is an *activation*; every other node is *weight-side*. The first half follows the
edges to activations and notes the edges to weight-side nodes; the second half follows those and whatever lies
behind them. No operation needs code of its own for that, and the bits are the same: in both ways every node adds up
its contributions in the same order, the latest consumer first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from minipipe import backend
from minipipe.backend import Array
from minipipe.errors import TensorError

__all__ = [
    "Leaf",
    "Node",
    "StageInput",
    "WeightWork",
    "backward",
    "backward_input",
    "enable_grad",
    "held_bytes",
    "is_grad_enabled",
    "no_grad",
]

Vjp = Callable[[Array], Array]
Edge = tuple["Node", Vjp | None]

_grad_enabled: ContextVar[bool] = ContextVar("grad_enabled", default=True)
_creation = itertools.count()


@contextmanager
def _grad_mode(is_enabled: bool) -> Iterator[None]:
    token = _grad_enabled.set(is_enabled)
    try:
        yield
    finally:
        _grad_enabled.reset(token)


def enable_grad() -> AbstractContextManager[None]:
    """Record the graph inside this block, even inside :func:`no_grad`."""
    return _grad_mode(True)


def no_grad() -> AbstractContextManager[None]:
    """Record no graph inside this block, in this thread.

    Examples
    --------
    >>> from minipipe import Tensor, no_grad
    >>> x = Tensor([1.0, 2.0], requires_grad=True)
    >>> with no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """
    return _grad_mode(False)


is_grad_enabled = _grad_enabled.get
"""Tell whether operations record their graph here (see :func:`no_grad`)."""


class Node:
    """One result in the graph.

    Attributes
    ----------
    edges : tuple of (Node, function or None), or None
        The inputs. An edge without a function says: depends on it, but passes no gradient to it. None once a backward
        walk has used the node.
    order : int
        Later results have larger numbers.
    needs_gradient : bool
        Whether a gradient that arrives here is of use to anybody.
    is_boundary : bool
        Whether this value passes from one layer of a sequence to the next. Its gradient is made contiguous, because it
        would be if the model were cut here and the gradient came in a message.
    """

    __slots__ = ("edges", "is_boundary", "needs_gradient", "order")

    edges: tuple[Edge, ...] | None

    def __init__(self, edges: tuple[Edge, ...], needs_gradient: bool = True) -> None:
        self.edges = edges
        self.needs_gradient = needs_gradient
        self.is_boundary = False
        self.order = next(_creation)


class Leaf(Node):
    """A node with nothing behind it, which keeps its gradient: a parameter, or the input of a stage.

    Attributes
    ----------
    grad : array or None
        The sum of the gradients that arrived, of the leaf's own shape.
    """

    __slots__ = ("grad",)

    def __init__(self, needs_gradient: bool = True) -> None:
        super().__init__((), needs_gradient)
        self.grad: Array | None = None

    def add(self, gradient: Array) -> None:
        """Add a gradient. The first one is copied: an operation may have handed the same array to two inputs."""
        if self.grad is None:
            self.grad = backend.copy(gradient)
        else:
            self.grad += gradient


class StageInput(Leaf):
    """The input of a stage for one microbatch. What depends on it is an activation.

    Its gradient arrives once, ready to be sent: contiguous, and not copied.
    """

    __slots__ = ()

    def __init__(self, needs_gradient: bool) -> None:
        super().__init__(needs_gradient)
        self.is_boundary = True

    def add(self, gradient: Array) -> None:
        """Keep the gradient."""
        self.grad = gradient


def backward(root: Node, gradient: Array) -> None:
    """Add to every leaf behind ``root`` its gradient, and release the graph.

    Parameters
    ----------
    root : Node
        Of the value that is differentiated.
    gradient : array
        The gradient of that value, of the same shape.
    """
    _propagate(_behind(root), {root: gradient})


class WeightWork:
    """The second half of a backward walk: what is left to do for the weights.

    Holds only the edges that lead to weight-side nodes, each with the gradient that goes along it.
    """

    def __init__(self) -> None:
        self._postponed: list[tuple[Node, Array]] = []

    def postpone(self, order: int, edges: tuple[Edge, ...], gradient: Array) -> None:
        """Note the weight-side edges of a node, and the gradient that arrived at it."""
        node = Node(edges)
        node.order = order
        self._postponed.append((node, gradient))

    def run(self) -> None:
        """Add to every weight-side leaf its gradient, and release the rest of the graph."""
        postponed, self._postponed = self._postponed, []
        _propagate(_behind(*(node for node, _ in postponed)), dict(postponed))

    def arrays(self) -> Iterator[Array]:
        """Yield every array that is kept for this work."""
        for node, gradient in self._postponed:
            yield gradient
            yield from _captured(_behind(node))


def backward_input(root: Node, gradient: Array, stage_input: StageInput) -> WeightWork:
    """Walk the first half: the gradients of all activations, down to ``stage_input``.

    Parameters
    ----------
    root : Node
        Of the stage's result.
    gradient : array
        The gradient of that result.
    stage_input : StageInput
        Whatever depends on it is an activation.

    Returns
    -------
    WeightWork
        The second half; ``run`` it at any later time.
    """
    nodes = _behind(root)
    activations: set[Node] = {stage_input}
    for node in reversed(nodes):
        if any(parent in activations for parent, _ in node.edges or ()):
            activations.add(node)
    work = WeightWork()
    if root in activations:
        _propagate([node for node in nodes if node in activations], {root: gradient}, activations, work)
    else:
        work.postpone(root.order + 1, ((root, lambda received: received),), gradient)
    return work


def _propagate(
    nodes: list[Node],
    pending: dict[Node, Array],
    activations: set[Node] | None = None,
    work: WeightWork | None = None,
) -> None:
    """Pass gradients along the edges of ``nodes``, latest first; given ``work``, postpone the weight-side edges."""
    for node in nodes:
        gradient = pending.pop(node, None)
        if gradient is None:
            continue
        if node.is_boundary:
            gradient = backend.contiguous(gradient)
        edges = node.edges or ()
        if not edges:
            if isinstance(node, Leaf):
                node.add(gradient)
            continue
        node.edges = None
        if work is not None and activations is not None:
            weight_side = tuple(edge for edge in edges if edge[0] not in activations)
            if weight_side:
                work.postpone(node.order, weight_side, gradient)
                edges = tuple(edge for edge in edges if edge[0] in activations)
        for parent, vjp in edges:
            if vjp is not None:
                contribution = vjp(gradient)
                earlier = pending.get(parent)
                pending[parent] = contribution if earlier is None else earlier + contribution


def _behind(*roots: Node) -> list[Node]:
    """Return the roots and every node behind them, latest first."""
    seen = set(roots)
    stack = list(roots)
    while stack:
        edges = stack.pop().edges
        if edges is None:
            raise TensorError(
                "backward-twice",
                "backward() was called on a result whose graph an earlier backward() has already used and released. "
                "Compute the result again, or add the losses and call backward() once.",
            )
        for parent, _ in edges:
            if parent not in seen:
                seen.add(parent)
                stack.append(parent)
    return sorted(seen, key=_order, reverse=True)


def _order(node: Node) -> int:
    return node.order


# -- measuring memory; never in the hot path -----------------------------------------------------------------


def held_bytes(held: list[Node | WeightWork], not_counted: list[Array]) -> int:
    """Return how many bytes the graphs keep alive.

    Walks the graph and looks into what every vjp captured. Views count as the buffer that they look at, once.

    Parameters
    ----------
    held : list of Node or WeightWork
    not_counted : list of array
        Parameters, and inputs that the caller holds anyway.
    """
    buffers: dict[int, int] = {}
    for item in held:
        arrays = item.arrays() if isinstance(item, WeightWork) else _captured(_behind(item))
        for array in arrays:
            base = _base(array)
            buffers[id(base)] = base.nbytes
    for array in not_counted:
        buffers.pop(id(_base(array)), None)
    return sum(buffers.values())


def _captured(nodes: list[Node]) -> Iterator[Array]:
    for node in nodes:
        for _, vjp in node.edges or ():
            if vjp is not None:
                yield from _arrays_in(vjp)


def _arrays_in(item: Any) -> Iterator[Array]:
    if isinstance(item, np.ndarray) or hasattr(item, "nbytes"):
        yield item
    elif isinstance(item, tuple | list):
        for part in item:
            yield from _arrays_in(part)
    elif callable(item):
        for cell in getattr(item, "__closure__", None) or ():
            yield from _arrays_in(cell.cell_contents)


def _base(array: Array) -> Array:
    while isinstance(getattr(array, "base", None), np.ndarray):
        array = array.base
    return array
