"""An array that several vjps of one operation need, computed by whichever comes first.

Most vjps work on their own. Where they share most of the work, as those of an LSTM share the walk back through time,
the first one does it for all: in a split backward the vjp of the input, in I, and those of the weights only take their
products, in W.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minipipe.autograd.backend import Array
from minipipe.errors import TensorError


def once(compute: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return a function that computes an array from the gradient of a result at its first call, and keeps it.

    What ``compute`` alone captured is freed then; the array is freed with the last vjp that holds the function.

    Raises
    ------
    TensorError
        Code ``backward-twice``, of the function, for another gradient than the first time: a graph is walked once.

    Examples
    --------
    >>> import numpy as np
    >>> shared = once(lambda g: print("computing") or 2 * g)
    >>> g = np.array([1.0, 2.0])
    >>> shared(g), shared(g)
    computing
    (array([2., 4.]), array([2., 4.]))
    """
    state: list[Any] = [compute]  # then [gradient, array]; a list, for autograd/memory.py to look into

    def computed(g: Array) -> Array:
        if len(state) == 1:
            state[:] = [g, state[0](g)]
        if state[0] is not g:
            raise TensorError(
                "backward-twice",
                "The vjps of an operation were called with two gradients, but the first one has released what they "
                "share. Compute the result again.",
            )
        return state[1]

    return computed
