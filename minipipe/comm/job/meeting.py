"""The connection of a rank to the watchdog process, through which the ranks of a host
meet before MPI starts.

MPI waits without limit for a rank that has failed before, and holds the interpreter
meanwhile. So every rank first waits, in Python, until the watchdog process reports that
all ranks of this host have joined.
"""

from __future__ import annotations

import faulthandler
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from minipipe.comm.job import watchdog
from minipipe.comm.job.descriptors import raised
from minipipe.comm.job.host import launcher_socket
from minipipe.core.comm.host import LOCAL_SIZE, SIZE, launcher_number
from minipipe.core.comm.watch import Deadline
from minipipe.errors import LaunchError

STARTING = "MPI did not start on all hosts"
FINALISING = "All ranks have finished, but MPI did not finalise (is a rank stopped?)"
_ATTEMPTS = 100  # to reach a watchdog process that another rank is starting
_PAUSE = 0.05  # seconds between two attempts
_LOOK = 0.1  # seconds
_MOST_BYTES = 4000  # of a text; the watchdog process reads 4096 at once
_WELCOME = 5.0  # seconds until a watchdog process that has just been started answers


class Line:
    """The connection to the watchdog process of this host; without one, requests have
    no effect.

    Parameters
    ----------
    connection : socket, optional
    num_local : int
        The number of ranks on this host, if the launcher reports it; otherwise 0.
    """

    def __init__(
        self, connection: socket.socket | None = None, num_local: int = 0
    ) -> None:
        # not connected: every request fails
        self._connection = connection or socket.socket(socket.AF_UNIX)
        self._num_local = num_local
        self._asking = threading.Lock()  # the watchdog thread also sends requests

    def wait_for_all(self, timeout: float) -> None:
        """Return once all ranks of this host have joined.

        Raises
        ------
        LaunchError
            Code ``rank-lost``, if a rank has exited before; code ``timeout``.
        """
        if self._num_local < 2:
            return
        deadline = Deadline(timeout)
        while not deadline.poll():
            if _launcher_is_gone(os.environ):
                raise LaunchError(
                    "rank-lost",
                    "The launcher's process on this host has exited, so the ranks "
                    "cannot find each other. Start the job again.",
                )
            word, *ranks = self._hear(_LOOK) or ["nothing"]
            # all have joined, or the watchdog process is gone
            if word in ("go", "lost"):
                return
            if word == "gone":
                message = (
                    f"{_named(ranks)} exited before init_process_group(). Its own "
                    "message, if any, is above."
                )
                raise LaunchError("rank-lost", message)
        missing = self._asked("who")[1:]
        raise LaunchError(
            "timeout",
            f"{_named(missing)} did not call init_process_group() within "
            f"{timeout:g} s. Every rank must call it; to "
            "allow more time, raise timeout= or MINIPIPE_TIMEOUT.",
        )

    def _said(self, words: str) -> bool:
        """Send a request that has no answer; return whether a watchdog process is
        connected.
        """
        with suppress(OSError):
            self._connection.sendall(words.encode())
            return True
        return False

    def _hear(self, limit: float) -> list[str]:
        """Return the next message of the watchdog process; none within the limit, in
        seconds.
        """
        try:
            self._connection.settimeout(limit)
            return self._connection.recv(4096).decode().split() or ["lost"]
        except TimeoutError:
            return []
        except OSError:
            return ["lost"]

    def _asked(self, question: str) -> list[str]:
        """Return the answer to a request; empty without a watchdog process."""
        with self._asking:
            if self._said(question):
                while answer := self._hear(1.0):
                    if answer[0] in ("yes", "no", "missing", "lost"):
                        return answer
        return []

    @contextmanager
    def limited(self, timeout: float, what: str) -> Iterator[None]:
        """End this process, with a message, if this block takes longer than ``timeout``
        seconds.

        For starting and finalising MPI, which wait without limit for other ranks and
        hold the interpreter meanwhile.
        """
        has_limit = self._said(f"limit {timeout} {what}")
        if not has_limit:
            with suppress(Exception):  # stderr may not be a file
                seconds = min(timeout, threading.TIMEOUT_MAX)
                faulthandler.dump_traceback_later(seconds, exit=True)
        try:
            yield
        finally:
            if not has_limit:
                faulthandler.cancel_dump_traceback_later()
            self._said(" ".join(["free", *_shared_memory()]))

    def is_first_to_fail(self) -> bool:
        """Return whether no other rank of this host has reported why the job ends."""
        return self._asked("first") != ["no"]

    def say(self, text: str) -> None:
        """Let the watchdog process write lines for this rank; of a long text only the
        end, which has the cause.
        """
        end = text.encode(errors="replace")[-_MOST_BYTES:].decode(errors="ignore")
        self._said(f"say {end}")

    def survive(self, is_so: bool) -> None:
        """Set whether the other ranks continue when one is lost, so that a loss is not
        a failure of the job.
        """
        self._said(f"survive {'yes' if is_so else 'no'}")

    def describe(self, role: str) -> None:
        """Set the program's name for this rank, for a message about its sudden end."""
        self._said(f"describe {role}")

    def close(self) -> None:
        """Announce the end of this process, so that it counts as expected (the shutdown
        handshake).
        """
        with suppress(OSError):
            self._connection.sendall(b"bye")
            self._connection.settimeout(0.0)
            # unread data would reach the watchdog process as a broken connection
            while self._connection.recv(4096):
                pass
        self.forget()

    def forget(self) -> None:
        """Close this end only; a forked child must, whose parent keeps the
        connection.
        """
        self._connection.close()


