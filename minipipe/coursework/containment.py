"""How student code is contained: the layers in force, what they leave exposed, and the limits of a process."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

NAMESPACES = "namespaces"
LANDLOCK = "Landlock"
USER = "a user of its own"
LIMITS = "limits"
LAYERS = (NAMESPACES, LANDLOCK, USER, LIMITS)
"""Every layer that a system may have, the strongest first."""

FILES = "the grader's files"
PROCESSES = "the grader's processes"
NETWORK = "the network"
DATAGRAMS = "the network beyond TCP"
DISK = "any amount of disk space"
NUMBER = "any number of processes"
ESCAPE = "processes that outlive it"
MEMORY = "any amount of memory"
EVERYTHING = (FILES, PROCESSES, NETWORK, DISK, NUMBER, ESCAPE)

MOST_ADDRESSES = 4 << 30
"""Bytes of virtual memory of a process; threads and libraries reserve far more than they touch."""
MOST_BYTES = 64 << 20
"""Bytes of a file; of all files together, where a task has a file system of its own."""
MOST_PROCESSES = 128
"""Processes and threads of a task."""
_OPEN_FILES = 256


class Containment(NamedTuple):
    """How student code was contained.

    Attributes
    ----------
    layers : tuple of str
        Of ``LAYERS``, those in force.
    exposed : tuple of str
        What student code could still reach or use; empty where the layers close everything.

    Examples
    --------
    >>> print(Containment(("namespaces", "limits"), ()))
    contained by namespaces, limits
    >>> print(Containment(("limits",), ("the grader's files", "the network")))
    contained by limits
    warning: student code could reach the grader's files, the network; grade in a container or a virtual machine
    """

    layers: tuple[str, ...]
    exposed: tuple[str, ...]

    def __str__(self) -> str:
        said = f"contained by {', '.join(self.layers) or 'a process of its own alone'}"
        if self.exposed:
            reach = ", ".join(self.exposed)
            said += f"\nwarning: student code could reach {reach}; grade in a container or a virtual machine"
        return said


def weakest(each: Iterable[Containment | None]) -> Containment | None:
    """Return the layers that all have in common, and what any exposes; None where no code was run.

    Examples
    --------
    >>> weakest([Containment(("Landlock", "limits"), ()), Containment(("limits",), ("the network",)), None])
    Containment(layers=('limits',), exposed=('the network',))
    """
    every = [one for one in each if one is not None]
    if not every:
        return None
    layers = [layer for layer in every[0].layers if all(layer in one.layers for one in every)]
    exposed = dict.fromkeys(what for one in every for what in one.exposed)
    return Containment(tuple(layers), tuple(exposed))


# -- limits, which descendants inherit ------------------------------------------------------------------------------


def limit_alone(seconds: float) -> Containment:
    """Put in force the only layer of systems other than Linux."""
    if limit_resources(seconds):
        return Containment((LIMITS,), EVERYTHING)
    return Containment((), (*EVERYTHING, MEMORY))


def limit_resources(seconds: float) -> bool:
    """Limit this process, without core files; return whether memory and processor time (in seconds) are limited."""
    cpu = math.ceil(seconds) + 1
    wanted = {"AS": MOST_ADDRESSES, "CPU": cpu, "FSIZE": MOST_BYTES, "NOFILE": _OPEN_FILES, "CORE": 0}
    return not _refused(wanted).intersection(("AS", "CPU"))


def limit_processes(others: int) -> bool:
    """Limit the number of the user's processes; return whether that is in force.

    Parameters
    ----------
    others : int
        The user's processes and threads that are not part of the task.
    """
    return os.geteuid() != 0 and not _refused({"NPROC": others + MOST_PROCESSES})


def threads_of_this_user() -> int:
    """Count the processes and threads of this user; Linux only."""
    count, user = 0, os.geteuid()
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has exited meanwhile
            count += len(os.listdir(f"/proc/{process}/task")) if Path("/proc", process).stat().st_uid == user else 0
    return count


def _refused(wanted: Mapping[str, int]) -> set[str]:
    """Set limits by name, and return the names of those that the system lacks or refuses."""
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
