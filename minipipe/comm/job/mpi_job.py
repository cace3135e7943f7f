"""How the processes of an MPI job end: together, with one message that gives the cause.

A rank that raises, exits or returns while others wait for it would leave them waiting
for ever. So

* an exception, or ``sys.exit(n)`` inside the with-block, aborts the job [1];
* a rank whose program has finished announces its shutdown to all others
  [2], and finalises MPI once all ranks have done so [3];
* a rank that is blocked on one that has announced its shutdown [4] complains to it, and
  the complaint ends the job [5];
* a rank that has waited for too long asks all others for a report [6]; their watchdog
  threads answer [7]; a table of all ranks, with the rank that blocks the others, ends
  the job.

The tags are repeated at the code, here and in ``mpi.py``::

    rank 0   works … ends --- shutdown [2] --> waits for shutdowns [3] ....... complaint [5]: prints it, aborts
                                 |                                                 ^
    rank 1   works … waits for rank 0 … notes the shutdown [4], still no message: complains
    rank 2   works … waits for rank 3 … for too long: asks all [6] … rank 3 does not answer: prints it, aborts
                                           |          ^
    rank 4   works … waits for rank 3 …    `---> answers [7]
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from minipipe.comm.job.diagnosis import (
    STOPPED,
    diagnosis,
    is_debugged,
    state_of,
    waits_for_a_person,
)
from minipipe.comm.job.meeting import FINALISING
from minipipe.comm.job.process import DEFERENCE, RankProcess
from minipipe.comm.job.reports import RankReport, report_of
from minipipe.core.comm.host import yield_core
from minipipe.core.comm.mpi_process import MPI, MPIProcess
from minipipe.core.comm.watch import Deadline, Words, titled
from minipipe.errors import MessageError

if TYPE_CHECKING:
    from minipipe.core.comm.mpi import MPIGroup

_LOOK = 0.1  # seconds between the polls of the watchdog thread
_ANSWERS = 1.0  # seconds for answers; a rank without one by then is silent
_PRECEDENCE = 2.5  # seconds in which a lower rank that has asked may end the job
# tags on the job's own communicator
_SHUTDOWN, _COMPLAINT, _QUESTION, _ANSWER = range(4)
# process, whether its watchdog thread may use MPI, and host
_PROCESS = struct.Struct("q?63s")
_FINALISING = 5.0  # seconds that finalising may take, however short the timeout
_LOOKS = 100  # polls of the other ranks during a timeout, by a rank that has finished


class MPIJob(MPIProcess):
    """This process as one of an MPI job that is watched: how it ends, and which other
    ranks have finished.

    Parameters
    ----------
    process : RankProcess

    Attributes
    ----------
    departed : set of int
        The ranks that have announced their shutdown.
    """

    def __init__(self, process: RankProcess) -> None:
        self.process = process
        process.end_all = MPI.COMM_WORLD.Abort
        process.is_consequence = lambda error: isinstance(error, MPI.Exception)
        super().__init__()
        self.activity.unread = self._unread
        self.control = MPI.COMM_WORLD.Dup()
        self.others = set(range(self.world.size)) - {self.world.rank}
        self.departed: set[int] = set()
        self.finalise: Callable[[], object] = MPI.Finalize  # after all shutdowns
        self._processes = _processes(self.world)
        # this rank's sends on the job's own communicator
        self._letters: list[MPI.Request] = []
        self._complaint = ""
        self._answers: dict[int, RankReport] = {}
        self._asked_at = 0.0  # when a lower rank asked most recently
        self._attending = threading.Lock()
        self._sending = threading.Lock()
        self._silent_for: dict[int, float] = {}  # since how many seconds, by rank
        self._watched: Deadline | None = None
        self._is_left = threading.Event()
        self._has_mentioned_debugger = False
        self._watchdog = threading.Thread(
            target=self._watch, name="watchdog", daemon=True
        )
        self._watchdog.start()
        os.register_at_fork(after_in_child=self._disown)

    def _disown(self) -> None:
        """In a forked child: leave MPI, and the end of the job, to the parent."""
        for group in self.groups:
            group.is_closed = True
            group.under_way.clear()
            group.posted.clear()
            group._resources.pop_all()

    def continue_without(self, lost: set[int], finalise: Callable[[], object]) -> None:
        """Expect nothing more of lost ranks. Finalise in another way at the end."""
        # otherwise every later poll for letters of other ranks fails
        self.control.Ack_failed()
        self.others -= lost
        self.finalise = finalise
        self._drop_sent_letters()

    # -- letters between ranks ---------------------------------------------------------

    def attend(self) -> None:
        """Read and answer the letters of other ranks, in a rank that waits or in its
        watchdog thread while it works.
        """
        if not self._attending.acquire(blocking=False):
            return
        try:
            status = MPI.Status()
            while self.control.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):
                data = bytearray(status.Get_count(MPI.BYTE))
                rank = status.source
                self.control.Recv(data, rank, status.tag)
                if status.tag == _SHUTDOWN:
                    self.departed.add(rank)
                elif status.tag == _COMPLAINT:
                    self._complaint = data.decode()
                elif status.tag == _QUESTION:
                    if data and rank < self.world.rank:
                        self._asked_at = time.perf_counter()
                    # [7]
                    report = report_of(self.activity, self.world.rank)
                    self._send(rank, report.to_bytes(), _ANSWER)
                else:
                    self._answers[rank] = RankReport.from_bytes(bytes(data))
        finally:
            self._attending.release()

    def _drop_sent_letters(self) -> None:
        self._letters = [each for each in self._letters if not has_ended(each.Test)]

    def _unread(self) -> list[str]:
        return [words for group in self.groups for words in _unread_in(group)]

    def _send(self, rank: int, data: bytes, tag: int) -> None:
        with self._sending:
            self._drop_sent_letters()
            with suppress(MPI.Exception):  # that rank is lost
                self._letters.append(self.control.Isend(data, rank, tag))

    def _watch(self) -> None:
        """Answer for this rank while it works; give up for it while it is blocked
        inside MPI.
        """
        may_answer = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        while not self._is_left.wait(_LOOK):
            # the rank changes while its report is made; the next may succeed
            with suppress(Exception):
                if may_answer:
                    self.attend()
                if (watched := self._watched) is not None and watched.poll():
                    self._judge_for(watched, may_answer)

    def _judge_for(self, watched: Deadline, may_answer: bool) -> None:
        """End the job, unless the awaited message has arrived meanwhile, or a rank is
        in a debugger.
        """
        report = report_of(self.activity, self.world.rank)
        reports: list[RankReport] | None = [report]
        if may_answer:
            reports = self.judge(lambda: self._watched is not watched)
        if reports is None:
            watched.renew()
            return
        who = titled(report.rank, self.activity.roles)
        waited = (
            f"MessageError: Rank {who} has waited {report.seconds:.1f} s for "
            f"{report.awaited}."
        )
        self.process.end(
            "\n".join([waited, diagnosis(reports, self.activity.roles)]), 1
        )

    @contextmanager
    def watching(self, limit: float, peer: int | None, words: Words) -> Iterator[None]:
        """Let the watchdog thread end the job if this block, a call inside MPI, takes
        longer than ``limit`` s.
        """
        deadline = self._watched = Deadline(limit)
        try:
            with self.activity.waiting(deadline, peer, words):
                yield
        finally:
            self._watched = None

    def judge(
        self, is_over: Callable[[], bool], may_end: bool = True
    ) -> list[RankReport] | None:
        """Return the reports of all ranks [6], or None to continue: the wait is over,
        or a rank is in a debugger.

        If several ranks ask at once, the lowest one that may end the job proceeds, and
        the others wait for that.
        """
        reports = []
        if not self._was_asked():
            reports = self._ask_all(may_end)
        if self._was_asked():
            self._attend_until(is_over, _PRECEDENCE)
            if is_over():
                return None
        reports = reports or self._ask_all(may_end)
        if is_debugged(reports) and not self._has_mentioned_debugger:
            self._has_mentioned_debugger = True
            self.process.say(waits_for_a_person(reports, self.world.rank))
        if is_over() or is_debugged(reports):
            return None
        return reports

    def _was_asked(self) -> bool:
        return time.perf_counter() < self._asked_at + _PRECEDENCE

    def _attend_until(self, is_over: Callable[[], bool], seconds: float) -> None:
        deadline = Deadline(seconds)
        while not is_over() and not deadline.poll():
            self.attend()
            time.sleep(0.005)

    def _ask_all(self, may_end: bool) -> list[RankReport]:
        self._answers = {}
        question = b"may end" * may_end
        for rank in self.others:
            self._send(rank, question, _QUESTION)
        self._attend_until(lambda: len(self._answers) >= len(self.others), _ANSWERS)
        own = self.world.rank
        answers = {own: report_of(self.activity, own), **self._answers}
        everyone = sorted({own, *self.others})
        return [answers.get(rank) or self._silent(rank) for rank in everyone]

    def _silent(self, rank: int) -> RankReport:
        pid, may_answer, host = self._processes[rank]
        place = ""
        if host == socket.gethostname():
            place = state_of(pid)
        if not may_answer and place != STOPPED:
            place = "perhaps busy: with this MPI a rank answers only while it waits"
        return RankReport(rank, pid, host, place=place, is_silent=True)

    # -- a wait that lasts ---------------------------------------------------------

    def during_wait(self, peer: int, waited: Words) -> Callable[[], object]:
        """Return a function that answers other ranks, and notices that the peer has
        exited without sending.
        """
        is_gone = False

        def look() -> None:
            nonlocal is_gone
            self.attend()
            # and still no message, a while after its shutdown handshake
            if is_gone:
                who = titled(peer, self.activity.roles)
                sentence = f"{waited()}; but rank {who} has exited."
                self._complain(peer, sentence)
                raise MessageError("rank-lost", sentence)
            is_gone = peer in self.departed  # [4]

        return look

    def give_up(self, waited: str, is_over: Callable[[], bool]) -> None:
        """Raise a timeout that names the rank to blame; return if the wait is to
        continue.
        """
        reports = self.judge(is_over)
        if reports is not None:
            lines = diagnosis(reports, self.activity.roles)
            raise MessageError("timeout", f"{waited}.\n{lines}")

    def _complain(self, rank: int, text: str) -> None:
        """Tell a rank that has finished that this one is blocked on it; that rank ends
        the job.
        """
        self._send(rank, text.encode(), _COMPLAINT)
        time.sleep(DEFERENCE)  # it knows its exit code, and ends this rank meanwhile

    def describe(self, role: str) -> None:
        """Set the program's name for this rank, for messages about its end."""
        self.process.describe(role)

    def end_by(self, error: BaseException) -> None:
        """End all ranks with a message; a forked child ends alone."""
        if not self.process.is_over:
            self.process.end_by(error)

    def abort(self, code: int) -> NoReturn:
        """End every rank at once, with this exit code (1 instead of 0)."""
        self.process.abort(code)

    # -- the end -----------------------------------------------------------------------

    def leave(self) -> None:
        """Announce the shutdown, wait until all ranks have, and finalise MPI. The last
        call of a rank.
        """
        if self.process.is_over or MPI.Is_finalized():
            return
        try:
            self._shut_down_together()
            self._is_left.set()
            self._watchdog.join()
            for group in self.groups:
                group.withdraw()
            self.process.descriptors.restore()
            with self.process.line.limited(max(self.timeout, _FINALISING), FINALISING):
                MPI.Request.Waitall(self._letters)
                self.finalise()
            self.process.line.close()
            self.process.leave()
        # Ctrl-C, which Python would ignore here, to exit with 0
        except BaseException as error:
            self.process.end_by(error)

    def _shut_down_together(self) -> None:
        self.activity.has_ended = True
        for rank in self.others:
            self._send(rank, b"", _SHUTDOWN)  # [2]
        deadline = Deadline(max(self.timeout / _LOOKS, _ANSWERS))
        pause = 50e-6
        while not self.others <= self.departed:  # [3]
            self.attend()
            if self._complaint:  # [5]
                exited = f"This rank exited early{self.process.exit_place}"
                words = f"{exited}. {self._complaint}"
                last = self.activity.words()
                if last:
                    words += f" Its last action was {last}."
                self.process.end(words, self.process.exit_code)
            if deadline.poll():
                self._end_if_one_is_silent(deadline.limit)
                deadline.renew()
            self._drop_finished()
            if self._unfinished:
                yield_core()  # their bytes may move only while this rank is inside MPI
                continue
            time.sleep(pause)
            pause = min(2 * pause, 5e-3)

    def _end_if_one_is_silent(self, pause: float) -> None:
        """End the job if a rank is stopped. One that still works alone may take as long
        as it needs.
        """
        reports = self.judge(lambda: self.others <= self.departed, may_end=False) or []
        stopped = [r for r in reports if r.is_silent and r.place in (STOPPED, "")]
        silent = {report.rank for report in stopped} - self.departed
        before = {rank: self._silent_for.get(rank, -pause) for rank in silent}
        self._silent_for = {rank: s + pause + _ANSWERS for rank, s in before.items()}
        if any(seconds > self.timeout for seconds in self._silent_for.values()):
            waited = "This rank has finished and waits for the others."
            text = "\n".join([waited, diagnosis(reports, self.activity.roles)])
            self.process.end(text, self.process.exit_code)


