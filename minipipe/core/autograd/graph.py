"""The graph of a computation, as data: every result is a node, with its operation, its
inputs and what it saved.

For ``y = linear(x, w) + x``, with two results and two leaves::

    y      add      inputs: h, x    saved: nothing
    h      linear   inputs: x, w    saved: x, w

A node does not refer to its tensor: the array of a result is freed with the tensor,
unless a gradient needs it. Inputs without a gradient are left out. A
:class:`minipipe.core.autograd.operation.Plan` says what is saved, and how the gradients of
the inputs follow from it.

File 9 of 13 on the first path through the code (README.md): after
``core/functional/linear.py``, before ``core/tensor.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappush
from itertools import count
from sys import maxsize
from typing import Any, NoReturn, Protocol

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.autograd.modes import next_order
from minipipe.core.autograd.operation import GradientRule, Operation, Plan, Plans
from minipipe.core.errors import TensorError

Vjp = Callable[[Array], Array]
"""From the gradient of a result to a contribution to the gradient of an input
(vector-Jacobian product).
"""


class Kept(Protocol):
    """Saved values that are more than a tuple: when a backward takes them they are
    checked, or restored first.
    """

    @property
    def values(self) -> tuple[Any, ...]:
        """The values as they are now, not to be used for a backward."""
        ...

    def take(self) -> tuple[Any, ...]:
        """Return the values for a backward."""
        ...

    def part(self, values: tuple[Any, ...]) -> Saved:
        """Return some of the values, kept in the same way."""
        ...


Saved = tuple[Any, ...] | Kept
Backward = tuple[Sequence["Node"], Plan, Saved]
"""The inputs whose gradients follow, the steps to these, and the values that the steps
need.
"""


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """One result in the graph. The walk calls ``add`` for each contribution to its
    gradient, then ``release``, once.

    Attributes
    ----------
    plan : Plan or None
        The steps of its backward. None once a walk has used them, together with
        ``inputs`` and ``saved``.
    inputs : sequence of Node
        The inputs that need a gradient, one for each step of the plan.
    saved : tuple or Kept
        The values that the plan keeps.
    order : int
        Later results have larger numbers.
    shape, dtype : tuple of int, dtype
        Those of the result, and so of every contribution to its gradient. None where
        contributions are not checked.
    needs_gradient : bool
        Whether a leaf or stage input that keeps a gradient can be reached from the
        node.
    is_activation : bool
        Whether the result depends on the input of a stage.
    is_boundary : bool
        Whether the result passes from one layer of a sequence to the next. Its gradient
        is made contiguous, as is a gradient from a message, so that cutting the model
        there does not change the bits.
    pending : array or None
        During a walk, the sum of the contributions to its gradient so far.

    Examples
    --------
    >>> from minipipe import Tensor
    >>> x = Tensor([1.0, 2.0], requires_grad=True)
    >>> y = x * 3
    >>> y.node
    multiply(Leaf), which keeps b
    >>> y.node.inputs[0] is x.node, y.node.saved
    (True, (array(3., dtype=float32),))
    """

    plan: Plan | None
    inputs: Sequence[Node]
    saved: Saved
    order: int
    needs_gradient: bool = True
    is_activation: bool = False
    shape: tuple[int, ...] | None = None
    dtype: Any = None
    is_boundary: bool = False
    pending: Array | None = None

    def __repr__(self) -> str:
        if self.plan is None:
            return type(self).__name__
        inputs = [
            type(node).__name__ if node.plan is None else str(node.plan.operation)
            for node in self.inputs
        ]
        kept = ", ".join(self.plan.names) or "nothing"
        return f"{self.plan.operation}({', '.join(inputs)}), which keeps {kept}"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be copied and pickled: what a node saved belongs to its graph
        alone.
        """
        raise TensorError(
            "not-copyable",
            f"A {type(self).__name__} belongs to its graph, and cannot be copied or "
            "pickled. Copy tensors: copy.deepcopy(x), or x.detach() for a result.",
        )

    def add(self, contribution: Array, walk: BackwardWalk) -> None:
        """Add a contribution to the pending gradient; the first one puts the node into
        the queue.
        """
        if self.pending is not None:
            # Not in place: a gradient may have been returned as it was, and others
            # receive it as well.
            self.pending = self.pending + contribution
        else:
            self.pending = contribution
            heappush(walk.queue, (-self.order, next(walk.arrivals), self))

    def release(self, gradient: Array) -> Backward:
        """Return what is to be computed from the complete gradient, and drop it here: a
        graph is walked once.
        """
        plan = self.plan
        inputs = self.inputs
        saved = self.saved
        if plan is None:
            raise TensorError(
                "no-graph",
                "An earlier backward() has used and released the graph of this result. "
                "Compute the result again, or add the losses and call backward() once.",
            )
        self.plan = None
        self.inputs = ()
        self.saved = ()
        return inputs, plan, saved


