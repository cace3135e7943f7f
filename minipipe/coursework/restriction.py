"""The process of the student's code gives up what it does not need, for itself and all that it starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from minipipe.comm.job.system_calls import give_up_privileges
from minipipe.coursework import containment, landlock, limits, namespaces
from minipipe.coursework.containment import LANDLOCK, LAYERS, LIMITS, NAMESPACES, USER, Containment
from minipipe.coursework.readable import DEVICES


def restrict(
    layers: Sequence[str], seconds: float, readable: Sequence[Path], flags: int | None, user: int
) -> Containment:
    """Put the layers in force, on Linux, and return those that the system granted.

    Parameters
    ----------
    layers : sequence of str
        Those that may be used; limits are always.
    seconds : float
        Of processor time.
    readable : sequence of Path
        What the code may read.
    flags : int or None
        The namespaces that the process is in.
    user : int
        The number of a user whom nobody is, to become where the grader is root.
    """
    os.setsid()  # a signal to its own group reaches nobody else
    granted = {NAMESPACES} if flags is not None else set()
    if USER in layers and flags != namespaces.WITH_USER and _becomes(user, readable):
        granted.add(USER)
    if limits.limit_resources(seconds):
        granted.add(LIMITS)
    has_bounded_number = limits.limit_processes(0 if granted & {NAMESPACES, USER} else limits.threads_of_this_user())
    give_up_privileges()
    abi = _landlock_abi(readable) if LANDLOCK in layers else 0
    if abi:
        granted.add(LANDLOCK)
    exposed = _exposed(granted, abi) + (() if has_bounded_number else (containment.NUMBER,))
    return Containment(tuple(layer for layer in LAYERS if layer in granted), exposed)


def limit_alone(seconds: float) -> Containment:
    """Put in force what other systems than Linux have."""
    if limits.limit_resources(seconds):
        return Containment((LIMITS,), containment.EVERYTHING)
    return Containment((), (*containment.EVERYTHING, containment.MEMORY))


def _becomes(user: int, readable: Sequence[Path]) -> bool:
    """Become a user who has nothing but the current directory, if this one may, and that one could still import."""
    try:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.seteuid(user)
        can_read = all(os.access(path, os.R_OK, effective_ids=True) for path in readable)
        os.seteuid(0)
        if can_read:
            os.chown(".", user, user)
            os.setresuid(user, user, user)
    except OSError:
        return False
    return can_read


def _landlock_abi(readable: Sequence[Path]) -> int:
    """Return the version of Landlock now in force, or 0."""
    try:
        own = filter(Path.exists, [Path("/proc/self/maps")])  # where threadpoolctl looks for BLAS
        return landlock.restrict([*readable, *own], [Path.cwd(), *filter(Path.exists, DEVICES)])
    except OSError:
        return 0


def _exposed(granted: set[str], abi: int) -> tuple[str, ...]:
    """Return what the layers leave open."""
    if NAMESPACES in granted:
        return ()
    exposed = [] if abi else [containment.FILES]
    if not (USER in granted or abi >= landlock.SIGNALS_ABI):
        exposed += [containment.PROCESSES, containment.ESCAPE]  # it could end the supervisor
    exposed += [containment.DATAGRAMS if abi >= landlock.TCP_ABI else containment.NETWORK, containment.DISK]
    return tuple(exposed)
