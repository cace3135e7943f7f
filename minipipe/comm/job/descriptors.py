"""What a rank keeps open until it ends, and how its forked children end with it.

A child that ``os.fork`` or ``multiprocessing`` makes has every descriptor of its rank. The launcher waits until all
ends of its lines to the rank are closed, so a child that outlives the rank keeps the whole job alive. Therefore a child
closes the launcher's socket, and the kernel kills it when the rank ends, in whatever way::

    rank ── writing end ── pipe ── reading end ── child
            closed with the rank   opened by the child for itself, and owned by it: SIGKILL when nobody can write

``PR_SET_PDEATHSIG`` would do other things: it acts when the *thread* ends that forked, and stays after ``exec``, so it
would also kill a child of ``subprocess`` that has a ``preexec_fn``.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import sys
from contextlib import suppress

_HIGH, _ROOM = 1024, 16  # numbers of open files: above those of others; some room for more of this kind


def raised(low: int, below: int = _ROOM) -> int:
    """Return another descriptor of an open file, under a high number, ``below`` the highest.

    There it takes no place of stdout, where that is closed, and a program that closes "all" files, up to 255, keeps it.
    """
    high = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _HIGH)
    return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, high - below)


class Descriptors:
    """The launcher's socket and a pipe for children, held open by a rank.

    Parameters
    ----------
    launcher : int or None
        The launcher's socket, as the rank was given it.
    """

    def __init__(self, launcher: int | None) -> None:
        # Were the rank to close the only one, the launcher would take it for dead and kill all. It is below the line
        # to the witness: the kernel closes files from the highest down, and the launcher must hear last of an end.
        self._launcher = [] if launcher is None else [launcher, raised(launcher, 2 * _ROOM)]
        low = os.pipe()
        self._reading, self._writing = map(raised, low)
        for end in low:
            os.close(end)

    def restore(self) -> None:
        """Open the launcher's socket again for MPI to take its leave, where the program has closed it."""
        if self._launcher:
            try:
                os.fstat(self._launcher[0])
            except OSError:
                os.dup2(self._launcher[1], self._launcher[0])

    def leave_to_the_rank(self) -> None:
        """In a forked child: close the launcher's socket, and be killed when the rank ends."""
        for number in (self._writing, *self._launcher):
            with suppress(OSError):  # the program has closed it
                os.close(number)
        if sys.platform != "linux":
            return
        with suppress(OSError):
            own = os.open(f"/proc/self/fd/{self._reading}", os.O_RDONLY | os.O_NONBLOCK)
            os.dup2(own, self._reading, inheritable=False)  # whose owner is not that of the rank's, nor a grandchild's
            os.close(own)
            fcntl.fcntl(self._reading, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(self._reading, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(self._reading, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
            os.read(self._reading, 1)  # raises BlockingIOError, an OSError, while the rank lives
            os._exit(1)
