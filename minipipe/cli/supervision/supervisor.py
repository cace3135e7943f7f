"""Run a job, restart it when it fails, and leave no process behind.

::

    guard ── supervisor ── mpirun ── what it starts on this host     its orphans become the supervisor's children
                                └─── what it starts on other hosts   ends with mpirun

A signal is passed down once. When the guard is killed, the kernel sends SIGTERM to the supervisor, which ends the job.
When the supervisor is killed, the kernel kills mpirun, and the guard ends the remaining processes. One process could
not do both: ranks that ignore SIGTERM outlive an mpirun of MPICH that gets one, and ranks of Open MPI outlive an mpirun
that is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from types import FrameType
from typing import Any, NamedTuple

from minipipe.cli.supervision.launching import JobSpec, silent_hosts
from minipipe.comm.job.system_calls import adopt_orphans, end_descendants, end_with
from minipipe.errors import LaunchError, quoted

_PATIENCE = 10.0  # seconds for mpirun to end all after a signal, before it is killed
_GRACE = 2.0  # seconds for processes that outlive mpirun, such as a witness, before they are killed
_LONGEST_END = 10.0  # seconds after which a process that cannot be killed is left
_LOOK = 0.05  # seconds
_BAD_USAGE = 2  # exit code
_QUICK = 5.0  # seconds
_ALIKE = 3  # attempts
_LONGEST_PAUSE = 60.0  # seconds


class Ending(NamedTuple):
    """The end of an attempt.

    Attributes
    ----------
    code : int
        The launcher's exit code, or minus the signal that ended it.
    seconds : float
        How long it ran.

    Examples
    --------
    >>> print(Ending(1, 73.2), Ending(137, 0.5), Ending(-15, 2.0), sep=", ")
    exit code 1 after 73.2 s, exit code 137 (SIGKILL) after 0.5 s, SIGTERM of the launcher after 2.0 s
    """

    code: int
    seconds: float

    def __str__(self) -> str:
        name = ""
        with suppress(ValueError):  # no signal
            name = signal.Signals(-self.code if self.code < 0 else self.code - 128).name
        how = f"{name} of the launcher" if self.code < 0 else f"exit code {self.code}" + (f" ({name})" if name else "")
        return f"{how} after {self.seconds:.1f} s"


class JobResult(NamedTuple):
    """The result of a job after its last attempt.

    Attributes
    ----------
    code : int
        For the shell: that of the last attempt, or 128 and the signal that ended the supervisor.
    restarts : int
    ranks : int
        Of the last attempt.
    """

    code: int
    restarts: int
    ranks: int


# -- the processes ------------------------------------------------------------------------------------------------


def become_supervisor() -> int | None:
    """Fork: return None in the child, and in this process, the guard, the child's exit code for the shell.

    The child gets a session of its own, so that Ctrl-C reaches it once, through the guard.
    """
    _adopt_orphans()
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        os.setsid()
        end_with(guard, signal.SIGTERM)
        return None
    _listen(lambda number, _: os.kill(child, number))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    _end_the_rest()
    return shell_code(code)


class Attempts:
    """Runs a job, once or again, as a context manager. A signal to this process ends the attempt and all later ones.

    It takes over signals and children: use it from the main thread of a process that does nothing else.

    Attributes
    ----------
    stopped_by : int
        The first SIGINT, SIGTERM or SIGHUP, or 0.
    """

    def __init__(self) -> None:
        self.stopped_by = 0
        self._launcher: subprocess.Popen | None = None

    def __enter__(self) -> Attempts:
        _adopt_orphans()
        self._before = _listen(self._hear)
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._give_up)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def run(self, command: Sequence[str]) -> Ending:
        """Run the launcher with the standard streams of this process, until it and all its processes have exited.

        Raises
        ------
        LaunchError
            Code ``no-launcher``: the system refuses to run it.
        """
        begun, tied = time.monotonic(), partial(end_with, os.getpid())
        try:
            self._launcher = subprocess.Popen(command, start_new_session=True, preexec_fn=tied)
        except OSError as error:
            message = f"The launcher {quoted(command[0], 200)} cannot be started: {error.strerror}."
            raise LaunchError("no-launcher", message) from None
        if self.stopped_by:  # by a signal before it had started
            self._pass_on(self.stopped_by)
        code = self._launcher.wait()
        ending = Ending(code, time.monotonic() - begun)
        self._launcher = None
        _end_the_rest()
        return ending

    def pause(self, seconds: float) -> None:
        """Wait; return early after a signal."""
        end = time.monotonic() + seconds
        while not self.stopped_by and time.monotonic() < end:
            time.sleep(_LOOK)

    def _hear(self, number: int, _: FrameType | None) -> None:
        if not self.stopped_by:
            self.stopped_by = number
            signal.setitimer(signal.ITIMER_REAL, _PATIENCE)
        self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        if self._launcher is not None:
            self._launcher.send_signal(number if number == signal.SIGINT else signal.SIGTERM)

    def _give_up(self, *_: object) -> None:
        if self._launcher is not None:
            self._launcher.kill()


def _adopt_orphans() -> None:
    with suppress(OSError):  # elsewhere than on Linux
        adopt_orphans()


def _end_the_rest() -> None:
    """End all processes below this one."""
    if sys.platform == "linux":
        end_descendants(_GRACE, _LONGEST_END)


def _listen(hear: Callable[..., object]) -> dict[int, Any]:
    """Call a function on signals that ask this process to exit; return the handlers before."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heard = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]  # as SIGHUP is after nohup
    return {number: signal.signal(number, hear) for number in heard}


