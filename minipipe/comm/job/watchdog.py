"""The watchdog process: a small process on each host that outlives the
ranks there.

The ranks cannot report three failures. A killed rank sends nothing, and the launcher
kills the others within milliseconds. If the launcher's own process is killed, its ranks
live on. If a rank fails before MPI starts, the others block inside MPI, where no Python
runs. So the watchdog process

* waits until every rank of the host has joined, and tells the others if one has exited
  before;
* names a rank whose connection closes without a shutdown handshake, with how its
  process ended;
* ends a rank that takes too long to start or finalise MPI;
* kills the ranks when the launcher's process is gone;
* ends processes that a killed rank has started: the launcher waits for those that share
  its output;
* deletes the shared memory of ranks that were killed.

It listens on an abstract socket, so no file is left behind, and exits with the last
rank. It runs as a script by its path with ``python -I -S``, so it imports only the
standard library. Linux only: on other systems ranks do without.

A rank first sends ``join RANK``; its other requests are the methods that ``_REQUESTS``
lists. The answers: ``welcome``; ``taken PROCESS`` (another process is this rank);
``go`` (all have joined); ``gone RANKS``; ``missing RANKS``; ``yes``; ``no``.
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

_LOOK = 0.1  # seconds between checks of ranks that have not joined yet
# checks that must agree before a rank counts as gone: the launcher may still be
# starting it
_SURE = 5
# seconds between two checks that count; in a longer gap this process was suspended
_LONGEST_GAP = 0.5
_RANK_VARIABLES = (b"PMI_RANK", b"OMPI_COMM_WORLD_RANK", b"PMIX_RANK")
_MOST_DIGITS = 18  # of a rank: int() raises beyond 4300
_FROM_OUTSIDE = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
SHARED = "/dev/shm/mpich_shm_"
# of a rank: methods of the watchdog
_REQUESTS = ("limit", "free", "say", "survive", "describe", "who", "first")
_SIGKILL_BIT = 1 << (signal.SIGKILL - 1)


# -- processes -------------------------------------------------------------------------


def credentials_of(connection: socket.socket) -> tuple[int, int]:
    """Return process and user at the other end."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return struct.unpack("3i", credentials)[:2]


def is_own(connection: socket.socket) -> bool:
    """Return whether the process at the other end belongs to the same user."""
    return credentials_of(connection)[1] == os.getuid()


def rank_of_process(pid: int) -> int | None:
    """Return the rank that a launcher gave a process, or None."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        entries = dict(line.partition(b"=")[::2] for line in lines)
        rank = next((entries[name] for name in _RANK_VARIABLES if name in entries), b"")
        # not the one of a shell inside salloc
        if not rank and entries.get(b"SLURM_STEP_NUM_TASKS", b"1") != b"1":
            rank = entries.get(b"SLURM_PROCID", b"")
        if rank.isdigit() and len(rank) <= _MOST_DIGITS:
            return int(rank)
    return None


def status_of(pid: int) -> dict[str, str]:
    """Return the lines of ``/proc/PID/status`` by name; none when the process is
    gone.
    """
    with suppress(OSError):
        # a name may be any bytes
        lines = Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
        return dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return {}


def process_state(pid: int) -> str:
    """Return the kernel's letter for the state of a process, such as ``T`` for stopped;
    empty when it is gone.
    """
    return status_of(pid).get("State", "")[:1]


def is_dead(pid: int) -> bool:
    """Return whether a process has ended, whether or not its parent has waited for
    it.
    """
    return process_state(pid) in ("", "Z", "X")


def is_ending(pid: int) -> bool:
    """Return whether a process has ended, or has a SIGKILL pending."""
    status = status_of(pid)
    pending = int(status.get("SigPnd", "0"), 16) | int(status.get("ShdPnd", "0"), 16)
    return is_dead(pid) or bool(pending & _SIGKILL_BIT)


def launcher_of(pid: int) -> int:
    """Return the launcher's process: the first ancestor that is not a rank (a shell
    between them counts as one).
    """
    parent = int(status_of(pid).get("PPid", 0))
    if parent > 1 and rank_of_process(parent) is not None:
        return launcher_of(parent)
    return parent


def started_ranks(launcher: int) -> set[int]:
    """Return the ranks of a launcher's living children."""
    with suppress(OSError):
        file = Path(f"/proc/{launcher}/task/{launcher}/children")
        alive = [pid for pid in map(int, file.read_text().split()) if not is_dead(pid)]
        return {rank for rank in map(rank_of_process, alive) if rank is not None}
    return set()


