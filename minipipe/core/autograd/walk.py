"""The walk back through the graph: from the latest node to the earliest, gradients pass
to the inputs.

The latest node comes first. All contributions to its gradient have arrived then,
because every consumer of a result is created after it. For ``y = x @ w + x`` (the graph
is drawn in ``graph.py``)::

    [1] latest node   [2] its gradient   [3] [4] contributions
    y                 g                  g to the product, which enters the queue; g to x
    product           g                  g @ w.T to x; x.T @ g to w

Here x and w are leaves: they add up their contributions in ``grad`` at once, and never
enter the queue.

File 11 of 13 on the first path through the code (README.md):
after ``core/tensor.py``, before ``core/autograd/split.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop
from typing import Any

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array, Shape
from minipipe.core.autograd.graph import CUSTOM, BackwardWalk, Node, Saved
from minipipe.core.autograd.operation import GradientRule, Plan
from minipipe.core.errors import TensorError


def backward(
    roots: dict[Node, Array], postponed: dict[Node, Array] | None = None
) -> None:
    """Add to every leaf behind the roots its gradient, and release the graph.

    Parameters
    ----------
    roots : dict of Node to array
        The nodes of the values that are differentiated, each with its gradient, of the
        value's shape and dtype.
    postponed : dict of Node to array, optional
        Gets the gradients of weights, as nodes with their gradients, instead of
        computing them; see ``split.py``.

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
    # set first, so that a root that is a leaf copies the caller's array
    for root, walk.gradient in roots.items():
        root.add(walk.gradient, walk)
    try:
        _pass_gradients(walk, postponed)
    finally:
        for _, _, node in walk.queue:  # after an error: another walk may reach these
            node.pending = None


def _pass_gradients(walk: BackwardWalk, postponed: dict[Node, Array] | None) -> None:
    queue = walk.queue
    while queue:
        node = heappop(queue)[-1]  # [1]
        gradient, node.pending = node.pending, None  # [2]
        if node.is_boundary:
            gradient = backend.contiguous(gradient)
        inputs = node.inputs
        plan = node.plan
        values = node.saved
        # as in Node.release, whose call takes as long as a step
        if type(node) is Node and plan is not None:
            node.inputs = node.saved = ()
            node.plan = None
        else:
            inputs, plan, values = node.release(gradient)
        # before anything is computed: the last one is freed
        walk.order = node.order
        walk.gradient = gradient
        if type(values) is not tuple or postponed is not None:
            inputs, plan, values = _taken(walk, inputs, plan, values, postponed)
        elif plan.shared:
            values = plan.values(gradient, values)
        walk.values = values
        for number, function, place, arguments, value in plan.steps:
            parent = inputs[number]
            if place is not None:  # [3]
                contribution = function(gradient, values[place])
            elif arguments is None:
                contribution = function(gradient)
            elif value.takes_shape:
                contribution = function(gradient, *arguments(values), parent.shape)
            else:
                contribution = function(gradient, *arguments(values))
            try:
                fits = contribution.dtype is parent.dtype
                fits = fits and contribution.shape == parent.shape
            except AttributeError:  # None, or a number
                fits = False
            if not fits:
                contribution = _fitted(contribution, parent, plan, value, values, place)
            parent.add(contribution, walk)  # [4]


def _taken(
    walk: BackwardWalk,
    inputs: Sequence[Node],
    plan: Plan,
    saved: Saved,
    postponed: dict[Node, Array] | None,
) -> tuple[Sequence[Node], Plan, tuple[Any, ...]]:
    """Return the steps to compute now, with all their values, and leave those to the
    weight side, as a node.
    """
    gradient = walk.gradient
    kept = saved if isinstance(saved, tuple) else saved.take()
    is_activation = tuple([node.is_activation for node in inputs])
    if postponed is None or all(is_activation):
        return inputs, plan, plan.values(gradient, kept)
    now, (later, *others) = plan.halves(is_activation)
    values = now.values(gradient, kept)
    if others:
        later = min((later, *others), key=lambda one: _num_bytes(one.keep(values)))
    needed = later.keep(values)
    for_weights: Saved = needed
    if not isinstance(saved, tuple):
        for_weights = saved.part(needed)
    weights = [node for node in inputs if not node.is_activation]
    postponed[Node(later, weights, for_weights, walk.order)] = gradient
    return [node for node in inputs if node.is_activation], now, values


def _num_bytes(values: tuple[Any, ...]) -> int:
    """Return the size of the arrays among some values, each counted once."""
    arrays = {id(value): value for value in values if backend.is_array(value)}
    return sum(map(backend.num_bytes, arrays.values()))


def _fitted(
    contribution: Any,
    parent: Node,
    plan: Plan,
    value: GradientRule,
    values: tuple[Any, ...],
    place: int | None,
) -> Array:
    """Return a contribution that does not have the shape and dtype of the parent:
    summed, or refused.

    NumPy would broadcast or promote it in silence.
    """
    operation = plan.operation
    if operation is CUSTOM[0].operation:
        vjp = values[place or 0]
        name = getattr(getattr(vjp, "func", vjp), "__qualname__", "a vjp")
        kind = "a vjp"
    else:
        name = f"The gradient of {value.name} in {operation.name}"
        kind = "it"
    if not hasattr(contribution, "shape"):
        raise _no_array(name, contribution)
    dtype = backend.numpy_dtype(contribution.dtype)
    if parent.dtype is not None and dtype != backend.numpy_dtype(parent.dtype):
        raise TensorError(
            "dtype",
            f"{name} returned a gradient of {contribution.dtype} for an input of "
            f"{parent.dtype}: {kind} must return the dtype of its input. Convert the "
            "result, or the constant that has changed the dtype.",
        )
    if parent.shape is None or contribution.shape == parent.shape:
        return contribution
    lengths = [*zip(reversed(parent.shape), reversed(contribution.shape))]
    may_be_broadcast = operation.is_broadcast and len(lengths) == len(parent.shape)
    if may_be_broadcast and all(n in (1, m) for n, m in lengths):
        return backend.unbroadcast(contribution, parent.shape)
    raise _wrong_shape(name, kind, contribution.shape, parent.shape)


def _no_array(name: str, contribution: Any) -> TensorError:
    advice = "Compute with arrays, from g"
    if contribution is None:
        advice = "Add its `return`"
    return TensorError(
        "missing",
        f"{name} returned {contribution!r:.60}; expected the gradient, an array. "
        f"{advice}.",
    )


def _wrong_shape(name: str, kind: str, shape: Shape, expected: Shape) -> TensorError:
    advice = "if the input was broadcast, sum over those axes"
    if kind == "it":
        advice = (
            "name `shape`, last, to get it; if the inputs are broadcast, say "
            "op(is_broadcast=True)"
        )
    return TensorError(
        "shape",
        f"{name} returned a gradient of shape {shape} for an input of shape "
        f"{expected}: {kind} must return the shape of its input ({advice}).",
    )
