"""How the processes of an MPI job end: together, with one message that says why.

A rank that raises, exits or returns while others wait for it would leave them waiting for ever. So

* an exception, or ``sys.exit(n)`` inside the with-block, aborts the job [1];
* a rank that comes to its end says goodbye to all others [2], and finalises MPI only when all have said goodbye [3];
* a rank that waits for one that has said goodbye [4] complains to it, and the complaint ends the job [5];
* a rank whose wait grows too long asks all others what they do [6]; a thread of theirs answers [7]; one table of all
  ranks, and who keeps them waiting, ends the job.

The tags are repeated at the code, here and in ``mpi.py``::

    rank 0   … works …  end --- goodbye [2] ---> waits for goodbyes [3] ...... complaint [5]: says why, aborts
                                   |                                               ^
    rank 1   … works … waits for rank 0 … notes the goodbye [4], and still nothing: complains
    rank 2   … works … waits for rank 3 … for too long: asks all [6] … rank 3 does not answer: says so, aborts
                                             |          ^
    rank 4   … works … waits for rank 3 …    `---> answers [7]
"""

from __future__ import annotations

import atexit
import functools
import os
import signal
import socket
import struct
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import mpi4py

# A group starts it, and Job.leave ends it, once everybody has said goodbye; what only imports this leaves no files.
mpi4py.rc.initialize = mpi4py.rc.finalize = False
from mpi4py import MPI

from minipipe.comm.job.activity import Activity, Report
from minipipe.comm.job.host import cores, yield_core
from minipipe.comm.job.meeting import FINALISING
from minipipe.comm.job.patience import Patience
from minipipe.comm.job.process import DEFERENCE, RankProcess
from minipipe.comm.job.verdict import STOPPED, is_debugged, state_of, verdict, waits_for_a_person

_MOST_CORES = 4096  # of a host
_SPINS = 50  # looks that not even yield, where every rank of this host has a core of its own
_LOOK = 0.1  # seconds between the lookout's looks
_ANSWERS = 1.0  # seconds for answers; who has given none by then is silent
_PRECEDENCE = 2.5  # seconds in which a rank that has asked before may judge: for answers, and a look at them
_GOODBYE, _COMPLAINT, _QUESTION, _ANSWER = range(4)  # tags on the job's own communicator
_PROCESS = struct.Struct("q?63s")  # number, whether a thread of it may answer, and host
_FINALISING = 5.0  # seconds that it may take, however short the timeout
_LOOKS = 100  # at the others, during a timeout, by a rank that has ended


class _Group(Protocol):
    def withdraw(self) -> None: ...
    def disown(self) -> None: ...
    def unread(self) -> list[str]: ...


class _Sending(Protocol):
    def is_over(self) -> bool: ...


