"""Which batch this rank has drawn last: where one rank reads the inputs and another the targets, both must know."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any
from zlib import crc32

_last_draw: ContextVar[int | None] = ContextVar("last_draw", default=None)


def note_draw(*key: Any) -> None:
    """Note that a batch was drawn, and from what: numbers that are the same on every rank. Local."""
    _last_draw.set(crc32(repr(key).encode()))


def take_last_draw() -> int | None:
    """Return a number for the batch that was drawn last in this thread; None if there was none since the last call.

    Examples
    --------
    >>> note_draw("batches", 0, 1)
    >>> take_last_draw() is not None, take_last_draw()
    (True, None)
    """
    found = _last_draw.get()
    _last_draw.set(None)
    return found
