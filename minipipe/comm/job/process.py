"""This process as a rank that a launcher started: its output, and how it ends all
ranks, with MPI and before.

Without it, an uncaught exception or ``sys.exit(n)`` on one rank would leave the others
waiting for ever.
"""

from __future__ import annotations

import builtins
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NoReturn

from minipipe.comm.job.descriptors import Descriptors
from minipipe.comm.job.host import launcher_socket
from minipipe.comm.job.meeting import STARTING, Line, not_a_rank
from minipipe.comm.job.reports import last_words, place_of
from minipipe.core.comm.watch import exit_code_of
from minipipe.errors import LaunchError, MessageError

_FORWARDING = 0.1  # seconds for output to reach the terminal before an abort
_READING = 0.5  # seconds in which the reader of a full pipe must read on
# seconds that a rank waits for the first one that failed to end all ranks
DEFERENCE = 2.0


class RankProcess:
    """This process, one of the ranks.

    Parameters
    ----------
    rank : int
        Its number in the world.
    line : Line
        The connection to the watchdog process.

    Attributes
    ----------
    exit_code, exit_place : int, str
        The code of the last ``sys.exit``, ``exit`` or ``quit``, even if the program
        caught it, and where it was called.
    end_all : function
        Ends every rank at once with an exit code, if this process can.
    is_consequence : function
        Takes an error, and returns whether it only shows that another rank has ended.
    role : str
        What the program calls this rank.
    is_over : bool
        Whether this process no longer belongs to the job: it has left, or it is a
        forked child.
    """

    def __init__(self, rank: int, line: Line) -> None:
        self.rank = rank
        self.line = line
        self.descriptors = Descriptors(launcher_socket(os.environ))
        self.exit_code = 0
        self.exit_place = ""
        self.role = ""
        self.end_all: Callable[[int], object] = _end_by_process_manager
        self.is_consequence: Callable[[BaseException], bool] = lambda error: False
        self._has_started = self.is_over = False
        self._python_exit = sys.exit
        self._python_excepthook = sys.excepthook
        sys.exit = self._exit
        sys.excepthook = self._report_and_abort
        vars(builtins).update(exit=self._exit, quit=self._exit)
        self._python_thread_excepthook = threading.excepthook
        threading.excepthook = self._end_by_a_thread
        os.register_at_fork(after_in_child=self._leave_as_a_child)

    @contextmanager
    def starting(self, timeout: float) -> Iterator[None]:
        """Wait for the other ranks of this host, and limit the time of this block, in
        which MPI starts. Once only.
        """
        if self.is_over:
            raise not_a_rank(f"This process was forked by rank {self.rank}")
        if self._has_started:
            yield
            return
        self.line.wait_for_all(timeout)
        with self.line.limited(timeout, STARTING):
            yield
        self._has_started = True

    def describe(self, role: str) -> None:
        """Set the program's name for this rank, for the message about its end, even a
        sudden one.
        """
        self.role = role
        self.line.describe(role)

    def leave(self) -> None:
        """Leave the job: from now on Python ends this process like any other."""
        self.is_over = True
        self.line.forget()

    def _leave_as_a_child(self) -> None:
        self.leave()
        self.descriptors.leave_to_the_rank()

    def _exit(self, code: Any = None) -> NoReturn:
        """Note the code of ``sys.exit``: an exit handler cannot ask Python for it, and
        other ranks may be waiting.
        """
        if threading.current_thread() is not threading.main_thread():
            self._python_exit(code)  # ends that thread only
        self.exit_code = exit_code_of(SystemExit(code))
        stack = list(traceback.walk_stack(sys._getframe().f_back))
        self.exit_place = f" by sys.exit({code}) at {place_of(stack)}"
        self._python_exit(code)

    def _report_and_abort(
        self,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        if self.is_over:
            self._python_excepthook(kind, error, trace)
        else:
            self.end_by(error)

    def _end_by_a_thread(self, raised: threading.ExceptHookArgs) -> None:
        """End all if another thread failed to communicate: ranks wait for it. Other
        errors end that thread only.
        """
        if self.is_over or not isinstance(raised.exc_value, LaunchError | MessageError):
            self._python_thread_excepthook(raised)
        else:
            self.end_by(raised.exc_value)

    def end_by(self, error: BaseException) -> NoReturn:
        """Print the final message of this rank, and end all ranks. The user's own
        ``excepthook`` is called first.
        """
        if self.is_consequence(error):
            # the first rank that failed is named, and the launcher ends this one
            time.sleep(DEFERENCE)
        elif self._python_excepthook is not sys.__excepthook__ and not isinstance(
            error, SystemExit
        ):
            # an error in it must not keep the others waiting
            with suppress(Exception, SystemExit):
                self._python_excepthook(type(error), error, error.__traceback__)
        words = last_words(error)
        if self.role not in words:
            words = f"{self.role}:\n{words}"
        self.end(words, exit_code_of(error))

    def end(self, words: str, code: int) -> NoReturn:
        """Print the final message, unless another rank of this host has, and end all
        ranks.
        """
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # once is enough
        if self.line.is_first_to_fail():
            self.say(words)
        else:
            time.sleep(DEFERENCE)
        self.abort(code)

    def say(self, text: str) -> None:
        """Write lines, prefixed with this rank, to stderr, or to another stream if that
        is closed or full.
        """
        lines = "".join(f"[rank {self.rank}] {line}\n" for line in text.splitlines())
        for stream in (sys.stderr, sys.__stderr__, sys.stdout, sys.__stdout__):
            with suppress(Exception):  # closed, full, or made by the user
                if stream is not None and _takes_more(stream):
                    stream.write(lines)
                    stream.flush()
                    return
        self.line.say(text)

    def abort(self, code: int) -> NoReturn:
        """End every rank at once, with this exit code (1 instead of 0)."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                if _takes_more(stream):
                    stream.flush()
                else:
                    # MPI also writes there
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        # so that the watchdog process does not report a sudden end
        self.line.is_first_to_fail()
        code = code & 0xFF or 1
        # the launcher exits at once and drops output that it has not yet forwarded
        time.sleep(_FORWARDING)
        with suppress(Exception):
            self.end_all(code)
        os._exit(code)  # end_all returns only if it cannot end all


def _takes_more(stream: Any) -> bool:
    """Return whether a write returns; to a full pipe without a reader it would block
    for ever.
    """
    poll = select.poll()
    try:
        poll.register(stream.fileno(), select.POLLOUT)
    except Exception:  # not a file, or replaced by the user
        return True
    return bool(poll.poll(1000 * _READING))


def _end_by_process_manager(code: int) -> None:
    """End all ranks before MPI has started, if the launcher understands PMI 1, as
    MPICH's and Slurm's do.
    """
    number = launcher_socket(os.environ)
    if number is not None:
        os.write(number, b"cmd=init pmi_version=1 pmi_subversion=1\n")
        os.read(number, 4096)
        os.write(number, f"cmd=abort exitcode={code}\n".encode())
        time.sleep(DEFERENCE)
