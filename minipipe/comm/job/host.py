"""What ranks need of this process: BLAS threads, memory, politeness. Set when a group starts, never at import."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import thread_time
from typing import Any

from threadpoolctl import threadpool_limits

from minipipe.errors import ArgumentError

# glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


@contextmanager
def limit_blas_threads(count: int) -> Iterator[None]:
    """Let matrix products use ``count`` threads inside this block, everywhere in this process.

    One thread for each rank: two on a full host are 4 to 100 times slower, and another number changes bits. Blocks
    may overlap in any way: the one entered last counts, and the first state comes back when the last one ends.

    Raises
    ------
    ArgumentError
        Code ``value``: when ``count`` is less than 1.
    """
    if count < 1:
        raise ArgumentError("value", f"blas_threads is {count}; expected at least 1.")
    token = object()
    with _blas.lock:
        limits = threadpool_limits(limits=count, user_api="blas")
        if not _blas.counts:
            _blas.before = limits
        _blas.counts[token] = count
    try:
        yield
    finally:
        with _blas.lock:
            del _blas.counts[token]
            if _blas.counts:
                threadpool_limits(limits=next(reversed(_blas.counts.values())), user_api="blas")
            else:
                _blas.before.restore_original_limits()


class _BlasLimits:
    """The limits that are in force; a process has one BLAS, and so one of these."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counts: dict[object, int] = {}
        self.before: Any = None


_blas = _BlasLimits()


def keep_freed_memory() -> None:
    """Tell glibc to keep large blocks that are freed, instead of giving them back to the kernel each time.

    A fresh block costs a page fault for every 4 KiB: writing a new array of 2 MiB takes four times as long as writing
    a reused one. Elsewhere than on Linux with glibc nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def core_times() -> tuple[float, float]:
    """Return for how long this thread had a core so far, and for how long it was ready and had none, in seconds.

    Linux counts both. Elsewhere the second is 0.
    """
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            had, waited = map(int, file.read().split()[:2])
    except (OSError, ValueError):
        return thread_time(), 0.0
    return had / 1e9, waited / 1e9


def cores() -> set[int]:
    """Return the numbers of the cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # not everywhere
    return allowed(0) if allowed else set(range(os.cpu_count() or 1))


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(cores())


yield_core = getattr(os, "sched_yield", lambda: None)
"""Let another rank have this core, if one wants it."""
