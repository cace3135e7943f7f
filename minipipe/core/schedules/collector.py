"""A pause of Python's cyclic garbage collector, for work on millions of actions."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's cyclic garbage collector inside this block.

    Actions and spans are tuples of numbers and strings, and can form no cycle; yet the
    collector counts them, and goes through all of them each time that their number has
    grown by a quarter. For a schedule of 1.5 million actions and messages that was more
    than half of the time to build, verify, lower and simulate it.

    The collector belongs to the process. A block that found it on turns it on again, so
    after overlapping blocks of several threads it is on.

    Examples
    --------
    >>> with collector_paused():
    ...     print(gc.isenabled())
    False
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
