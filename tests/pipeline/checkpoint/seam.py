"""A seam at the file system: the k-th call of a save fails, or is the last thing that
its process does.
"""

import builtins
import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace

CALLS = (
    "listdir",
    "mkdir",
    "open",
    "fsync",
    "rename",
    "replace",
    "unlink",
    "rmdir",
    "scandir",
    "stat",
    "lstat",
)
# they fail in a dead process only: a name is there or it is not
LOOKS = ("stat", "lstat")


class Crash(BaseException):
    """What a dead process does not catch."""


class Seam:
    """Counts calls of the file system while it is armed. ``act`` is asked before each,
    with its number and name.

    Of a file that is written, ``open`` and ``write`` are calls; ``act`` may say how
    much of the content to write.
    """

    def __init__(self, patch, folder, act):
        self._act, self._folder, self.calls = act, Path(folder), []
        self.is_armed = self.is_dead = False
        self._synced = {path.stat().st_ino for path in self._folder.rglob("*")}
        self._lock = threading.Lock()
        self._real = {name: getattr(os, name) for name in CALLS}
        for name in CALLS:
            patch.setattr(os, name, self._wrapped(name, self._real[name]))
        patch.setattr(builtins, "open", self._open)

    def reach(self, name):
        """Note a call, and do to it what is due; return the share of the content that
        is still written.
        """
        if not self.is_armed:
            return 1.0
        with self._lock:
            if name not in LOOKS:
                self.calls.append(name)
            try:
                return self._act(len(self.calls), name)
            except Crash:
                self.is_dead = True
                raise

    def _wrapped(self, name, real):
        def call(*given, **options):
            if name == "fsync" and self.is_armed:
                self._synced.add(os.fstat(given[0]).st_ino)
            self.reach(name)
            return real(*given, **options)

        return call

    def _open(self, file, mode="r", *given, **options):
        if not self.is_armed or not {"w", "x"} & set(mode):
            return _OPEN(file, mode, *given, **options)
        self.reach("open")
        opened = _OPEN(file, mode, *given, **options)

        def write(content):
            share = self.reach("write")
            count = opened.write(content[: int(share * len(content))])
            if share < 1:
                opened.flush()
                self.reach("write")  # as the rest of it, which comes to nothing
            return count

        return _File(opened, write)

    def lose_what_was_not_forced(self):
        """Empty the files that a system which loses its power would not have on its
        disk.
        """
        for path in self._folder.rglob("*"):
            if path.is_file() and path.stat().st_ino not in self._synced:
                path.write_bytes(b"")


class _File:
    def __init__(self, opened, write):
        self._opened, self.write = opened, write

    def __getattr__(self, name):
        return getattr(self._opened, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._opened.close()


_OPEN = builtins.open


def fails_once(number, code=errno.EIO):
    """The call of a number fails; those after it are well again."""

    def act(count, name):
        if name not in LOOKS and count == number:
            raise OSError(code, os.strerror(code))
        return 1.0

    return act


def is_full(number):
    """From the call of a number on, nothing can be written any more."""

    def act(count, name):
        if name in ("write", "mkdir", "fsync") and count >= number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return 1.0

    return act


def crashes(number):
    """The process dies at a call; of a content that is being written, half has gone
    out.
    """
    state = SimpleNamespace(is_dead=False)

    def act(count, name):
        if state.is_dead or (count == number and name not in ("write", *LOOKS)):
            state.is_dead = True
            raise Crash
        if count == number and name == "write":
            state.is_dead = True
            return 0.5
        return 1.0

    return act
