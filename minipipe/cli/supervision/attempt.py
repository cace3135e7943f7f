"""One attempt to run a job: its processes, the signals that it gets, and its end, which leaves no process behind.

::

    supervisor ── mpirun ── what it starts on this host        orphans among them become the supervisor's children
                      └──── what it starts on other hosts      ends with mpirun

A signal to the supervisor is passed on, once. When the supervisor itself is killed the kernel kills mpirun, and what
then is left of the job goes to the guard (``guard.py``).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import NamedTuple

from minipipe.cli.supervision.guard import end_the_rest, listen, prepare
from minipipe.comm.job.system_calls import end_with
from minipipe.errors import LaunchError, quoted

_PATIENCE = 10.0  # seconds for mpirun to end all after a signal, before it is killed
_LOOK = 0.05  # seconds


class Ending(NamedTuple):
    """How an attempt ended.

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
        name = _signal_name(abs(self.code) - (128 if self.code > 0 else 0))
        how = f"{name} of the launcher" if self.code < 0 else f"exit code {self.code}" + (f" ({name})" if name else "")
        return f"{how} after {self.seconds:.1f} s"


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return ""


class Attempts:
    """Runs a job, once or again, as a context manager. A signal to this process ends the attempt, and counts for all.

    Only for a process that does nothing else, from its main thread: it takes over signals and children.

    Attributes
    ----------
    stopped_by : int
        The first of SIGINT, SIGTERM and SIGHUP that came, or 0. Those that are ignored, as after ``nohup``, stay so.
    """

    def __init__(self) -> None:
        self.stopped_by = 0
        self._launcher: subprocess.Popen | None = None

    def __enter__(self) -> Attempts:
        prepare()
        self._before = listen(self._hear)
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._give_up)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def run(self, command: Sequence[str]) -> Ending:
        """Start the launcher with this process' standard streams, wait until the job has ended, and return how.

        Raises
        ------
        LaunchError
            Code ``no-launcher``: the system refuses to run it.
        """
        begun = time.monotonic()
        try:
            self._launcher = subprocess.Popen(
                command, start_new_session=True, preexec_fn=partial(end_with, os.getpid())
            )
        except OSError as error:
            raise LaunchError(
                "no-launcher", f"The launcher {quoted(command[0], 200)} cannot be started: {error.strerror}."
            ) from None
        if self.stopped_by:  # just before it was there
            self._pass_on(self.stopped_by)
        code = self._launcher.wait()
        ending = Ending(code, time.monotonic() - begun)
        self._launcher = None
        end_the_rest()
        return ending

    def pause(self, seconds: float) -> None:
        """Wait, but not after a signal."""
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
