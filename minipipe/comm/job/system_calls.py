"""Linux: system calls that the standard library lacks, through ctypes, and the
descendants of this process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_CHILD_SUBREAPER = 36
_CAPABILITY_VERSION_3 = 0x20080522
_LOOK = 0.01  # seconds between searches for processes


def call(name: str, *arguments: Any) -> int:
    """Call a function of the C library; ``"syscall"`` and a number for one without a
    name there.

    Parameters
    ----------
    name : str
    *arguments : int, bytes or None
        Integers are passed as ``long``, bytes as a pointer to them.

    Returns
    -------
    int

    Raises
    ------
    OSError
        With the system's reason.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, name):
        raise OSError(f"{name} is missing in the C library")
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = getattr(library, name)(*given)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
    return result


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, even if it was
    detached.
    """
    call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(number: int = 9) -> None:
    """Get a signal when the process that forked this one ends; by default SIGKILL."""
    call("prctl", _PR_SET_PDEATHSIG, number, 0, 0, 0)


def end_with(parent: int, number: int = 9) -> None:
    """Get a signal when the process ``parent``, which forked this one, ends; exit at
    once if it has ended already.

    On other systems than Linux only the latter.
    """
    with suppress(OSError):
        end_with_parent(number)
    if os.getppid() != parent:
        os._exit(1)


def give_up_privileges() -> None:
    """Drop every capability, and gain none by running a file such as ``sudo``."""
    call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # version, this process
    header = _CAPABILITY_VERSION_3.to_bytes(4, sys.byteorder) + bytes(4)
    call("capset", header, bytes(24))


def _kill_descendants() -> None:
    for process in _descendants():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


def end_descendants(grace: float = 0.0, limit: float = float("inf")) -> bool:
    """Kill all descendants of this process, which has adopted their orphans; return
    whether none is left.

    It takes the exit status of every child, so no other thread may wait for one.

    Parameters
    ----------
    grace : float
        Seconds in which they may exit by themselves.
    limit : float
        Seconds after which processes that cannot be killed are left, such as one that
        hangs in a network file system.
    """
    begun = time.monotonic()
    with suppress(ChildProcessError):
        while (spent := time.monotonic() - begun) <= limit:
            # orphans become children, so at the end there are none
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            if spent >= grace:
                _kill_descendants()
            time.sleep(_LOOK)
        return False
    return True


def _descendants() -> set[int]:
    """Return the descendants of this process."""
    parents = {}
    for process in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended meanwhile
            stat = Path("/proc", process, "stat").read_text("utf-8", "replace")
            after_name = stat.rpartition(")")[2]
            parents[int(process)] = int(after_name.split()[1])
    found = set()
    new = {os.getpid()}
    while new:
        new = {process for process, parent in parents.items() if parent in new}
        found |= new
    return found
