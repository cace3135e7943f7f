"""Namespaces: a root directory, processes and a network of their own, for a process and all that it starts.

Three calls in three processes, since a process enters a new namespace of processes only by being born in it::

    enter(flags)            the process gets the new namespaces, and forks
    replace_root(…)         its child, process 1 there, builds the root directory, and forks
    (the student's code)    process 2; when process 1 ends, the kernel ends every process of the namespace

References
----------
The Linux manual: namespaces(7), user_namespaces(7), pid_namespaces(7), pivot_root(2), mount_setattr(2).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

from minipipe.comm.job.system_calls import call
from minipipe.coursework.readable import DEVICES

WITHOUT_USER = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
"""New namespaces of mounts, host name, messages, processes and network; the system's administrator may make them."""
WITH_USER = WITHOUT_USER | 0x10000000
"""And one of users, in which anybody may make the others, where the system allows it."""

_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 2, 4, 4096, 16384, 1 << 18, 2
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE = 442, -100, 0x8000
_READ_ONLY_NOSUID_NODEV = 0b111


def enter(flags: int) -> None:
    """Give this process new namespaces, and its future children one of processes; as a user it stays who it is.

    Raises
    ------
    OSError
        Where the system refuses.
    """
    user, group = os.geteuid(), os.getegid()
    call("unshare", flags)
    if flags == WITH_USER:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def replace_root(folder: str, readable: Iterable[Path], size: int) -> None:
    """Put in place of the root directory one with some files to read, and one small directory in memory to write.

    Parameters
    ----------
    folder : str
        An empty directory. The one to write has its name in the new root, and becomes the current one.
    readable : iterable of Path
        None beneath another.
    size : int
        Its bytes.

    Raises
    ------
    OSError
        Where the system refuses.
    """
    os.umask(0o022)
    call("mount", None, b"/", None, _MS_REC | _MS_PRIVATE, None)
    _mount_memory(folder, "size=1m,mode=755")
    for path in readable:
        _show(path, folder)
    devices = [path for path in DEVICES if path.exists()]
    for path in devices:
        _place_for(path, folder)
    own = _place_for(Path(folder), folder)
    attributes = struct.pack("=4Q", _READ_ONLY_NOSUID_NODEV, 0, 0, 0)
    call("syscall", _MOUNT_SETATTR, _AT_FDCWD, os.fsencode(folder), _AT_RECURSIVE, attributes, len(attributes))
    for path in devices:
        call("mount", os.fsencode(path), os.fsencode(f"{folder}{path}"), None, _MS_BIND, None)
    _mount_memory(own, f"size={size},nr_inodes=4096,mode=700")
    os.chdir(folder)
    call("pivot_root", b".", b".")
    call("umount2", b".", _MNT_DETACH)
    os.chdir(folder)


def _mount_memory(place: str, options: str) -> None:
    call("mount", b"tmpfs", os.fsencode(place), b"tmpfs", _MS_NOSUID | _MS_NODEV, options.encode())


def _show(path: Path, root: str) -> None:
    call("mount", os.fsencode(path), os.fsencode(_place_for(path, root)), None, _MS_BIND | _MS_REC, None)


def _place_for(path: Path, root: str) -> str:
    """Make an empty directory or file under the new root, where a mount needs one."""
    place = Path(f"{root}{path}")
    if path.is_dir():
        place.mkdir(parents=True, exist_ok=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    return str(place)
