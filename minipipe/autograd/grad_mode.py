"""Whether operations record a graph, and how: set for a block, in this thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any, NamedTuple


class Mode(NamedTuple):
    """How operations record here.

    Attributes
    ----------
    is_enabled : bool
        Whether they record a graph.
    creation : iterator of int
        Numbers the results. It goes on where nothing is recorded, so that a module that is computed a second time, to
        be recorded then, can get the very numbers of the first time.
    watch : function or None
        ``(node, arrays) -> node``: puts a node that watches the arrays in front of another one.
    """

    is_enabled: bool
    creation: Iterator[int]
    watch: Callable[[Any, list[Any]], Any] | None = None


_FIRST = Mode(True, count())
current_mode: ContextVar[Mode] = ContextVar("mode", default=_FIRST)

mode = current_mode.get
"""Return how operations record here."""


@contextmanager
def setting(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Set a context variable inside this block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def enable_grad() -> AbstractContextManager[None]:
    """Record the graph inside this block, even inside :func:`no_grad`."""
    return setting(current_mode, mode()._replace(is_enabled=True))


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
    return setting(current_mode, mode()._replace(is_enabled=False))


def record_again(first: int) -> AbstractContextManager[None]:
    """Record the graph inside this block, and number the results from ``first``."""
    return setting(current_mode, mode()._replace(is_enabled=True, creation=count(first)))


def next_order() -> int:
    """Return the number of a new result, larger than those before it; in :func:`record_again` the earlier ones."""
    return next(mode().creation)


def is_grad_enabled() -> bool:
    """Tell whether operations record their graph here (see :func:`no_grad`)."""
    return mode().is_enabled