class Leaf(Node):
    """A node without inputs that keeps its gradient: a parameter, or a tensor with
    ``requires_grad``.

    Attributes
    ----------
    grad : array or None
        The sum of the contributions.
    changed : int
        The creation counter at the last change in place (``Parameter.note_change``). A
        node with a smaller ``order`` used the earlier values.

    Examples
    --------
    >>> from minipipe import Tensor
    >>> x = Tensor([1.0, 2.0], requires_grad=True)
    >>> (x * 3).sum().backward()
    >>> x.node.grad
    array([3., 3.], dtype=float32)
    """

    __slots__ = ("__weakref__", "changed", "grad")

    def __init__(self, shape: tuple[int, ...], dtype: Any = None) -> None:
        super().__init__(None, (), (), -1, shape=shape, dtype=dtype)
        self.grad: Array | None = None
        self.changed = -1

    def add(self, contribution: Array, walk: BackwardWalk) -> None:
        """Add a contribution to ``grad``. The first one is copied, unless it is certain
        that it is not shared.
        """
        if self.changed > walk.order:
            message = "A parameter, or another tensor made with requires_grad=True,"
            raise changed_in_place(message)
        if self.grad is not None:
            self.grad += contribution
        # Other inputs may receive the same array: the gradient of the result as it was,
        # or a value that they share.
        elif contribution is walk.gradient or not backend.is_fresh(contribution):
            self.grad = backend.copy(contribution)
        else:
            self.grad = contribution
            # no `any`, which takes as long as a small gradient
            for value in walk.values:
                if value is contribution:
                    self.grad = backend.copy(contribution)


class StageInput(Node):
    """The input of a stage for one microbatch. Everything that depends on it is an
    activation.

    Attributes
    ----------
    grad : array or None
        Its gradient, contiguous, ready to be sent.

    Examples
    --------
    >>> from minipipe import Tensor
    >>> x = Tensor([1.0, 2.0])
    >>> x.node = StageInput(needs_gradient=True, array=x.data)
    >>> (x * 3).node.is_activation
    True
    """

    __slots__ = ("grad",)

    def __init__(self, needs_gradient: bool, array: Array | None = None) -> None:
        shape, dtype = (None, None) if array is None else (array.shape, array.dtype)
        super().__init__(None, (), (), next_order(), needs_gradient, True, shape, dtype)
        self.is_boundary = True
        self.grad: Array | None = None

    def release(self, gradient: Array) -> Backward:
        """Keep the gradient, for the stage before."""
        self.grad = gradient
        return (), CUSTOM[0], ()


class BackwardWalk:
    """The state of a walk: the nodes whose gradients are to be passed, and the current
    node.

    Attributes
    ----------
    queue : heap of (int, int, Node)
        The nodes with a pending gradient, the latest first.
    arrivals : iterator of int
        Breaks ties between nodes of one order, which only ``nn.Recompute`` can create.
    order, gradient, values : int, array, tuple
        Of the current node.
    """

    __slots__ = ("arrivals", "gradient", "order", "queue", "values")

    def __init__(self) -> None:
        self.queue: list[tuple[int, int, Node]] = []
        self.arrivals = count()
        self.order = maxsize
        self.gradient: Array | None = None
        self.values: tuple[Any, ...] = ()


def unchanged(gradient: Array) -> Array:
    """Return the gradient: the vjp of a result that is its input."""
    return gradient


def _custom(*vjps: Vjp) -> None:
    """Stand for a computation whose gradients are functions of the gradient of the
    result (``tensor.record``).
    """


def _custom_plan(count: int) -> Plan:
    names = [f"vjp {i}" for i in range(count)]
    steps = [GradientRule(name, lambda g, vjp: vjp(g), (name,)) for name in names]
    return Plan(_OPERATION, names, steps)


_OPERATION = Operation(_custom)
_OPERATION.name = "custom"
CUSTOM = _OPERATION.plans = Plans(_custom_plan)
"""The plans of nodes that keep a vjp for each of their inputs, by the number of
these.
"""


def changed_in_place(what: str) -> TensorError:
    """Return the error for values that were changed between their use and backward."""
    return TensorError(
        "changed-in-place",
        f"{what} was changed after the graph had recorded it and before backward(): "
        "the gradient would be wrong. Call backward() first, or change a copy: x = x "
        "+ 1.",
    )
