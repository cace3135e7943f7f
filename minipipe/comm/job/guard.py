"""A job under a guard, which starts it, waits for it, ends it, and leaves none of its
processes behind.

::

    caller ── guard ── supervisor ── mpirun ── what it starts on this host     its orphans go to the supervisor
                                        └───── what it starts on other hosts   ends with mpirun

A signal is passed down once. When the caller or the guard is killed, the kernel sends
SIGTERM to the process below, which ends the job. When the supervisor is killed, the
kernel kills mpirun, and the guard ends the remaining processes. One process could not
do both: ranks that ignore SIGTERM outlive an mpirun of MPICH that receives it, and
ranks of Open MPI outlive an mpirun that is killed.

``minipipe run`` is its own guard: :func:`become_supervisor`. Every other caller that
starts a job uses :func:`run_job`, and may have threads, children and signal handlers:
``python -m minipipe.comm.job.guard`` is a separate process.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from minipipe.comm.job.system_calls import adopt_orphans, end_descendants, end_with
from minipipe.errors import LaunchError, quoted

# seconds for mpirun to end all processes after a signal, before it is killed
_LONGEST_STOP = 10.0
# seconds for processes that outlive mpirun, such as a watchdog process, before they are
# killed
_GRACE = 2.0
_LONGEST_END = 10.0  # seconds after which a process that cannot be killed is left
_LOOK = 0.05  # seconds


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
        how = f"exit code {self.code}"
        with suppress(ValueError):  # no signal
            if self.code < 0:
                how = f"{signal.Signals(-self.code).name} of the launcher"
            else:
                how += f" ({signal.Signals(self.code - 128).name})"
        return f"{how} after {self.seconds:.1f} s"


# -- the processes ---------------------------------------------------------------------


def become_supervisor() -> int | None:
    """Fork: return None in the child, and in this process, the guard, the child's exit
    code for the shell.

    The child gets its own session, so that Ctrl-C reaches it once, through the guard.
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
    """Runs a job, once or again, as a context manager. A signal to this process ends
    the attempt and all later ones.

    It takes over signals and children: use it from the main thread of a process that
    does nothing else.

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
        """Run the launcher with the standard streams of this process, until it and all
        its processes have exited.

        Raises
        ------
        LaunchError
            Code ``unavailable``: the system refuses to run it.
        """
        begun = time.monotonic()
        tied = partial(end_with, os.getpid())
        try:
            options: dict[str, Any] = {"start_new_session": True, "preexec_fn": tied}
            self._launcher = subprocess.Popen(command, **options)
        except OSError as error:
            message = (
                f"The launcher {quoted(command[0], 200)} cannot be started: "
                f"{error.strerror}."
            )
            raise LaunchError("unavailable", message) from None
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
            signal.setitimer(signal.ITIMER_REAL, _LONGEST_STOP)
        self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        if self._launcher is not None:
            if number != signal.SIGINT:
                number = signal.SIGTERM
            self._launcher.send_signal(number)

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
    """Call a function on signals that ask this process to exit; return the handlers
    before.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # as SIGHUP is after nohup
    heard = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]
    return {number: signal.signal(number, hear) for number in heard}


def shell_code(code: int) -> int:
    """Return the exit code in a shell: of a process that a signal ended, 128 plus its
    number.

    Examples
    --------
    >>> shell_code(3), shell_code(-15)
    (3, 143)
    """
    if code < 0:
        return 128 - code
    return code


# -- a job of this process -------------------------------------------------------------


class JobOutput(NamedTuple):
    """A job that has ended.

    Attributes
    ----------
    code : int
        Its exit code for the shell.
    out, err : str
        What it printed.
    """

    code: int
    out: str
    err: str

    @property
    def cause(self) -> str:
        """The error of the rank that failed, out of all that ranks and launcher
        printed, in a line.

        Examples
        --------
        >>> lines = (
        ...     "[rank 1] Traceback (most recent call last):",
        ...     "[rank 1] ValueError: no",
        ...     "Abort(1) on node 1",
        ... )
        >>> JobOutput(1, "", "\\n".join(lines)).cause
        'rank 1: ValueError: no'
        """
        none = f"no error message (exit code {self.code})"
        return _cause_of(self.err) or _cause_of(self.out) or none