def pipes_of(pid: int, numbers: Iterable[str] = ()) -> set[str]:
    """Return the pipes among the open files of a process, or among some of them; none
    when it is gone.
    """
    found = set()
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for number in numbers or os.listdir(folder):
            with suppress(OSError):
                found.add(os.readlink(f"{folder}/{number}"))
    return {name for name in found if name.startswith("pipe:")}


# -- how a process ended ---------------------------------------------------------------


def returncode_of(pid: int, pidfd: int) -> int | None:
    """Return the exit code of a process, or minus the signal that ended it; None if the
    kernel does not report it.
    """
    with suppress(OSError):
        for _ in range(50):  # its files are closed; it will be dead in a moment
            stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
            state, *_, status = stat.rpartition(")")[2].split()
            if state in "ZX":
                return os.waitstatus_to_exitcode(int(status))
            time.sleep(0.02)
    # struct pidfd_info and PIDFD_GET_INFO of linux/pidfd.h
    size = 64
    exit_code_at = 60
    asks_for_it = 1 << 3
    info = bytearray(size)
    struct.pack_into("Q", info, 0, asks_for_it)
    # for a process that is gone the kernel reports it only since Linux 6.15
    with suppress(OSError):
        fcntl.ioctl(pidfd, 3 << 30 | size << 16 | 0xFF << 8 | 11, info)
        if struct.unpack_from("Q", info)[0] & asks_for_it:
            (status,) = struct.unpack_from("i", info, exit_code_at)
            return os.waitstatus_to_exitcode(status)
    return None


def ending_of(code: int | None) -> str:
    """Describe how a process ended."""
    if code is None:
        return "killed (kill -9 or the OOM killer), crashed, or exited by os._exit"
    if code >= 0:
        return f"exit code {code}, by os._exit or the like"
    if -code == signal.SIGKILL:
        return "killed by SIGKILL (kill -9 or the OOM killer)"
    return f"ended by signal {-code}: {signal.strsignal(-code)}"


# -- the watchdog ----------------------------------------------------------------------


class Rank:
    """A rank that has joined.

    Attributes
    ----------
    output : set of str
        The pipes of its stdout and stderr.
    limited : tuple of (float, float, str) or None
        Seconds spent inside MPI, how many it may spend, and the message when they are
        exceeded.
    role : str
        The program's name for it, such as "replica 1, stage 0"; empty if it has none.
    """

    def __init__(self, connection: socket.socket, rank: int) -> None:
        self.connection = connection
        self.rank = rank
        self.pid = credentials_of(connection)[0]
        self.pidfd, self.group = os.pidfd_open(self.pid), os.getpgid(self.pid)
        self.output = pipes_of(self.pid, "12")
        self.limited: tuple[float, float, str] | None = None
        self.role = ""

    def say(self, words: str) -> None:
        """Write lines to stderr in the name of this rank."""
        lines = [f"[rank {self.rank}] {line}\n" for line in words.splitlines()]
        sys.stderr.write("".join(lines))

    def is_late(self, seconds: float) -> bool:
        """Count seconds, except while the rank is stopped; return whether its limit is
        exceeded.
        """
        if self.limited is None or process_state(self.pid) in ("T", "t"):
            return False
        spent, limit, what = self.limited
        self.limited = spent + seconds, limit, what
        return spent > limit


