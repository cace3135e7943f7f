"""An error that makes a gradient wrong in silence: an array is changed between its use
and backward.

Watching arrays is off by default, because it copies and compares every array. Updates
of a parameter between forward and backward are always noticed: a leaf knows when its
values were changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from weakref import ref

import numpy as np

from minipipe.core.autograd.graph import changed_in_place
from minipipe.core.autograd.modes import current_mode, mode


class Watched:
    """Saved values, which are compared with their earlier bytes when a backward takes
    them.

    Only NumPy's arrays are watched, by weak references: an array that was freed cannot
    have been used again.

    Parameters
    ----------
    values : tuple
    arrays : iterable of array
        Those that are watched: the result and the inputs of an operation, whether it
        has saved them or not.
    """

    __slots__ = ("_before", "values")

    def __init__(self, values: tuple[Any, ...], arrays: Iterable[Any]) -> None:
        self.values = values
        watched = [array for array in arrays if isinstance(array, np.ndarray)]
        self._before = [(ref(array), array.tobytes()) for array in watched]

    def take(self) -> tuple[Any, ...]:
        """Compare the arrays with their earlier contents, and return the values."""
        for reference, before in self._before:
            array = reference()
            if array is not None and array.tobytes() != before:
                raise changed_in_place(f"An array of shape {array.shape}")
        return self.values

    def part(self, values: tuple[Any, ...]) -> Watched:
        """Return some of the values, watched in the same way."""
        twin = Watched(values, ())
        twin._before = self._before
        return twin


def watch_everything() -> AbstractContextManager[Any]:
    """Watch arrays for changes in place from now on, in this thread; in a ``with``
    statement, until its block ends.

    A change between the use of an array and backward raises a TensorError with code
    ``changed-in-place``, and :class:`minipipe.nn.Recompute` compares all of what it
    computes again. It costs a small operation about 40 % more, so training does
    without. Ranks call it themselves.

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
    token = current_mode.set(mode()._replace(watch=Watched))
    until_left = ExitStack()
    until_left.callback(current_mode.reset, token)
    return until_left
