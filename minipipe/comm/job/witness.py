"""A witness: a small process on each host, which outlives the ranks there. Started as a script; needs no package.

A rank that is killed cannot say so, and the launcher then kills all others within milliseconds: nobody is left to tell
which one was first. When the launcher's own process on a host is killed, its ranks would live on. And a rank that fails
before MPI starts leaves the others waiting inside MPI, where no Python runs. The witness sees it all:

* it waits until every rank of the host has come, and tells them if one has ended before;
* a connection that closes without a goodbye was a rank's that ended without a word; the witness names it;
* a rank that starts or finalises MPI for too long is ended;
* when the launcher's process is gone, the witness kills the ranks;
* processes that a rank has started outlive it, and the launcher waits for those that share its output: the witness ends
  them, unless the rank said goodbye;
* memory that the ranks of a host shared outlives ranks that are killed: the witness deletes it at the end.

It listens on a socket of the kernel's own name space, so no file is left behind, and ends when the last rank has.
Linux only: elsewhere ranks do without.

Words of a rank: ``join RANK``, ``limit SECONDS WHAT`` and ``free FILES``, ``first`` (asks whether it is the first
here to fail), ``say TEXT`` (where its own stderr cannot be written), ``who`` (has not come), ``survive`` and
``together`` (whether others go on when one is lost), ``bye``. Answers: ``welcome``, ``taken PROCESS`` (another process
is this rank), ``go``, ``gone RANKS``, ``yes``, ``no``, ``missing RANKS``.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_LOOK = 0.1  # seconds between looks at ranks that have not come yet
_SURE = 5  # looks that must agree before a rank counts as gone: the launcher may still be starting it
_LONGEST_GAP = 0.5  # seconds between two looks that count; whatever is longer, this process stood still
_RANK_VARIABLES = (b"PMI_RANK", b"OMPI_COMM_WORLD_RANK", b"PMIX_RANK")
_CRASHES = (signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV, signal.SIGSYS)
CLOSED = "it closed all its files (os.closerange?), and the launcher ends all when its socket is among them"
SHARED = "/dev/shm/mpich_shm_"
_SIGKILL_BIT = 1 << (signal.SIGKILL - 1)


def credentials_of(connection: socket.socket) -> tuple[int, int]:
    """Return process and user at the other end."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", told)[:2]


def is_own(connection: socket.socket) -> bool:
    """Tell whether the process at the other end belongs to the same user."""
    return credentials_of(connection)[1] == os.getuid()


