"""Whether and how operations record what they compute. Set for a block, in this thread."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import NamedTuple

__all__ = [
    "Mode",
    "enable_grad",
    "is_grad_enabled",
    "mode",
    "next_order",
    "no_grad",
    "recording_again",
    "watch_everything",
]


class Mode(NamedTuple):
    """How operations record here.

    Attributes
    ----------
    is_enabled : bool
        Whether they record a graph.
    creation : iterator of int
        Numbers the results. It goes on where nothing is recorded, so that what is computed a second time, to be
        recorded then, can get the very numbers of the first time.
    watched_size : int
        Results of up to so many elements, and inputs of up to so many that went into them, are watched: a change in
        place between their use and backward() is an error.
    """

    is_enabled: bool
    creation: Iterator[int]
    watched_size: int = 256


_FIRST = Mode(True, itertools.count())
_mode: ContextVar[Mode] = ContextVar("mode", default=_FIRST)

mode = _mode.get
"""Return how operations record here."""


@contextmanager
def _in_mode(new: Mode) -> Iterator[None]:
    token = _mode.set(new)
    try:
        yield
    finally:
        _mode.reset(token)


def enable_grad() -> AbstractContextManager[None]:
    """Record the graph inside this block, even inside :func:`no_grad`."""
    return _in_mode(mode()._replace(is_enabled=True))


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
    return _in_mode(mode()._replace(is_enabled=False))


def watch_everything() -> AbstractContextManager[None]:
    """Watch arrays of any size for changes in place, inside this block. Slow; small ones are watched anyway.

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
    return _in_mode(mode()._replace(is_enabled=True, watched_size=sys.maxsize))


def recording_again(first: int) -> AbstractContextManager[None]:
    """Record the graph inside this block, and number the results from ``first``."""
    return _in_mode(mode()._replace(is_enabled=True, creation=itertools.count(first)))


def next_order() -> int:
    """Return the number of a new result, larger than those before it; in :func:`recording_again` those of then."""
    return next(mode().creation)


def is_grad_enabled() -> bool:
    """Tell whether operations record their graph here (see :func:`no_grad`)."""
    return mode().is_enabled