def run_job(
    command: Sequence[str],
    hear: Callable[[str], object] = lambda line: None,
    environment: Mapping[str, str] | None = None,
) -> JobOutput:
    """Run a command with every process that it starts, and return when all of them have
    ended.

    Local. When this process ends, even by SIGKILL (on Linux), the job ends. An
    exception, such as a KeyboardInterrupt from Ctrl-C, ends the job before it is passed
    on.

    Parameters
    ----------
    command : sequence of str
        A launcher, with a program and its arguments. Its standard input is empty.
    hear : function
        Called with each line of its standard error, at once.
    environment : mapping, optional
        By default the environment of this process.
    """
    lines: list[str] = []
    with tempfile.TemporaryFile("w+", errors="replace") as printed:
        with _guarded(command, printed, environment) as guard:
            assert guard.stderr is not None
            for line in guard.stderr:
                lines.append(line)
                hear(line)
            code = guard.wait()
        printed.seek(0)
        return JobOutput(shell_code(code), printed.read(), "".join(lines))


@contextmanager
def _guarded(
    command: Sequence[str], out: Any, environment: Mapping[str, str] | None
) -> Iterator[subprocess.Popen]:
    """Start a guard in its own session, which Ctrl-C does not reach; it has ended when
    the block is left.
    """
    guard_of_this = "-m", "minipipe.comm.job.guard", str(os.getpid())
    words = [sys.executable, *guard_of_this, *command]
    streams: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": out,
        "stderr": subprocess.PIPE,
    }
    text: dict[str, Any] = {"text": True, "errors": "replace", "env": environment}
    with subprocess.Popen(words, start_new_session=True, **streams, **text) as guard:
        try:
            yield guard
        # an exception, for example from Ctrl-C, ends the job; after it, Popen would not
        # wait
        finally:
            if guard.poll() is None:
                guard.terminate()
                guard.wait()


_TRACEBACK = re.compile(r"(?P<rank>\[rank \d+\] )?Traceback \(most recent call last\):")
_LAST_WORDS = re.compile(r"\[rank \d+\] ")
_CHAINED = (
    "During handling of the above exception",
    "The above exception was the direct cause",
)


def _cause_of(printed: str) -> str:
    """Return the line that explains why a job failed, or nothing."""
    lines = printed.strip().splitlines()
    for number, line in enumerate(lines):
        start = _TRACEBACK.match(line)
        if start:
            return _raised_in(lines[number:], start["rank"] or "")
    words = [line for line in lines if _LAST_WORDS.match(line)]
    return (words or lines or [""])[-1]


def _raised_in(lines: Sequence[str], rank: str) -> str:
    """Return the first line of the error below a traceback, of a rank if its lines name
    it.
    """
    error = "an error without a name"
    is_awaited = True
    for line in (line.removeprefix(rank) for line in lines if line.startswith(rank)):
        if line.startswith(_CHAINED):
            is_awaited = True
        elif is_awaited and line.strip() and not line.startswith((" ", "Traceback ")):
            error = line
            is_awaited = False
    if rank:
        return f"{rank.strip('[] ')}: {error}"
    return error


def main() -> NoReturn:
    """Guard a job of another process, which started this one: its number and the
    command are the arguments.
    """
    caller, *command = sys.argv[1:]
    end_with(int(caller), signal.SIGTERM)
    code = become_supervisor()
    if code is None:
        with Attempts() as attempts:
            code = shell_code(attempts.run(command).code)
    sys.exit(code)


if __name__ == "__main__":
    main()