def _shared_memory() -> set[str]:
    """Return the shared-memory files of MPICH's ranks on this host, 4 MB for each
    job.
    """
    # The rank checks this, not the watchdog process: when that checks, the rank may be
    # gone.
    with suppress(OSError):
        lines = Path("/proc/self/maps").read_text().splitlines()
        shared = [line for line in lines if f" {watchdog.SHARED}" in line]
        return {line.rpartition(" ")[2] for line in shared}
    return set()


def _named(ranks: list[str]) -> str:
    if ranks:
        return f"Rank {', '.join(ranks)}"
    return f"A rank of {socket.gethostname()}"


def _launcher_is_gone(environment: Mapping[str, str]) -> bool:
    """Return whether the other end of the socket that MPICH's and Slurm's launchers
    give each rank is closed.
    """
    number = launcher_socket(environment)
    poll = select.poll()
    if number is not None:
        poll.register(number, 0)  # errors are reported in any case
    return bool(poll.poll(0))


def line_to_watchdog(rank: int, size: int, environment: Mapping[str, str]) -> Line:
    """Connect to the watchdog process of this host, which the first rank starts; only
    Linux has one.
    """
    if not (sys.platform.startswith("linux") and hasattr(os, "pidfd_open")):
        return Line()
    if environment.get("PMI_FD", "").isdigit() and launcher_socket(environment) is None:
        raise not_a_rank(
            "The launcher's socket (PMI_FD) is not open in this process, as in a "
            "child of a rank"
        )
    num_local = launcher_number(environment, LOCAL_SIZE)
    launcher = watchdog.launcher_of(os.getpid())
    address = f"\0minipipe-{os.getuid()}-{launcher}"
    with suppress(OSError):
        for _ in range(_ATTEMPTS):
            connection = _connected(address)
            connection = connection or _started(address, launcher, num_local, size)
            if connection is not None:
                return _joined(connection, rank, num_local)
            time.sleep(_PAUSE)
    return Line()


def _joined(connection: socket.socket, rank: int, num_local: int) -> Line:
    line = Line(connection, num_local)
    connection.sendall(f"join {rank}".encode())
    word, *process = line._hear(_WELCOME) or ["nothing"]
    if word == "taken":
        line.forget()
        raise not_a_rank(
            f"Rank {rank} is process {process[0]}, and this is another one, such as "
            "a child of it"
        )
    return line


def not_a_rank(reason: str) -> LaunchError:
    """Return the error of a process that only inherited the variables of a rank."""
    variables = " ".join(name for name in (*SIZE, "PMIX_RANK") if name in os.environ)
    return LaunchError(
        "not-a-rank",
        f"{reason}. Only processes started by the launcher can call "
        "init_process_group(); to run another one alone, "
        f"remove from its environment: {variables}.",
    )


def _socket() -> socket.socket:
    """Return a socket under a high number.

    The kernel closes the files of a killed process from the highest number down. So the
    watchdog process learns of the end before the launcher, which kills the other ranks.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as low:
        return socket.socket(fileno=raised(low.fileno()))


def _connected(address: str) -> socket.socket | None:
    connection = _socket()
    with suppress(ConnectionRefusedError):
        connection.connect(address)
        if watchdog.is_own(connection):
            return connection
    connection.close()
    return None


def _started(
    address: str, launcher: int, num_local: int, size: int
) -> socket.socket | None:
    """Start the watchdog process, unless another rank has just done so."""
    with _socket() as listener:
        try:
            listener.bind(address)
        except OSError:
            return None
        listener.listen(socket.SOMAXCONN)
        numbers = map(str, (listener.fileno(), launcher, num_local, size))
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(watchdog.__file__)), *numbers],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            # the launcher kills the ranks, not the watchdog process
            start_new_session=True,
        )
        process.returncode = 0  # it is not waited for
    return _connected(address)
