"""Errors that make a gradient wrong in silence: arrays changed before backward, and vjps that return no gradient.

Watching arrays is off by default, because it copies and compares every array. Updates of a parameter between forward
and backward are always noticed: a leaf knows when its values were changed.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any
from weakref import ref

import numpy as np

from minipipe.autograd import backend
from minipipe.autograd.backend import Array
from minipipe.autograd.graph import Edge, Node, Vjp, changed_in_place, unchanged
from minipipe.autograd.modes import current_mode, mode
from minipipe.errors import TensorError


class WatchedNode(Node):
    """A node in front of another one, which checks the arrays of an operation before the gradient passes.

    Only NumPy's arrays are watched, by weak references: an array that was freed cannot have been used again.

    Parameters
    ----------
    node : Node
        Of the operation.
    arrays : list of array
        Its result and its inputs.
    """

    __slots__ = ("before",)

    def __init__(self, node: Node, arrays: list[Array]) -> None:
        kept = node.order, node.needs_gradient, node.is_activation, node.shape, node.dtype
        super().__init__([(node, unchanged)], *kept)
        self.before = [(ref(array), array.tobytes()) for array in arrays if isinstance(array, np.ndarray)]

    def release(self, gradient: Array) -> list[Edge]:
        """Compare the arrays with their earlier contents."""
        for reference, before in self.before:
            array = reference()
            if array is not None and array.tobytes() != before:
                raise changed_in_place(f"An array of shape {array.shape}")
        return super().release(gradient)


def watch_everything() -> AbstractContextManager[Any]:
    """Watch arrays for changes in place from now on, in this thread; in a ``with`` statement, until its block ends.

    A change between the use of an array and backward raises a TensorError with code ``changed-in-place``, and
    :class:`minipipe.nn.Recompute` compares all of what it computes again. It costs a small operation about 40 % more,
    so training does without. Ranks call it themselves.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor, watch_everything
    >>> with watch_everything():
    ...     x = Tensor(np.ones(1000), requires_grad=True)
    ...     y = (x * x).sum()
    >>> x.data[7] = 5
    >>> y.backward()
    Traceback (most recent call last):
    minipipe.errors.TensorError: An array of shape (1000,) was changed after the graph had recorded it ...
    """
    token, until_left = current_mode.set(mode()._replace(watch=WatchedNode)), ExitStack()
    until_left.callback(current_mode.reset, token)
    return until_left


def check_contribution(contribution: Array | None, parent: Node, vjp: Vjp) -> None:
    """Refuse a contribution that is not a gradient of the parent's value, naming the vjp.

    NumPy would broadcast or promote it in silence. The walk calls this only where shape or dtype differ.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Tensor
    >>> x = Tensor([1.0, 2.0], requires_grad=True)
    >>> check_contribution(np.ones(2, np.float32), x.node, lambda g: g)
    """
    name = getattr(getattr(vjp, "func", vjp), "__qualname__", "a vjp")
    if contribution is None:
        raise TensorError("no-gradient", f"{name} returned None; expected the gradient, an array. Add its `return`.")
    returned = f"{name} returned a gradient of"
    if parent.shape is not None and contribution.shape != parent.shape:
        message = f"{returned} shape {contribution.shape} for an input of shape {parent.shape}: a vjp must return the"
        raise TensorError("shape", f"{message} shape of its input (if the input was broadcast, sum over those axes).")
    if parent.dtype is not None and backend.numpy_dtype(contribution.dtype) != backend.numpy_dtype(parent.dtype):
        message = f"{returned} {contribution.dtype} for an input of {parent.dtype}: a vjp must return the dtype of its"
        raise TensorError("dtype", f"{message} input. Convert the result, or the constant that has changed the dtype.")
