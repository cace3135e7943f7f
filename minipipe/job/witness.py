"""A witness: a small process on each host, which outlives the ranks there. Started as a script; needs no package.

A rank that is killed cannot say so, and the launcher then kills all others within milliseconds: nobody is left to tell
which one was first. When the launcher's own process on a host is killed, its ranks would live on. And a rank that fails
before MPI starts leaves the others waiting inside MPI, where no Python runs. The witness sees all three:

* it waits until every rank of the host has come, and tells them if one has ended before;
* a connection that closes without a goodbye was a rank's that ended without a word; the witness names it;
* when the launcher's process is gone, it kills the ranks.

It listens on a socket of the kernel's own name space, so no file is left behind, and ends when the last rank has.
Linux only: elsewhere ranks do without.

Words of a rank: ``join RANK PID``, ``first`` (asks whether it is the first here to fail), ``bye``. Answers: ``go``,
``gone RANKS``, ``yes``, ``no``.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path

_LOOK = 0.1  # seconds between looks at ranks that have not come yet
_SURE = 5  # looks that must agree before a rank counts as gone: the launcher may still be starting it
_RANK_VARIABLES = (b"PMI_RANK", b"OMPI_COMM_WORLD_RANK", b"PMIX_RANK", b"SLURM_PROCID")
_SIGKILL_BIT = 1 << (signal.SIGKILL - 1)


def is_own(connection: socket.socket) -> bool:
    """Tell whether the process at the other end belongs to the same user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[1] == os.getuid()


def rank_of_process(pid: int) -> int | None:
    """Return the rank that a launcher gave a process, or None."""
    with suppress(OSError):
        entries = dict(line.partition(b"=")[::2] for line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
        told = next((entries[name] for name in _RANK_VARIABLES if name in entries), b"")
        return int(told) if told.isdigit() else None
    return None


def status_of(pid: int) -> dict[str, str]:
    """Return the lines of ``/proc/PID/status`` by name; none when the process is gone."""
    with suppress(OSError):
        return dict(
            line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
        )
    return {}


def launcher_of(pid: int) -> int:
    """Return the launcher's process: the first ancestor that is no rank (a shell between them is one, as it were)."""
    parent = int(status_of(pid).get("PPid", 0))
    return launcher_of(parent) if parent > 1 and rank_of_process(parent) is not None else parent


def is_ending(pid: int) -> bool:
    """Tell whether a process is dead, or about to be killed."""
    status = status_of(pid)
    pending = int(status.get("SigPnd", "0"), 16) | int(status.get("ShdPnd", "0"), 16)
    return not status or status.get("State", "Z")[0] in "ZX" or bool(pending & _SIGKILL_BIT)


def started_ranks(launcher: int) -> set[int]:
    """Return the ranks of a launcher's living children."""
    with suppress(OSError):
        children = map(int, Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split())
        found = {rank_of_process(pid) for pid in children if status_of(pid).get("State", "Z")[0] not in "ZX"}
        return {rank for rank in found if rank is not None}
    return set()


class Witness:
    """Listens to the ranks of a host.

    Parameters
    ----------
    listener : socket
    launcher : int
        Its process.
    expected : int
        How many ranks this host has.
    size : int
        How many there are on all hosts; 0 when unknown.
    """

    def __init__(self, listener: socket.socket, launcher: int, expected: int, size: int) -> None:
        self.launcher, self.expected, self.size = launcher, expected, size
        self.lines: dict[int, tuple[socket.socket, int, int]] = {}  # by descriptor: connection, rank, process
        self.waiting: dict[int, socket.socket] = {}  # connected, but not joined
        self.joined: set[int] = set()
        self.is_told = False  # somebody has said why all end
        self.listener = listener
        self.poll = select.poll()
        self.poll.register(listener, select.POLLIN)
        self.launcher_fd = os.pidfd_open(launcher)
        self.poll.register(self.launcher_fd, select.POLLIN)
        self.missed = 0

    def run(self) -> None:
        """Serve until the last rank has gone."""
        while True:
            is_complete = len(self.joined) >= self.expected
            for fd, _ in self.poll.poll(None if is_complete else 1000 * _LOOK):
                if fd == self.launcher_fd:
                    self.end_orphans()
                    return
                if fd == self.listener.fileno():
                    self.accept()
                else:
                    self.hear(fd)
            if self.joined and not self.lines:
                return
            if not is_complete and self.joined:
                self.look_for_the_missing()

    def accept(self) -> None:
        """Take a connection; what comes from it follows."""
        connection, _ = self.listener.accept()
        if is_own(connection):
            self.waiting[connection.fileno()] = connection
            self.poll.register(connection, select.POLLIN)

    def hear(self, fd: int) -> None:
        """Take what a rank says, or that it has gone."""
        connection = self.waiting.get(fd) or self.lines[fd][0]
        try:
            words = connection.recv(4096).decode().split()
        except OSError:
            words = []
        if not words:
            self.poll.unregister(fd)
            self.waiting.pop(fd, None)
            if (line := self.lines.pop(fd, None)) is not None and not self.is_told:
                self.tell_of_a_sudden_end(line[1], line[2])
            connection.close()
        elif words[0] == "join":
            self.lines[fd] = self.waiting.pop(fd), int(words[1]), int(words[2])
            self.joined.add(int(words[1]))
            if len(self.joined) == self.expected:
                self.answer("go")
        elif words[0] == "first":
            with suppress(OSError):
                connection.send(b"no" if self.is_told else b"yes")
            self.is_told = True
        elif words[0] == "bye":
            self.poll.unregister(fd)
            self.lines.pop(fd, None)
            connection.close()

    def answer(self, words: str) -> None:
        """Tell all ranks."""
        for connection, _, _ in self.lines.values():
            with suppress(OSError):
                connection.send(words.encode())

    def look_for_the_missing(self) -> None:
        """Notice a rank that has ended before it came."""
        alive = started_ranks(self.launcher) | self.joined
        self.missed = self.missed + 1 if len(alive) < self.expected else 0
        if self.missed == _SURE:
            lost = sorted(set(range(self.size)) - alive) if self.size == self.expected else []
            self.answer("gone " + " ".join(map(str, lost)))

    def tell_of_a_sudden_end(self, rank: int, pid: int) -> None:
        """Name a rank that ended without a word, unless the launcher has just killed all."""
        others = [pid for _, _, pid in self.lines.values()]
        is_killed_with_all = all(map(is_ending, others)) if others else self.size > self.expected
        self.is_told = True
        if is_killed_with_all:
            return
        where = f"process {pid} on {socket.gethostname()}"
        sys.stderr.write(
            f"[rank {rank}] Rank {rank} ({where}) ended without a word: killed (by kill -9, or by the system for want\n"
            f"[rank {rank}] of memory), crashed in compiled code, or ended by os._exit.\n"
        )

    def end_orphans(self) -> None:
        """Kill the ranks whose launcher is gone."""
        for _, _, pid in self.lines.values():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Serve on the socket that is open under the number given: ``witness.py FD LAUNCHER EXPECTED SIZE``."""
    number, launcher, expected, size = map(int, sys.argv[1:])
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    listener = socket.socket(fileno=number)
    with suppress(OSError):
        Witness(listener, launcher, expected, size).run()


if __name__ == "__main__":
    main()
