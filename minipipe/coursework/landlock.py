"""Landlock: a process without privileges gives up, for itself and its descendants, what it does not need.

References
----------
The Linux kernel, Documentation/userspace-api/landlock.rst: the numbers of the calls, the rights, and which of them each
version of the interface (ABI) knows.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

from minipipe.comm.job.system_calls import call

TCP_ABI = 4
"""The first version that refuses TCP; it refuses no other protocol."""
SIGNALS_ABI = 6
"""The first version that refuses signals to processes outside."""

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # the same on every architecture
_RULE_PATH_BENEATH, _VERSION = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_NUM_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # by ABI; 16 since then
_BIND_AND_CONNECT = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


def restrict(readable: Iterable[Path], writable: Iterable[Path]) -> int:
    """Allow this process, from now on, to read and run what lies beneath some paths, and to change others, alone.

    It also gives up TCP, abstract sockets and signals to processes outside, as far as the kernel can refuse them.
    Capabilities have to be given up before.

    Parameters
    ----------
    readable, writable : iterable of Path
        Directories, with all beneath them, or files.

    Returns
    -------
    int
        The ABI of the kernel.

    Raises
    ------
    OSError
        Where the kernel has no Landlock, or it is switched off.
    """
    abi = call("syscall", _CREATE, None, 0, _VERSION)
    rights = (1 << _NUM_RIGHTS.get(abi, 16)) - 1
    attributes = [rights]
    if abi >= TCP_ABI:
        attributes.append(_BIND_AND_CONNECT)
    if abi >= SIGNALS_ABI:
        attributes.append(_ABSTRACT_SOCKETS_AND_SIGNALS)
    rules = struct.pack(f"={len(attributes)}Q", *attributes)
    ruleset = call("syscall", _CREATE, rules, len(rules), 0)
    try:
        for path in readable:
            _allow(ruleset, path, _EXECUTE | _READ_FILE | _READ_DIR)
        for path in writable:
            _allow(ruleset, path, rights)
        call("syscall", _RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)
    return abi


def _allow(ruleset: int, path: Path, rights: int) -> None:
    beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        allowed = rights if stat.S_ISDIR(os.fstat(beneath).st_mode) else rights & _ON_FILES
        call("syscall", _ADD_RULE, ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", allowed, beneath), 0)
    finally:
        os.close(beneath)
