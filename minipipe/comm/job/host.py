"""What supervision and measurements know about a host: its launcher, memory and busy
cores.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from time import thread_time

from minipipe.core.comm.host import cores, num_ranks
from minipipe.core.texts import parse_whole
from minipipe.errors import ArgumentError

_LIMIT_OF_MEMORY = Path("/sys/fs/cgroup/memory.max")
_CORE_TIMES = Path("/proc/stat")
BYTES_OF_A_RANK = 40 << 20
"""Of Python, NumPy and MPI, at least."""


def find_mpirun() -> str | None:
    """Return the mpirun of this Python's environment, or else the one on the path, or
    None.
    """
    beside = Path(sys.executable).parent / "mpirun"
    if beside.exists():
        return str(beside)
    return shutil.which("mpirun")


def launcher_of_ranks() -> str | None:
    """Return the mpirun that starts ranks; None if there is none, or this process is a
    rank, which cannot.
    """
    if num_ranks(os.environ) == 1:
        return find_mpirun()
    return None


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
        if total > 0:
            busy += worked / total
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
