"""The standard streams of a command: closed, full, without a reader; and signals that
end it.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import NoReturn, TextIO


def prepare_streams() -> None:
    """Make the standard streams safe to use, even if this process was started with
    closed ones.

    A file that is opened while a standard descriptor is closed takes its number, and
    the output of child processes then goes to that file. So the null device takes these
    numbers first. Messages are lost if standard error is closed; whether standard input
    or output may be closed depends on the verb, so these stay None.
    """
    for number in range(3):  # the lowest free number is taken, so from below
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    for stream in (sys.stdout, sys.stderr):  # a terminal without "·" shows "?"
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


class Signalled(BaseException):
    """Leaves the command after a signal. It is not a SystemExit, which a program under
    ``advise`` may raise.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(number)


def leave_by_signals() -> None:
    """Let SIGTERM and SIGHUP raise an exception, so that files are closed and jobs
    ended properly.
    """
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, _leave)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    raise Signalled(number)


def put(text: object, end: str = "\n", flush: bool = False) -> bool:
    """Print on standard output; return False if it has no reader any more, as after ``|
    head``.

    The command then continues or stops early; its exit status is still the status of
    its answer.

    Raises
    ------
    OSError
        If the output is lost, such as on a full disk.
    """
    try:
        print(text, end=end, flush=flush)
    except BrokenPipeError:
        discard(sys.stdout)
        return False
    return True


def discard(stream: TextIO) -> None:
    """Send buffered and later output to the null device, because Python would try to
    write it again at its exit.

    A failure at exit would replace the exit status.
    """
    with suppress(OSError, ValueError):  # no file, or closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        stream.flush()


def finish_messages() -> None:
    """Flush standard error, or discard it if that fails."""
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        discard(sys.stderr)
