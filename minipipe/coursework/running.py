"""Processes that threads of a pool wait for, and that one exception ends together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self


class Running:
    """The processes that run now, as a context manager: an exception in its block, such
    as Ctrl-C, ends them.

    Other threads wait for their results. Without this, a pool of such threads would
    wait until all time limits.

    Parameters
    ----------
    end : function
        Ends a process.
    """

    def __init__(self, end: Callable[[Any], object]) -> None:
        self._end = end
        self._running: set[Any] = set()
        self._are_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            # Set before the loop, so that a process that is being started also ends.
            self._are_over = True
            for process in self._running.copy():
                self._end(process)

    def add(self, process: Any) -> None:
        """Note a process that has started."""
        self._running.add(process)
        if self._are_over:
            self._end(process)

    def remove(self, process: Any) -> None:
        """Note that a process has ended."""
        self._running.discard(process)
