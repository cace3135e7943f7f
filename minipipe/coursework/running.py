"""Processes that threads of a pool wait for, and that one exception ends together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from os import cpu_count
from typing import Any, Self

# Seconds. A signal that arrives just before the main thread begins to wait, or in
# another thread, does not wake it; its handler runs when the thread wakes up.
_LONGEST_WAIT = 0.2


class Running:
    """The processes that run now, as a context manager: an exception in its block, such
    as Ctrl-C, ends them.

    Threads of its pool wait for their results. Without this, the end of the pool would
    wait until all time limits.

    Parameters
    ----------
    end : function
        Ends a process.
    workers : int, optional
        How many threads, by default the number of processors.
    """

    def __init__(
        self, end: Callable[[Any], object], workers: int | None = None
    ) -> None:
        self._end = end
        if workers is None:
            workers = cpu_count()
        self._pool = ThreadPoolExecutor(workers)
        self._running: set[Any] = set()
        self._are_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            # Set before the loop, so that a process that is being started also ends.
            self._are_over = True
            self._pool.shutdown(wait=False, cancel_futures=True)
            for process in self._running.copy():
                self._end(process)
        self._pool.shutdown()

    def map(self, function: Callable[..., Any], *items: Iterable[Any]) -> list[Any]:
        """Call a function in the threads of the pool, for each item; return the results
        in the order of the items, or raise the first exception.
        """
        futures = [self._pool.submit(function, *each) for each in zip(*items)]
        return list(map(_result_of, futures))

    def add(self, process: Any) -> None:
        """Note a process that has started."""
        self._running.add(process)
        if self._are_over:
            self._end(process)

    def remove(self, process: Any) -> None:
        """Note that a process has ended."""
        self._running.discard(process)


def _result_of(future: Future[Any]) -> Any:
    while not future.done():
        wait([future], _LONGEST_WAIT)
    return future.result()