class Watchdog:
    """Listens to the ranks of a host.

    Parameters
    ----------
    listener : socket
    launcher : int
        The launcher's process on this host.
    expected : int
        The number of ranks on this host.
    size : int
        The number of ranks on all hosts; 0 when unknown.
    """

    def __init__(
        self, listener: socket.socket, launcher: int, expected: int, size: int
    ) -> None:
        self.launcher = launcher
        self.expected = expected
        self.size = size
        self.lines: dict[int, Rank] = {}  # by descriptor
        self.waiting: dict[int, socket.socket] = {}  # connected, but not joined
        self.shared_memory: set[str] = set()
        # rank and pipe, of ranks that ended without a shutdown handshake
        self.left_open: set[tuple[int, str]] = set()
        self.joined: dict[int, int] = {}  # the processes of ranks
        self.is_explained = False  # some rank has reported why the job ends
        self.survives = False  # whether the loss of a rank does not end the others
        self.listener = listener
        # which returns events in the order in which they happened, unlike poll
        self.poll = select.epoll()
        self.poll.register(listener, select.EPOLLIN)
        self.launcher_fd = os.pidfd_open(launcher)
        self.launcher_group = os.getpgid(launcher)
        self.poll.register(self.launcher_fd, select.EPOLLIN)
        self.missed = 0
        self.looked_at = time.monotonic()

    def run(self) -> None:
        """Serve until the last rank has gone."""
        while True:
            is_complete = len(self.joined) >= self.expected
            is_inside = any(rank.limited for rank in self.lines.values())
            is_quiet = is_complete and not is_inside
            for fd, _ in self.poll.poll(None if is_quiet else _LOOK):
                if fd == self.launcher_fd:
                    return self.end_orphans()
                if fd == self.listener.fileno():
                    self.accept()
                else:
                    self.hear(fd)
            if self.joined and not self.lines:
                return
            gap = time.monotonic() - self.looked_at
            if is_quiet or gap >= _LOOK:
                self.looked_at += gap
                if self.joined and not is_complete:
                    self.look_for_the_missing()
                # none was inside MPI while it was quiet
                self.end_the_late(0.0 if is_quiet else min(gap, _LONGEST_GAP))

    def accept(self) -> None:
        """Accept a connection from a process of the same user."""
        connection, _ = self.listener.accept()
        if is_own(connection):
            self.waiting[connection.fileno()] = connection
            self.poll.register(connection, select.EPOLLIN)

    def hear(self, fd: int) -> None:
        """Handle a request of a rank, or the end of its connection."""
        rank = self.lines.get(fd)
        connection = rank.connection if rank else self.waiting[fd]
        word = ""
        given = []
        with suppress(OSError):
            word, *given = connection.recv(4096).decode().split(" ")
        if word == "join" and not rank:
            self.join(connection, int(given[0]))
        elif word in _REQUESTS and rank:
            getattr(self, word)(rank, *given)
        else:
            self.part(fd, is_announced=word == "bye")

    def answer(self, words: str, *connections: socket.socket) -> None:
        """Send a message to some ranks, or to all."""
        everyone = [rank.connection for rank in self.lines.values()]
        for connection in connections or everyone:
            with suppress(OSError):
                connection.send(words.encode())

    def named(self, word: str, others: set[int]) -> str:
        """Return a keyword and the ranks of this host that are not among the others, if
        these are known.
        """
        is_known = self.size == self.expected
        ranks = [rank for rank in range(self.size) if is_known and rank not in others]
        return " ".join([word, *map(str, ranks)])

    # -- requests ----------------------------------------------------------------------

    def join(self, connection: socket.socket, number: int) -> None:
        """``join RANK``: this process is a rank."""
        if number in self.joined:
            return self.answer(f"taken {self.joined[number]}", connection)
        with suppress(OSError):  # it is gone already
            self.lines[connection.fileno()] = Rank(connection, number)
        self.answer("welcome", self.waiting.pop(connection.fileno()))
        self.joined[number] = credentials_of(connection)[0]
        if len(self.joined) == self.expected:
            self.answer("go")

    def limit(self, rank: Rank, seconds: str, *what: str) -> None:
        """``limit SECONDS WHAT``: the rank enters a blocking call of MPI."""
        rank.limited = 0.0, float(seconds), " ".join(what)

    def free(self, rank: Rank, *files: str) -> None:
        """``free FILES``: it has returned from there; MPI shares memory in these
        files.
        """
        rank.limited = None
        self.shared_memory |= {path for path in files if path.startswith(SHARED)}

    def say(self, rank: Rank, *words: str) -> None:
        """``say TEXT``: for a rank that cannot write to its own stderr."""
        rank.say(" ".join(words))

    def survive(self, rank: Rank, answer: str) -> None:
        """``survive yes|no``: do the other ranks continue when one is lost?"""
        self.survives = answer == "yes"

    def describe(self, rank: Rank, *words: str) -> None:
        """``describe ROLE``: the program's name for the rank."""
        rank.role = " ".join(words)

    def who(self, rank: Rank) -> None:
        """``who``: which ranks have not joined?"""
        self.answer(self.named("missing", set(self.joined)), rank.connection)

    def first(self, rank: Rank) -> None:
        """``first``: is this rank the first of the host to fail?"""
        self.answer("no" if self.is_explained else "yes", rank.connection)
        self.is_explained = True

    # -- ranks that end ----------------------------------------------------------------

    def part(self, fd: int, is_announced: bool) -> None:
        """Close a connection. A rank without a shutdown handshake was killed, crashed
        or left Python.
        """
        rank = self.lines.pop(fd, None)
        if rank is None:
            return self.waiting.pop(fd).close()
        if not is_announced:
            if not self.is_explained:
                self.explain_sudden_end(rank)
            self.end_children(rank)
        rank.connection.close()
        os.close(rank.pidfd)

    def look_for_the_missing(self) -> None:
        """Notice a rank that exited before it joined."""
        alive = started_ranks(self.launcher) | set(self.joined)
        if len(alive) >= self.expected:
            self.missed = 0
            return
        self.missed += 1
        if self.missed == _SURE:
            self.answer(self.named("gone", alive))

    def explain_sudden_end(self, rank: Rank) -> None:
        """Name the first rank that ended without an error message; by now the launcher
        has killed the others.
        """
        # The kernel takes the memory of a process that ends before its files.
        self.is_explained = not self.survives
        has_memory = "VmSize" in status_of(rank.pid)
        are_ending = all(is_ending(other.pid) for other in self.lines.values())
        is_with_all = self.size > self.expected and are_ending
        is_launcher_gone = bool(select.select([self.launcher_fd], [], [], _LOOK)[0])
        code = returncode_of(rank.pid, rank.pidfd)
        # MPI itself may crash if a rank of another host is lost.
        is_elsewhere = is_with_all and (code is None or code < 0)
        is_killed = code in (None, -signal.SIGKILL, -signal.SIGTERM)
        # a rank that had not joined was first
        is_before = len(self.joined) < self.expected and is_killed
        if is_launcher_gone or is_elsewhere or is_before:
            return  # mpirun has been killed, or another rank was probably first
        role = f"{rank.role}; " * bool(rank.role)
        ending = ending_of(code)
        who = f"{rank.rank} ({role}process {rank.pid} on {socket.gethostname()})"
        if has_memory:
            ending = (
                "it closed all its files (os.closerange?), also the launcher's socket, "
                "so the launcher ended the job"
            )
        # also of the others, but there the launcher's SIGKILL may overtake it
        elif -(code or 0) in _FROM_OUTSIDE:
            return rank.say(
                f"No rank has failed: rank {who} was {ending}, as sent by launchers "
                "and batch systems."
            )
        elif self.size > self.expected and (code or 0) < 0 and not is_killed:
            # The rank itself crashed, or MPI did in it: this host cannot tell which.
            return rank.say(
                f"Rank {who} crashed: {ending}; or a rank of another host was lost "
                "first, after which MPI may crash here."
            )
        rank.say(f"Rank {who} exited without an error message: {ending}.")

    def end_the_late(self, seconds: float) -> None:
        """Kill a rank that has been inside MPI for too long; it cannot be interrupted
        there.
        """
        for rank in self.lines.values():
            if rank.is_late(seconds) and rank.limited:
                if not self.is_explained:
                    rank.say(f"{rank.limited[2]} within {rank.limited[1]:g} s.")
                self.is_explained = True
                os.kill(rank.pid, signal.SIGKILL)

    def end_children(self, rank: Rank) -> None:
        """Kill the process group of a lost rank; other processes that hold its output
        open end with the job.
        """
        own = rank.output - pipes_of(self.launcher, "12")
        self.left_open |= {(rank.rank, pipe) for pipe in own}
        returncode_of(rank.pid, rank.pidfd)  # waits: it may still be ending
        others = {other.group for other in self.lines.values()}
        if rank.group not in {self.launcher_group, *others}:
            with suppress(OSError):
                os.killpg(rank.group, signal.SIGKILL)

    def tidy_up(self) -> None:
        """After the last rank, clean up behind killed ones: processes that hold their
        output open, and shared memory.

        The launcher reads the output to its end. It gives each rank separate pipes,
        which only descendants inherit.
        """
        if self.left_open:
            self.end_holders()
        for path in self.shared_memory:
            with suppress(OSError):
                os.unlink(path)

    def end_holders(self) -> None:
        """Kill the processes that hold the output of lost ranks open."""
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            held = {(rank_of_process(pid), pipe) for pipe in pipes_of(pid)}
            if held & self.left_open and pid != os.getpid():
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    def end_orphans(self) -> None:
        """Kill the ranks whose launcher is gone, and their children."""
        orphans = self.lines
        self.lines = {}
        for rank in orphans.values():
            with suppress(OSError):
                os.kill(rank.pid, signal.SIGKILL)
            self.end_children(rank)


def main() -> None:
    """Serve on the socket that is open under the descriptor FD: ``watchdog.py FD
    LAUNCHER EXPECTED SIZE``.
    """
    number, launcher, expected, size = map(int, sys.argv[1:])
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a rank takes two numbers
    with suppress(OSError):
        watchdog = Watchdog(socket.socket(fileno=number), launcher, expected, size)
        watchdog.run()
        watchdog.tidy_up()


if __name__ == "__main__":
    main()
