"""The standard streams of a command: closed, full, without a reader; and signals that end it."""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import NoReturn, TextIO


def prepare_streams() -> None:
    """Make the standard streams safe to use, whatever this process was started with.

    A file that is opened while a standard descriptor is closed takes its number, and what children print then goes to
    that file. So the null device takes these numbers first. Messages go nowhere if standard error is closed; whether
    standard input or output may be closed depends on the verb, so these stay None.
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
    """Leaves the command after a signal. It is no SystemExit: a program under ``advise`` may raise those."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(number)


def leave_by_signals() -> None:
    """Let SIGTERM and SIGHUP leave the command as an exception does: files and jobs are then ended in good order."""
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, _leave)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    raise Signalled(number)


def put(text: object, end: str = "\n", flush: bool = False) -> bool:
    """Print on standard output; return False if nobody reads it any more, as after ``| head``.

    Then the command goes on, or stops early, and has the exit status of its answer all the same.

    Raises
    ------
    OSError
        Where the output is lost, such as on a full disk.
    """
    try:
        print(text, end=end, flush=flush)
    except BrokenPipeError:
        discard(sys.stdout)
        return False
    return True


def discard(stream: TextIO) -> None:
    """Send what is buffered, and all that follows, to the null device: Python would try to write it again at its exit.

    A failure there would replace the exit status.
    """
    with suppress(OSError, ValueError):  # no file, or closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        stream.flush()


def finish_messages() -> None:
    """Write out standard error, or discard it where that fails."""
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        discard(sys.stderr)