class Job:
    """This process as one of an MPI job: how it ends, and who else has come to an end.

    Parameters
    ----------
    process : RankProcess

    Attributes
    ----------
    activity : Activity
        What this rank tells others of itself.
    departed : set of int
        The ranks that have said goodbye.
    spins : int
        How many looks of a wait do not even yield the core.
    """

    def __init__(self, process: RankProcess) -> None:
        self.process = process
        process.end_all = MPI.COMM_WORLD.Abort
        process.is_consequence = lambda error: isinstance(error, MPI.Exception)
        self.world = MPI.COMM_WORLD
        self.control = MPI.COMM_WORLD.Dup()
        self.others = set(range(self.world.size)) - {self.world.rank}
        self.departed: set[int] = set()
        self.finalise: Callable[[], object] = MPI.Finalize  # after all goodbyes
        self.timeout = 0.0  # the longest of all groups'
        here = self.world.Split_type(MPI.COMM_TYPE_SHARED)  # the ranks of this host
        self.spins = _SPINS if here.size <= _num_cores_of(here) else 0
        here.Free()
        self._unfinished: deque[_Sending] = deque()  # of all groups
        self._many = 16
        self.groups: list[_Group] = []
        self.activity = Activity()
        self.activity.unread = lambda: tuple(words for group in self.groups for words in group.unread())
        self._processes = _processes(self.world)
        self._letters: list[MPI.Request] = []  # this rank's, on the job's own communicator
        self._complaint = ""
        self._answers: dict[int, Report] = {}
        self._asked_at = 0.0  # when a lower rank asked last
        self._attending, self._telling = threading.Lock(), threading.Lock()
        self._silent_for: dict[int, float] = {}  # since how many seconds, by rank
        self._watched: Patience | None = None
        self._is_left, self._has_told = threading.Event(), False
        self._lookout = threading.Thread(target=self._look_out, name="lookout", daemon=True)
        self._lookout.start()
        os.register_at_fork(after_in_child=self._disown)
        atexit.register(self.leave)

    def _disown(self) -> None:
        """In a forked child: MPI, and how the job ends, are its parent's business."""
        for group in self.groups:
            group.disown()

    # -- sends ----------------------------------------------------------------------------------------------

    def keep(self, send: _Sending) -> None:
        """Keep a send until it is over. The oldest are let go one by one; all others once they have become many."""
        self._unfinished.append(send)
        while self._unfinished and self._unfinished[0].is_over():
            self._unfinished.popleft()
        if len(self._unfinished) > self._many:
            self._unfinished = deque(send for send in self._unfinished if not send.is_over())
            self._many = 2 * len(self._unfinished) + 16

    # -- what ranks tell each other -------------------------------------------------------------------------

    def attend(self) -> None:
        """Take what other ranks say. Waiting ranks call it, and the lookout for those that work."""
        if not self._attending.acquire(blocking=False):
            return
        try:
            status = MPI.Status()
            while self.control.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):
                data, rank = bytearray(status.Get_count(MPI.BYTE)), status.source
                self.control.Recv(data, rank, status.tag)
                if status.tag == _GOODBYE:
                    self.departed.add(rank)
                elif status.tag == _COMPLAINT:
                    self._complaint = data.decode()
                elif status.tag == _QUESTION:
                    self._asked_at = time.perf_counter() if data and rank < self.world.rank else self._asked_at
                    self._tell(rank, self.activity.report(self.world.rank).to_bytes(), _ANSWER)  # [7]
                else:
                    self._answers[rank] = Report.from_bytes(bytes(data))
        finally:
            self._attending.release()

    def _tell(self, rank: int, data: bytes, tag: int) -> None:
        with self._telling:
            self._letters = [letter for letter in self._letters if not has_ended(letter.Test)]
            with suppress(MPI.Exception):  # it is lost
                self._letters.append(self.control.Isend(data, rank, tag))

    def _look_out(self) -> None:
        """Answer for this rank while it works; give up for it while it is inside of MPI."""
        may_talk = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        while not self._is_left.wait(_LOOK):
            with suppress(Exception):  # a report is made while the rank goes on; the next one may succeed
                if may_talk:
                    self.attend()
                if (watched := self._watched) is not None and watched.look():
                    self._judge_for(watched, may_talk)

    def _judge_for(self, watched: Patience, may_talk: bool) -> None:
        """End the job, unless what this rank waits for has come meanwhile, or somebody is in a debugger."""
        report = self.activity.report(self.world.rank)
        reports = self.judge(lambda: self._watched is not watched) if may_talk else [report]
        if reports is None or self._watched is not watched:
            watched.renew()
            return
        waited = f"MessageError: Rank {report.rank} has waited {report.seconds:.1f} s for {report.awaited}."
        self.process.end("\n".join([waited, verdict(reports)]), 1)

    @contextmanager
    def watching(self, limit: float, peer: int | None, words: Callable[[], str]) -> Iterator[None]:
        """Give up after ``limit`` seconds inside this block.

        For calls that block inside MPI: a sender that stops in the middle of its bytes would hang them for ever.
        """
        patience = self._watched = Patience(limit)
        try:
            with self.activity.waiting(patience, peer, words):
                yield
        finally:
            self._watched = None

    def judge(self, is_over: Callable[[], bool], may_end: bool = True) -> list[Report] | None:
        """Return what all ranks do [6], or None where the wait is to go on: it is over, or somebody is in a debugger.

        Of several ranks that ask at once, and may end the job then, the lowest one goes on; the others wait for that.
        """
        reports = [] if self._was_asked() else self._ask_all(may_end)
        if self._was_asked() and self._defer(is_over):
            return None
        reports = reports or self._ask_all(may_end)
        if is_debugged(reports) and not self._has_told:
            self._has_told = True
            self.process.say(waits_for_a_person(reports, self.world.rank))
        return None if is_over() or is_debugged(reports) else reports

    def _was_asked(self) -> bool:
        return time.perf_counter() < self._asked_at + _PRECEDENCE

    def _defer(self, is_over: Callable[[], bool]) -> bool:
        patience = Patience(_PRECEDENCE)
        while not is_over() and not patience.look():
            self.attend()
            time.sleep(0.01)
        return is_over()

    def _ask_all(self, may_end: bool) -> list[Report]:
        self._answers = {}
        for rank in self.others:
            self._tell(rank, b"may end" if may_end else b"", _QUESTION)
        patience = Patience(_ANSWERS)
        while len(self._answers) < len(self.others) and not patience.look():
            self.attend()
            time.sleep(0.005)
        answers = {self.world.rank: self.activity.report(self.world.rank), **self._answers}
        return [answers.get(rank) or self._silent(rank) for rank in sorted({self.world.rank, *self.others})]

    def _silent(self, rank: int) -> Report:
        pid, may_answer, host = self._processes[rank]
        place = state_of(pid) if host == socket.gethostname() else ""
        if not may_answer and place != STOPPED:
            place = "busy, perhaps: in this MPI a rank answers only while it waits"
        return Report(rank, pid, host, place=place, is_silent=True)

    def complain(self, rank: int, text: str) -> None:
        """Tell a rank that has come to its end that this one still waits for it, and let it end the job."""
        self._tell(rank, text.encode(), _COMPLAINT)
        time.sleep(DEFERENCE)  # it knows the exit code; it ends this rank meanwhile

    # -- the end --------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Say goodbye, wait until all have, and finalise MPI. The last thing that a rank does."""
        if self.process.is_over or MPI.Is_finalized():
            return
        try:
            self._wait_for_goodbyes()
            if self.process.is_over:
                return
            self._is_left.set()
            self._lookout.join()
            for group in self.groups:
                group.withdraw()
            self.process.descriptors.restore()
            with self.process.line.limited(max(self.timeout, _FINALISING), FINALISING):
                MPI.Request.Waitall(self._letters)
                self.finalise()
            self.process.line.close()
            self.process.leave()
        except BaseException as error:  # Ctrl-C; Python would ignore it here, and exit with 0
            self.process.end_by(error)

    def _wait_for_goodbyes(self) -> None:
        self.activity.has_ended = True
        for rank in self.others:
            self._tell(rank, b"", _GOODBYE)  # [2]
        patience, pause = Patience(max(self.timeout / _LOOKS, _ANSWERS)), 50e-6
        while not self.others <= self.departed:  # [3]
            self.attend()
            if self._complaint:  # [5]
                code = self.process.exit_code or _exit_code_of_a_copy()
                if self.process.is_over:  # the copy
                    return
                came, last = f"This rank came to its end early{self.process.exit_place}", self.activity.words()
                self.process.end(f"{came}. {self._complaint}" + f" Here the last action was {last}." * bool(last), code)
            if patience.look():
                self._end_if_one_is_silent(patience.limit)
                patience.renew()
            self._unfinished = deque(send for send in self._unfinished if not send.is_over())
            if self._unfinished:
                yield_core()  # their bytes may move only while this rank looks after them
                continue
            time.sleep(pause)
            pause = min(2 * pause, 5e-3)

    def _end_if_one_is_silent(self, pause: float) -> None:
        """A rank that works alone may take its time; one that is stopped would keep this one for ever."""
        reports = self.judge(lambda: self.others <= self.departed, may_end=False) or []
        silent = {r.rank for r in reports if r.is_silent and r.place in (STOPPED, "")} - self.departed
        self._silent_for = {rank: self._silent_for.get(rank, -pause) + pause + _ANSWERS for rank in silent}
        if any(seconds > self.timeout for seconds in self._silent_for.values()):
            waited = "This rank came to its end, and waits for the others."
            self.process.end("\n".join([waited, verdict(reports)]), self.process.exit_code)


