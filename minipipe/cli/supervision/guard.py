"""A process above the supervisor, so that nothing is left when one of the two is killed.

::

    guard ── supervisor ── mpirun ── ranks

When the guard is killed the kernel sends SIGTERM to the supervisor, which ends the job as at any SIGTERM. When the
supervisor is killed the kernel kills mpirun, and the guard ends what is left. One process could not do both: ranks that
are deaf to SIGTERM outlive an mpirun of MPICH that gets one, and ranks of Open MPI outlive an mpirun that is killed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from minipipe.comm.job.system_calls import adopt_orphans, end_descendants, end_with

_GRACE = 2.0  # seconds for processes that outlive mpirun, such as a witness, before they are killed
_LONGEST_END = 10.0  # seconds after which a process that cannot be killed is left


def become_supervisor() -> int | None:
    """Fork: return None in the child, and in this process, once the child has ended, its exit code for the shell.

    The child goes on in a session of its own, so that Ctrl-C reaches it once, through the guard.
    """
    prepare()
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        os.setsid()
        end_with(guard, signal.SIGTERM)
        return None
    listen(lambda number, _: os.kill(child, number))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    end_the_rest()
    return shell_code(code)


def prepare() -> None:
    """Become the parent of orphans below this process."""
    with suppress(OSError):  # elsewhere than on Linux
        adopt_orphans()


def end_the_rest() -> None:
    """End what is left below this process."""
    if sys.platform == "linux":
        end_descendants(_GRACE, _LONGEST_END)


def listen(hear: Callable[..., object]) -> dict[int, Any]:
    """Call a function when a signal asks this process to end; return the handlers before.

    A signal that is ignored, as SIGHUP is after ``nohup``, stays so.
    """
    heard = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    return {number: signal.signal(number, hear) for number in heard}


def shell_code(code: int) -> int:
    """Return the exit code that a shell shows, which for a process that a signal ended is 128 and its number.

    Examples
    --------
    >>> shell_code(3), shell_code(-15)
    (3, 143)
    """
    return code if code >= 0 else 128 - code