def rank_of_process(pid: int) -> int | None:
    """Return the rank that a launcher gave a process, or None."""
    with suppress(OSError):
        entries = dict(line.partition(b"=")[::2] for line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
        told = next((entries[name] for name in _RANK_VARIABLES if name in entries), b"")
        if not told and entries.get(b"SLURM_STEP_NUM_TASKS", b"1") != b"1":  # not the one of a shell inside salloc
            told = entries.get(b"SLURM_PROCID", b"")
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


def exit_status_of(pid: int, pidfd: int) -> int | None:
    """Return how a process has ended, as ``os.waitpid`` says to its parent; None where the kernel does not tell."""
    with suppress(OSError):
        for _ in range(50):  # its files are closed; it will be dead in a moment
            state, *_, status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if state in "ZX":
                return int(status)
            time.sleep(0.02)
    size, exit_code_at, asks_for_it = 64, 60, 1 << 3  # struct pidfd_info and PIDFD_GET_INFO of linux/pidfd.h
    info = bytearray(size)
    struct.pack_into("Q", info, 0, asks_for_it)
    with suppress(OSError):
        fcntl.ioctl(pidfd, 3 << 30 | size << 16 | 0xFF << 8 | 11, info)  # of one that is gone; since Linux 6.15
        if struct.unpack_from("Q", info)[0] & asks_for_it:
            return int(struct.unpack_from("i", info, exit_code_at)[0])
    return None


def is_passed_on(status: int | None) -> bool:
    """Tell whether a signal has ended a process that is no crash: sent to mpirun, one goes to all ranks."""
    return os.WIFSIGNALED(status or 0) and os.WTERMSIG(status or 0) not in (*_CRASHES, signal.SIGKILL)


def ending_of(status: int | None) -> str:
    """Return, in words, how a process has ended."""
    if status is None:
        return "killed (kill -9, or the system for want of memory), crashed, or ended by os._exit"
    if not os.WIFSIGNALED(status):
        return f"exit code {os.WEXITSTATUS(status)}, by os._exit or the like"
    if (number := os.WTERMSIG(status)) == signal.SIGKILL:
        return "killed by SIGKILL (kill -9, or the system for want of memory)"
    name = f"signal {number}: {signal.strsignal(number)}"
    return f"ended by {name}, as launchers and batch systems do" if is_passed_on(status) else f"it crashed ({name})"


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


def pipes_of(pid: int, numbers: Iterable[str] = ()) -> set[str]:
    """Return the pipes that a process has open, of all descriptors or of some; none of a process that is gone."""
    found, folder = set(), f"/proc/{pid}/fd"
    with suppress(OSError):
        for number in numbers or os.listdir(folder):
            with suppress(OSError):
                found.add(os.readlink(f"{folder}/{number}"))
    return {name for name in found if name.startswith("pipe:")}


class Rank:
    """A rank that has joined: its connection, number, process, and how long it has been inside of MPI, and may be."""

    def __init__(self, connection: socket.socket, rank: int) -> None:
        self.connection, self.rank, self.pid = connection, rank, credentials_of(connection)[0]
        self.pidfd, self.group = os.pidfd_open(self.pid), os.getpgid(self.pid)
        self.output = pipes_of(self.pid, "12")
        self.limited: tuple[float, float, str] | None = None

    def say(self, words: str) -> None:
        """Write lines to stderr in the name of this rank."""
        sys.stderr.write("".join(f"[rank {self.rank}] {line}\n" for line in words.splitlines()))

    def is_late(self, seconds: float) -> bool:
        """Count seconds, but not while the rank is stopped; tell whether it has passed its limit."""
        if self.limited is None or status_of(self.pid).get("State", "Z")[0] in "Tt":
            return False
        spent, limit, what = self.limited
        self.limited = spent + seconds, limit, what
        return spent > limit


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
        self.lines: dict[int, Rank] = {}  # by descriptor
        self.waiting: dict[int, socket.socket] = {}  # connected, but not joined
        self.shared_memory: set[str] = set()
        self.left_open: set[tuple[int, str]] = set()  # rank and pipe, of ranks that ended without a goodbye
        self.joined: dict[int, int] = {}  # the processes of ranks
        self.is_told = False  # somebody has said why all end
        self.survives = False  # whether the loss of a rank does not end the others
        self.listener = listener
        self.poll = select.epoll()  # which tells events in the order in which they happened, as poll does not
        self.poll.register(listener, select.EPOLLIN)
        self.launcher_fd, self.launcher_group = os.pidfd_open(launcher), os.getpgid(launcher)
        self.poll.register(self.launcher_fd, select.EPOLLIN)
        self.missed, self.looked_at = 0, time.monotonic()

    def run(self) -> None:
        """Serve until the last rank has gone."""
        while True:
            is_complete = len(self.joined) >= self.expected
            is_quiet = is_complete and not any(rank.limited for rank in self.lines.values())
            for fd, _ in self.poll.poll(None if is_quiet else _LOOK):
                if fd == self.launcher_fd:
                    return self.end_orphans()
                if fd == self.listener.fileno():
                    self.accept()
                else:
                    self.hear(fd)
            if self.joined and not self.lines:
                return
            seconds, self.looked_at = self.since_last_look(is_quiet)
            if seconds and not is_complete and self.joined:
                self.look_for_the_missing()
            if seconds:
                self.end_the_late(seconds)

    def since_last_look(self, is_quiet: bool) -> tuple[float, float]:
        """Return how many seconds count, 0 where it is too early for another look, and when the last one was."""
        now = time.monotonic()
        if is_quiet or now < self.looked_at + _LOOK:
            return 0.0, now if is_quiet else self.looked_at
        return min(now - self.looked_at, _LONGEST_GAP), now

    def accept(self) -> None:
        """Take a connection; what comes from it follows."""
        connection, _ = self.listener.accept()
        if is_own(connection):
            self.waiting[connection.fileno()] = connection
            self.poll.register(connection, select.EPOLLIN)

    def hear(self, fd: int) -> None:
        """Take what a rank says, or that it has gone."""
        rank = self.lines.get(fd)
        connection = rank.connection if rank else self.waiting[fd]
        words = [""]
        with suppress(OSError):
            words = connection.recv(4096).decode().split(" ")
        if words[0] == "join" and int(words[1]) in self.joined:
            self.answer(f"taken {self.joined[int(words[1])]}", connection)
        elif words[0] == "join":
            with suppress(OSError):  # it is gone already
                self.lines[fd] = Rank(connection, int(words[1]))
            self.answer("welcome", self.waiting.pop(fd))
            self.joined[int(words[1])] = credentials_of(connection)[0]
            if len(self.joined) == self.expected:
                self.answer("go")
        elif words[0] == "limit" and rank:
            rank.limited = 0.0, float(words[1]), " ".join(words[2:])
        elif words[0] == "free" and rank:  # MPI has started
            rank.limited = None
            self.shared_memory |= {path for path in words[1:] if path.startswith(SHARED)}
        elif words[0] == "say" and rank:
            rank.say(" ".join(words[1:]))
        elif words[0] in ("survive", "together"):
            self.survives = words[0] == "survive"
        elif words[0] == "who":
            self.answer(self.named("missing", set(self.joined)), connection)
        elif words[0] == "first":
            self.answer("no" if self.is_told else "yes", connection)
            self.is_told = True
        else:
            self.waiting.pop(fd, None)
            self.lines.pop(fd, None)
            if words == [""] and rank:  # without a goodbye
                if not self.is_told:
                    self.tell_of_a_sudden_end(rank)
                self.end_children(rank)
            connection.close()
            if rank:
                os.close(rank.pidfd)

    def answer(self, words: str, *connections: socket.socket) -> None:
        """Tell some, or all ranks."""
        for connection in connections or [rank.connection for rank in self.lines.values()]:
            with suppress(OSError):
                connection.send(words.encode())

    def look_for_the_missing(self) -> None:
        """Notice a rank that has ended before it came."""
        alive = started_ranks(self.launcher) | set(self.joined)
        self.missed = self.missed + 1 if len(alive) < self.expected else 0
        if self.missed == _SURE:
            self.answer(self.named("gone", alive))

    def named(self, word: str, others: set[int]) -> str:
        """Return a word, and the ranks of this host except some, where one knows which they are."""
        is_known = self.size == self.expected
        return " ".join([word, *(str(rank) for rank in range(self.size) if is_known and rank not in others)])

    def tell_of_a_sudden_end(self, rank: Rank) -> None:
        """Name the first rank that ended without a word; the launcher has killed the others meanwhile."""
        # The kernel takes the memory of a process that ends before its files.
        self.is_told, has_memory = not self.survives, "VmSize" in status_of(rank.pid)
        is_with_all = self.size > self.expected and all(is_ending(other.pid) for other in self.lines.values())
        is_launcher_gone = bool(select.select([self.launcher_fd], [], [], _LOOK)[0])
        status = exit_status_of(rank.pid, rank.pidfd)
        is_killed = status in (None, signal.SIGKILL, signal.SIGTERM)
        # MPI itself may crash where a rank of another host is lost.
        is_elsewhere = is_with_all and (is_killed or os.WIFSIGNALED(status or 0))
        is_before = len(self.joined) < self.expected and is_killed  # one that had not come was first
        if is_launcher_gone or is_elsewhere or is_before:
            return  # mpirun has been killed, or another rank was probably first
        ending, where = CLOSED if has_memory else ending_of(status), f"process {rank.pid} on {socket.gethostname()}"
        others = self.lines.values() if is_passed_on(status) and not self.survives else ()
        if any(is_passed_on(exit_status_of(other.pid, other.pidfd)) for other in others):
            rank.say(f"No rank has failed: several of them were {ending}.")
        else:
            rank.say(f"Rank {rank.rank} ({where}) ended without a word: {ending}.")

    def end_the_late(self, seconds: float) -> None:
        """End a rank that waits too long inside of MPI; it cannot be interrupted there."""
        for rank in self.lines.values():
            if rank.is_late(seconds) and rank.limited:
                if not self.is_told:
                    rank.say(f"{rank.limited[2]} within {rank.limited[1]:g} s.")
                self.is_told = True
                os.kill(rank.pid, signal.SIGKILL)

    def end_children(self, rank: Rank) -> None:
        """Kill the group that a rank leaves behind; what else has its output open is ended with the job."""
        self.left_open |= {(rank.rank, pipe) for pipe in rank.output - pipes_of(self.launcher, "12")}
        exit_status_of(rank.pid, rank.pidfd)  # it may still be ending
        if rank.group not in {self.launcher_group, *(other.group for other in self.lines.values())}:
            with suppress(OSError):
                os.killpg(rank.group, signal.SIGKILL)

    def tidy_up(self) -> None:
        """Once all ranks are gone, end what only killed ones leave behind: memory, and what keeps their output open.

        The launcher reads that to the end. Launchers give each rank pipes of its own, and these only descendants have.
        """
        for pid in map(int, filter(str.isdigit, os.listdir("/proc") if self.left_open else ())):
            if {(rank_of_process(pid), pipe) for pipe in pipes_of(pid)} & self.left_open and pid != os.getpid():
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        for path in self.shared_memory:
            with suppress(OSError):
                os.unlink(path)

    def end_orphans(self) -> None:
        """Kill the ranks whose launcher is gone, and their children."""
        orphans, self.lines = self.lines, {}
        for rank in orphans.values():
            with suppress(OSError):
                os.kill(rank.pid, signal.SIGKILL)
            self.end_children(rank)


def main() -> None:
    """Serve on the socket that is open under the number given: ``witness.py FD LAUNCHER EXPECTED SIZE``."""
    number, launcher, expected, size = map(int, sys.argv[1:])
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a rank takes two numbers
    with suppress(OSError):
        witness = Witness(socket.socket(fileno=number), launcher, expected, size)
        witness.run()
        witness.tidy_up()


if __name__ == "__main__":
    main()