def has_ended(is_over: Callable[[], bool]) -> bool:
    """Return whether a message is over, or has failed because a rank was lost."""
    try:
        return is_over()
    except MPI.Exception:
        return True


def _unread_in(group: MPIGroup) -> list[str]:
    """Describe the messages that have arrived in a group and for which no receive is
    posted.
    """
    found = []
    status = MPI.Status()
    first = group.mpi_tag(0)  # those below are the library's own
    for source, world_rank in enumerate(group.world_ranks):
        has_arrived = not group.is_closed and group.comm.Iprobe(
            source, MPI.ANY_TAG, status
        )
        if has_arrived and status.tag >= first:
            tag = status.tag - first
            found.append(f"a message with tag {tag} from rank {world_rank}")
    return found


def _processes(world: MPI.Comm) -> list[tuple[int, bool, str]]:
    """Return the process of every rank, whether its watchdog thread may use MPI, and
    its host. Collective.
    """
    everybody = bytearray(_PROCESS.size * world.size)
    may_answer = MPI.Query_thread() == MPI.THREAD_MULTIPLE
    host = socket.gethostname().encode()[:63]
    world.Allgather(_PROCESS.pack(os.getpid(), may_answer, host), everybody)
    found = _PROCESS.iter_unpack(everybody)
    return [(pid, may, host.rstrip(b"\0").decode()) for pid, may, host in found]
