"""Calls of Linux that the standard library lacks, made through ctypes."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_CHILD_SUBREAPER = 1, 38, 36
_CAPABILITY_VERSION_3 = 0x20080522
_SIGKILL = 9


def call(name: str, *arguments: Any) -> int:
    """Call a function of the C library, or by ``"syscall"`` and its number one that the library has no name for.

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
    result = getattr(library, name)(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
    return result


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, however it was detached."""
    call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """Be killed when the process that forked this one ends."""
    call("prctl", _PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)


def give_up_privileges() -> None:
    """Drop every capability, and gain none by running a file: ``sudo`` and the like lose their meaning."""
    call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    header = _CAPABILITY_VERSION_3.to_bytes(4, sys.byteorder) + bytes(4)  # version, this process
    call("capset", header, bytes(24))
