"""Limits of a process, which its descendants inherit: memory, processor time, files, processes."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from pathlib import Path

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

MEMORY = 4 << 30
"""Bytes of addresses that a process may use; threads and libraries reserve far more than they touch."""
DISK = 64 << 20
"""Bytes of a file; of all files together, where a task has a file system of its own."""
PROCESSES = 128
"""Processes and threads of a task."""
_OPEN_FILES = 256


def limit_resources(seconds: float) -> bool:
    """Limit this process, and let it leave no core file; return whether memory and processor time are limited.

    Parameters
    ----------
    seconds : float
        Of processor time.
    """
    wanted = {"AS": MEMORY, "CPU": math.ceil(seconds) + 1, "FSIZE": DISK, "NOFILE": _OPEN_FILES, "CORE": 0}
    return not _refused(wanted).intersection(("AS", "CPU"))


def limit_processes(others: int) -> bool:
    """Limit the number of the user's processes to so many more than there are; return whether that is in force.

    Parameters
    ----------
    others : int
        The user's processes and threads that are no part of the task.
    """
    return os.geteuid() != 0 and not _refused({"NPROC": others + PROCESSES})


def threads_of_this_user() -> int:
    """Count the processes and threads of this user; Linux alone."""
    count, user = 0, os.geteuid()
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            count += len(os.listdir(f"/proc/{process}/task")) if Path("/proc", process).stat().st_uid == user else 0
    return count


def _refused(wanted: Mapping[str, int]) -> set[str]:
    """Set limits by name, and return the names of those that the system does not have, or refuses."""
    if resource is None:
        return set(wanted)
    refused = set()
    for name, size in wanted.items():
        try:
            what = getattr(resource, f"RLIMIT_{name}")
            most = resource.getrlimit(what)[1]
            limit = size if most == resource.RLIM_INFINITY else min(size, most)
            resource.setrlimit(what, (limit, limit))
        except (AttributeError, ValueError, OSError):
            refused.add(name)
    return refused
