"""The files that a rank keeps open until it ends, and through which its forked children
end with it.

A child of ``os.fork`` or ``multiprocessing`` inherits every descriptor of its rank. The
launcher waits until all copies of the rank's socket are closed, so a child that
outlives the rank would keep the whole job alive. Therefore a child closes the
launcher's socket, and the kernel kills it when the rank ends for any reason::

    rank ── writing end ── pipe ── reading end ── child
            closed with the rank   opened and owned by the child: SIGKILL once it has no writer

``PR_SET_PDEATHSIG`` is no substitute. It acts when the *thread* that forked ends, and
persists after ``exec``, so it would also kill a child of ``subprocess`` that has a
``preexec_fn``.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import sys
from contextlib import suppress

# descriptors: above the program's; the distance between two kinds of the job's own
_HIGH = 1024
_ROOM = 16


def raised(low: int, below: int = _ROOM) -> int:
    """Duplicate a descriptor to a high number, ``below`` the highest.

    So it does not become a closed stdout, and survives a program that closes "all"
    files up to 255.
    """
    high = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _HIGH)
    return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, high - below)


class Descriptors:
    """The launcher's socket and a pipe for children, held open by a rank.

    Parameters
    ----------
    launcher : int or None
        The launcher's socket.
    """

    def __init__(self, launcher: int | None) -> None:
        # If the program closed the only copy, the launcher would assume that the rank
        # has died and kill all ranks. The second copy has a lower number than the
        # connection to the watchdog process: the kernel closes files from the highest number
        # down, and that process must notice the end first.
        self._launcher: list[int] = []
        if launcher is not None:
            self._launcher = [launcher, raised(launcher, 2 * _ROOM)]
        low = os.pipe()
        self._reading, self._writing = map(raised, low)
        for end in low:
            os.close(end)

    def restore(self) -> None:
        """Reopen the launcher's socket if the program has closed it: MPI needs it to
        finalise.
        """
        if self._launcher:
            try:
                os.fstat(self._launcher[0])
            except OSError:
                os.dup2(self._launcher[1], self._launcher[0])

    def leave_to_the_rank(self) -> None:
        """In a forked child: close the launcher's socket, and be killed when the rank
        ends.
        """
        for number in (self._writing, *self._launcher):
            with suppress(OSError):  # the program has closed it
                os.close(number)
        if sys.platform != "linux":
            return
        with suppress(OSError):
            own = os.open(f"/proc/self/fd/{self._reading}", os.O_RDONLY | os.O_NONBLOCK)
            # a separate open file: the owner is one of its properties
            os.dup2(own, self._reading, inheritable=False)
            os.close(own)
            fcntl.fcntl(self._reading, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(self._reading, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(self._reading, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
            # raises BlockingIOError, an OSError, while the rank lives
            os.read(self._reading, 1)
            os._exit(1)
