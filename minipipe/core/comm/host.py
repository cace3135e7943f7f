"""A rank and its host: the launcher's variables, BLAS threads, memory, cores. Importing
this file sets nothing.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from types import SimpleNamespace

from threadpoolctl import ThreadpoolController

from minipipe.core.errors import ArgumentError
from minipipe.core.specs import COUNT
from minipipe.core.texts import parse_whole

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h

# -- the launcher's variables ----------------------------------------------------------

SIZE = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
"""Variables with the number of ranks. Not SLURM_NTASKS: a shell inside ``salloc`` has
it as well.
"""
RANK = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
"""Variables with the rank. The watchdog process cannot import this file and has a copy;
a test compares them.
"""
LOCAL_SIZE = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")
"""Variables with the number of ranks on this host."""
LOCAL_RANK = (
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "SLURM_LOCALID",
)
"""Variables with the rank on this host."""


def launcher_number(
    environment: Mapping[str, str], names: Sequence[str], default: int = 0
) -> int:
    """Return the number in the first of these variables that is set.

    Examples
    --------
    >>> (
    ...     launcher_number({"PMI_RANK": "3"}, RANK),
    ...     launcher_number({}, RANK),
    ...     launcher_number({}, LOCAL_SIZE, default=1),
    ... )
    (3, 0, 1)
    """
    for name in names:
        with suppress(ArgumentError):
            return parse_whole(environment.get(name, ""))
    return default


def num_ranks(environment: Mapping[str, str]) -> int | None:
    """Return how many ranks the launcher started: 1 without a launcher, None if it sets
    no such variable.

    Examples
    --------
    >>> num_ranks({"PMI_SIZE": "4", "PMI_RANK": "0"}), num_ranks({})
    (4, 1)
    """
    size = max(launcher_number(environment, [name]) for name in SIZE)
    if not size and "PMIX_RANK" in environment:
        return None
    return max(size, 1)


# -- this process ----------------------------------------------------------------------


@contextmanager
def limit_blas_threads(count: int) -> Iterator[None]:
    """Let matrix products use ``count`` threads inside this block, everywhere in this
    process.

    One thread for each rank: two on a full host are 4 to 100 times slower, and another
    number changes bits. Blocks may overlap in any way: the one entered last counts, and
    the original limits return when the last one ends.

    Raises
    ------
    ArgumentError
        Code ``value``: when ``count`` is less than 1.
    """
    COUNT.check("blas_threads", count)
    token = object()
    with _blas.lock:
        limits = _libraries().limit(limits=count, user_api="blas")
        if not _blas.counts:
            _blas.before = limits
        _blas.counts[token] = count
    try:
        yield
    finally:
        with _blas.lock:
            del _blas.counts[token]
            if _blas.counts:
                latest = next(reversed(_blas.counts.values()))
                _libraries().limit(limits=latest, user_api="blas")
            else:
                _blas.before.restore_original_limits()


@cache
def _libraries() -> ThreadpoolController:
    """Return the libraries of this process that use threads, listed once.

    A contained process (``coursework/sandbox.py``) cannot list them, since it has no
    ``/proc``.
    """
    import_module("numpy")  # which loads BLAS
    return ThreadpoolController()


def blas_threads() -> int:
    """Return with how many threads NumPy computes a matrix product now."""
    for library in _libraries().info():
        if library["user_api"] == "blas":
            return library["num_threads"]
    return 1


# The limits in force, by block, and those before. A process has one BLAS, and so one of
# these.
_blas = SimpleNamespace(lock=threading.Lock(), counts={}, before=None)


def keep_freed_memory() -> None:
    """Tell glibc to keep large freed blocks instead of returning each to the kernel.
    Does nothing without glibc.

    A fresh block costs a page fault for every 4 KiB: writing a new array of 2 MiB takes
    four times as long as writing a reused one.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def cores() -> set[int]:
    """Return the numbers of the cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # not everywhere
    if allowed:
        return allowed(0)
    return set(range(os.cpu_count() or 1))


yield_core = getattr(os, "sched_yield", lambda: None)
"""Offer this core to another process."""