def shell_code(code: int) -> int:
    """Return the exit code in a shell: of a process that a signal ended, 128 plus its number.

    Examples
    --------
    >>> shell_code(3), shell_code(-15)
    (3, 143)
    """
    return code if code >= 0 else 128 - code


# -- whether, when and where to restart -----------------------------------------------------------------------------


def supervise(job: JobSpec, restarts: int, say: Callable[[str], object]) -> JobResult:
    """Run a job until it succeeds, or is not worth another attempt.

    Every attempt has the same command line, and its number, from 0, in the variable ``MINIPIPE_RESTART``. A script that
    saves checkpoints can resume from the last one. Before a restart each host of the hostfile is probed, and the ranks
    of those that do not answer are left out.

    Parameters
    ----------
    job : JobSpec
    restarts : int
        The most restarts.
    say : function
        Called with a line for each failed attempt: its end and the consequence.

    Raises
    ------
    LaunchError
        Code ``no-launcher``.
    """
    endings: list[Ending] = []
    silent: dict[str, str] = {}
    with Attempts() as attempts:
        while True:
            with job.command(len(endings), list(silent)) as command:
                endings.append(attempts.run(command))
            result = JobResult(shell_code(endings[-1].code), len(endings) - 1, job.ranks_without(list(silent)))
            why_not = reason_to_stop(endings, restarts)
            if not (attempts.stopped_by or why_not):
                attempts.pause(pause_before_restart(endings))
                silent = silent_hosts((host.name for host in job.hosts), job.probe)
                left = job.ranks_without(list(silent))
                if left < job.min_ranks:
                    why_not = f"{left} of {job.ranks} ranks are left, and --min-ranks is {job.min_ranks}"
            if attempts.stopped_by:
                return result._replace(code=128 + attempts.stopped_by)
            if result.code and restarts:
                say(_line(job, endings, restarts, silent, why_not))
            if why_not:
                return result


def reason_to_stop(endings: Sequence[Ending], restarts: int) -> str:
    """Return why a job is not restarted, or nothing where it is.

    A job is not restarted after success, after exit code 2, which means a wrong command line, and after failing within
    5 s with the same exit code three times in a row: it made no progress. A longer attempt begins a new count: it may
    have made progress.

    Parameters
    ----------
    endings : sequence of Ending
        Of all attempts, in order.
    restarts : int
        The most restarts.

    Notes
    -----
    Other supervisors use only the clock or only a count. ``torchrun`` restarts up to ``--max-restarts`` times, at once;
    systemd gives up a service that started five times within ten seconds; Kubernetes restarts for ever, with growing
    pauses. A count alone repeats the traceback of a plain mistake to the last restart; the clock alone also gives up a
    job that different hosts fail in turn.

    Examples
    --------
    >>> reason_to_stop([Ending(1, 0.4), Ending(1, 0.3)], restarts=9)
    ''
    >>> reason_to_stop([Ending(1, 0.4), Ending(1, 0.3), Ending(1, 0.4)], restarts=9)
    'it failed alike 3 times in a row, within 5 s each, and would again'
    """
    last = endings[-1]
    if last.code == 0:
        return "it ended well"
    if last.code == _BAD_USAGE:
        return "exit code 2 says that its command line is wrong"
    alike = [ending for ending in endings[-_ALIKE:] if ending.code == last.code and ending.seconds < _QUICK]
    if len(alike) == _ALIKE:
        return f"it failed alike {_ALIKE} times in a row, within {_QUICK:g} s each, and would again"
    return f"{restarts} of {restarts} restarts are used" if len(endings) > restarts else ""


def pause_before_restart(endings: Sequence[Ending]) -> float:
    """Return how many seconds to wait before the next attempt.

    None after the first failure, nor after an attempt of more than 5 s; otherwise 1 s, then twice as long each time, up
    to a minute: time for a host to come back, and for a log not to fill.

    Examples
    --------
    >>> pause_before_restart([Ending(1, 70.0), Ending(9, 0.3)])
    0.0
    >>> pause_before_restart([Ending(1, 0.4), Ending(9, 0.3), Ending(1, 0.3)])
    2.0
    """
    quick = len(list(takewhile(lambda ending: ending.seconds < _QUICK, reversed(endings))))
    return min(2.0 ** min(quick - 2, 10), _LONGEST_PAUSE) if quick > 1 else 0.0


def _line(job: JobSpec, endings: Sequence[Ending], restarts: int, silent: dict[str, str], why_not: str) -> str:
    """Return the message about the last attempt."""
    number, ranks = len(endings), job.ranks_without(list(silent))
    gone = "".join(f", without {name} ({why})" for name, why in silent.items())
    some = f"{ranks} of {job.ranks}" if ranks < job.ranks else f"{ranks}"
    again = f"restart {number} of {restarts} on {some} rank{'s' * (job.ranks > 1)}"
    follows = f"not started again: {why_not}" if why_not else again
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"{now}: attempt {number - 1} failed with {endings[-1]}; {follows}{gone}"
