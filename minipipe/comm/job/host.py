"""A rank and its host: the launcher's variables, BLAS threads, memory, cores. Importing
this file sets nothing.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import stat
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from math import inf
from pathlib import Path
from time import thread_time
from types import SimpleNamespace

from threadpoolctl import ThreadpoolController

from minipipe.core.specs import COUNT
from minipipe.core.texts import parse_whole
from minipipe.errors import ArgumentError

_LIMIT_OF_MEMORY = Path("/sys/fs/cgroup/memory.max")
_CORE_TIMES = Path("/proc/stat")
BYTES_OF_A_RANK = 40 << 20
"""Of Python, NumPy and MPI, at least."""
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


def find_mpirun() -> str | None:
    """Return the mpirun of this Python's environment, or else the one on the path, or
    None.
    """
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun")


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
    return size if size > 1 else None if "PMIX_RANK" in environment and not size else 1


def launcher_of_ranks() -> str | None:
    """Return the mpirun that starts ranks; None if there is none, or this process is a
    rank, which cannot.
    """
    return find_mpirun() if num_ranks(os.environ) == 1 else None


def launcher_socket(environment: Mapping[str, str]) -> int | None:
    """Return the descriptor of the socket to the launcher's process on this host, if
    this process has one.

    MPICH's and Slurm's launchers open one for each rank. A subprocess inherits the
    variable but not the socket.
    """
    # no number, no such descriptor, none that could be
    with suppress(ArgumentError, OSError, OverflowError):
        number = parse_whole(environment.get("PMI_FD", ""))
        if stat.S_ISSOCK(os.fstat(number).st_mode):
            return number
    return None


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


def core_times() -> tuple[float, float]:
    """Return how long this thread has run on a core, and how long it was ready without
    one, in seconds.

    The second is 0 on other systems than Linux.
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


def memory_of_this_host() -> float:
    """Return the bytes of memory here, or the rest of a container's limit; infinite if
    not reported.
    """
    names = getattr(os, "sysconf_names", {})
    found = inf
    if {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= set(names):
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # no such file, or "max"
        found = min(found, int(_LIMIT_OF_MEMORY.read_text("ascii")))
    return found


def busy_cores(seconds: float = 0.25) -> float:
    """Return how many of this process' cores others keep busy, while this process
    sleeps; 0 where that is unknown.
    """
    first = _core_ticks()
    time.sleep(seconds)
    last = _core_ticks()
    busy = 0.0
    for core in cores() & first.keys() & last.keys():
        worked, total = (now - before for now, before in zip(last[core], first[core]))
        busy += worked / total if total > 0 else 0.0
    return busy


def _core_ticks() -> dict[int, tuple[int, int]]:
    """Return, by core, the time in which it worked, and all time, in ticks of the
    kernel.
    """
    found = {}
    with suppress(OSError, ValueError):
        for line in _CORE_TIMES.read_text("ascii").splitlines():
            name, *ticks = line.split()
            if re.fullmatch(r"cpu\d+", name):
                # user, nice, system, idle, iowait, irq, softirq, steal
                all_ticks = list(map(int, ticks[:8]))
                total = sum(all_ticks)
                found[int(name[3:])] = total - all_ticks[3] - all_ticks[4], total
    return found


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(cores())


yield_core = getattr(os, "sched_yield", lambda: None)
"""Offer this core to another process."""