def has_ended(is_over: Callable[[], bool]) -> bool:
    """Tell whether a message is gone, or came to an end because a rank was lost."""
    try:
        return is_over()
    except MPI.Exception:
        return True


def _num_cores_of(ranks: MPI.Comm) -> int:
    """Return how many cores the ranks of a host have together, each perhaps bound to its own. Collective."""
    has_core = bytearray(_MOST_CORES)
    for core in cores():
        has_core[core % _MOST_CORES] = 1
    ranks.Allreduce(MPI.IN_PLACE, has_core, MPI.BOR)
    return sum(has_core)


def _processes(world: MPI.Comm) -> list[tuple[int, bool, str]]:
    """Return of every rank the number of its process, whether a thread of it may answer, and its host. Collective."""
    everybody, may_answer = bytearray(_PROCESS.size * world.size), MPI.Query_thread() == MPI.THREAD_MULTIPLE
    world.Allgather(_PROCESS.pack(os.getpid(), may_answer, socket.gethostname().encode()[:63]), everybody)
    return [(pid, may, host.rstrip(b"\0").decode()) for pid, may, host in _PROCESS.iter_unpack(everybody)]


def _exit_code_of_a_copy() -> int:
    """Let a copy of this process end, and return its exit code: Python tells nobody of ``raise SystemExit(7)``.

    In the copy it returns 0. What programs do at their end is done there, and so once.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the lookout is a thread; the copy needs none
        copy = os.fork()
    if copy == 0:
        return 0
    patience = Patience(2.0)
    while not patience.look():
        done, status = os.waitpid(copy, os.WNOHANG)
        if done:
            return max(0, os.waitstatus_to_exitcode(status))
        time.sleep(0.01)
    os.kill(copy, signal.SIGKILL)
    os.waitpid(copy, 0)
    return 0


@functools.cache
def the_job(process: RankProcess) -> Job:
    """Return the job that this process belongs to; MPI is there once in a process, and so is this."""
    return Job(process)
