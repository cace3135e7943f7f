"""Watching arrays for changes in place between their use and backward, which make a gradient wrong in silence.

It is off unless asked for, because it copies and compares every array. That no parameter was stepped between forward
and backward is checked always: a leaf knows when its values were changed.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any
from weakref import ref

import numpy as np

from minipipe.autograd.backend import Array
from minipipe.autograd.grad_mode import current_mode, mode
from minipipe.autograd.graph import Edge, Node, changed_in_place, unchanged


class WatchedNode(Node):
    """A node in front of another one, which checks the arrays of an operation before the gradient goes on.

    Only NumPy's arrays can be watched. They are not kept alive: an array that is gone can mislead nobody.

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
        """Compare the arrays with what they held."""
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
