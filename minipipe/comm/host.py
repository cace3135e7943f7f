"""Two settings of this process that ranks need; each group makes them when it starts, never at import."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import AbstractContextManager

from threadpoolctl import threadpool_limits

__all__ = ["keep_freed_memory", "limit_blas_threads", "yield_core"]

# glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def limit_blas_threads(count: int) -> AbstractContextManager[object]:
    """Return a context in which matrix products use ``count`` threads; it takes effect at once.

    One thread for each rank: two on a full host are 4 to 100 times slower, and another number changes bits.

    Raises
    ------
    ValueError
        When ``count`` is less than 1.
    """
    if count < 1:
        raise ValueError(f"blas_threads is {count}; expected at least 1.")
    return threadpool_limits(limits=count, user_api="blas")


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


yield_core = getattr(os, "sched_yield", lambda: None)
"""Let another rank have this core, if one wants it."""
