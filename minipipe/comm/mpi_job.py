"""How the processes of an MPI job end: together, with one message that says why.

A rank that raises, exits or returns while others wait for it would leave them waiting for ever. So

* an exception, or ``sys.exit(n)`` inside the with-block, aborts the job [1];
* a rank that comes to its end says goodbye to all others [2], and finalises MPI only when all have said goodbye [3];
* a rank that waits for one that has said goodbye [4] complains to it, and the complaint ends the job [5].

The tags are repeated at the code, here and in ``mpi.py``::

    rank 0   … works …  end --- goodbye [2] ---> waits for goodbyes [3] ...... complaint [5]: says why, aborts
                                   |                                               ^
    rank 1   … works … waits for rank 0 … notes the goodbye [4], and still nothing: complains
    rank 2   … works … raises [1]: says why, aborts
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
from collections import deque
from types import TracebackType
from typing import Any, NoReturn, Protocol

import mpi4py

mpi4py.rc.finalize = False  # done in Job.leave, once everybody has said goodbye
from mpi4py import MPI

from minipipe.comm.ending import Watchdog, exit_code_of, last_words
from minipipe.comm.host import num_cores, yield_core

_SPINS = 50  # looks that not even yield, where every rank of this host has a core of its own
_FORWARDING = 0.1  # seconds for what was said to reach the terminal, before an abort
_END_PATIENCE = 10  # times the timeout: how long a rank that has ended waits for one that still works alone
_GOODBYE, _COMPLAINT = 0, 1  # tags on the job's own communicator


class _Group(Protocol):
    def withdraw(self) -> None: ...


class _Sending(Protocol):
    def is_over(self) -> bool: ...


class Job:
    """This process as one of an MPI job: how it ends, and who else has come to an end."""

    def __init__(self) -> None:
        self.world = MPI.COMM_WORLD
        self.control = MPI.COMM_WORLD.Dup()
        self.departed: set[int] = set()
        self.exit_code = 0
        self.timeout = 0.0  # the longest of all groups'
        here = self.world.Split_type(MPI.COMM_TYPE_SHARED)  # the ranks of this host
        self.spins = _SPINS if here.size <= num_cores() else 0
        here.Free()
        self._unfinished: deque[_Sending] = deque()  # of all groups
        self._many = 16
        self.groups: list[_Group] = []
        self._goodbyes: list[MPI.Request] = []
        self.watchdog = Watchdog(self._give_up)
        self._python_exit = sys.exit
        self._python_excepthook = sys.excepthook
        sys.exit = self._exit
        sys.excepthook = self._report_and_abort
        atexit.register(self.leave)

    def _exit(self, code: Any = None) -> NoReturn:
        """Remember the code of ``sys.exit``: Python tells it nobody, and others may be waiting for this rank."""
        self.exit_code = exit_code_of(SystemExit(code))
        self._python_exit(code)

    def _report_and_abort(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if MPI.Is_finalized():
            self._python_excepthook(kind, error, trace)
        else:
            self.end_by(error)

    def end_by(self, error: BaseException) -> NoReturn:
        """Say what happened on this rank, and end all."""
        # When all ranks fail alike, the lowest one speaks and ends the rest.
        time.sleep(min(2 * _FORWARDING * self.world.rank, 1.0))
        self.say(last_words(error))
        self.abort(exit_code_of(error))

    def _give_up(self, sentence: str) -> None:
        self.say(f"MessageError: Rank {self.world.rank} {sentence}")
        self.abort(1)

    def say(self, text: str) -> None:
        """Write lines to stderr, each behind the number of this rank."""
        prefix = f"[rank {self.world.rank}] "
        sys.stderr.write("".join(f"{prefix}{line}\n" for line in text.splitlines()))
        sys.stderr.flush()

    def abort(self, code: int) -> NoReturn:
        """End every rank at once, with this exit code (1 instead of 0)."""
        sys.stdout.flush()
        sys.stderr.flush()
        code = code & 0xFF or 1
        time.sleep(_FORWARDING)  # the launcher ends at once, and with it whatever it has not yet forwarded
        self.world.Abort(code)
        os._exit(code)  # Abort does not return

    def keep(self, send: _Sending) -> None:
        """Keep a send until it is over. The oldest are let go one by one; all others once they have become many."""
        self._unfinished.append(send)
        while self._unfinished and self._unfinished[0].is_over():
            self._unfinished.popleft()
        if len(self._unfinished) > self._many:
            self._unfinished = deque(send for send in self._unfinished if not send.is_over())
            self._many = 2 * len(self._unfinished) + 16

    def look_around(self) -> None:
        """Note who has said goodbye."""
        status = MPI.Status()
        while self.control.Iprobe(MPI.ANY_SOURCE, _GOODBYE, status):
            self.control.Recv(bytearray(0), status.source, _GOODBYE)
            self.departed.add(status.source)

    def complain(self, rank: int, text: str) -> None:
        """Tell a rank that has come to its end that this one still waits for it, and let it end the job."""
        self.control.Isend(text.encode(), rank, _COMPLAINT).Wait()
        time.sleep(2.0)  # it knows the exit code; it ends this rank meanwhile

    def leave(self) -> None:
        """Say goodbye, wait until all have, and finalise MPI. The last thing that a rank does."""
        if MPI.Is_finalized():
            return
        others = set(range(self.world.size)) - {self.world.rank}
        self._goodbyes = [self.control.Isend(bytearray(0), rank, _GOODBYE) for rank in others]  # [2]
        patience = _END_PATIENCE * self.timeout
        status, pause, deadline = MPI.Status(), 50e-6, time.perf_counter() + patience
        while not others <= self.departed:  # [3]
            self.look_around()
            if time.perf_counter() > deadline:
                missing = ", ".join(map(str, sorted(others - self.departed)))
                self.say(
                    f"This rank came to its end {patience:g} s ago, but these have not yet: {missing}. Ending all."
                )
                self.abort(self.exit_code)
            if self.control.Iprobe(MPI.ANY_SOURCE, _COMPLAINT, status):  # [5]
                text = bytearray(status.Get_count(MPI.BYTE))
                self.control.Recv(text, status.source, _COMPLAINT)
                self.say(f"This rank came to its end early. {text.decode()}")
                self.abort(self.exit_code)
            self._unfinished = deque(send for send in self._unfinished if not send.is_over())
            if self._unfinished:
                yield_core()  # their bytes may move only while this rank looks after them
                continue
            time.sleep(pause)
            pause = min(2 * pause, 5e-3)
        for group in self.groups:
            group.withdraw()
        MPI.Request.Waitall(self._goodbyes)
        MPI.Finalize()


@functools.cache
def the_job() -> Job:
    """Return the job that this process belongs to; MPI is there once in a process, and so is this."""
    return Job()
