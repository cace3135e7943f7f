"""Ranks as MPI processes. The only file that imports mpi4py.

Sending. Where ranks cannot read each other's memory, a large send moves only while the sender is inside MPI. So a send
is given about the time that its copy takes, in case the receiver waits already, and is finished later otherwise. (A
fixed 3 ms made pipelines of small messages five times slower, and was never better.)

Waiting. A spinning wait takes the core that another rank needs, and a sleeping loop around ``Test`` of a large posted
receive moves one chunk at a time where ranks cannot read each other's memory. So a receive first only looks for a
matching message, politely (yield, then short sleeps), and takes its bytes with one blocking call once it is there.

Ending. A rank that raises, exits or returns while others wait for it would leave them waiting for ever. So

* an exception, or ``sys.exit(n)`` inside the with-block, aborts the job [1];
* a rank that comes to its end says goodbye to all others [2], and finalises MPI only when all have said goodbye [3];
* a rank that waits for one that has said goodbye [4] complains to it, and the complaint ends the job [5].

The tags are repeated at the code::

    rank 0   … works …  end --- goodbye [2] ---> waits for goodbyes [3] ...... complaint [5]: says why, aborts
                                   |                                               ^
    rank 1   … works … waits for rank 0 … notes the goodbye [4], and still nothing: complains
    rank 2   … works … raises [1]: says why, aborts
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

import mpi4py
import numpy as np

mpi4py.rc.finalize = False  # done in _Job.leave, once everybody has said goodbye
from mpi4py import MPI

from minipipe import backend
from minipipe.backend import Array
from minipipe.comm.ending import Watchdog, exit_code_of, last_words
from minipipe.comm.host import yield_core
from minipipe.comm.message import Expectation, Header
from minipipe.comm.process_group import ProcessGroup
from minipipe.comm.request import Request
from minipipe.errors import ArgumentError, MessageError

_YIELDS = 400  # looks that only yield the core, before the sleeps begin (100 made two ranks 10 % slower)
_SLEEPS = (20e-6, 100e-6)  # seconds, shortest and longest
_SEND_PATIENCE = 0.25e-9  # seconds for each byte, before a send is left to finish later
_FORWARDING = 0.1  # seconds for what was said to reach the terminal, before an abort
_END_PATIENCE = 10  # times the timeout: how long a rank that has ended waits for one that still works alone
_LOOK_AROUND = 0.05  # seconds between looks for goodbyes, while waiting
_GOODBYE, _COMPLAINT = 0, 1  # tags on the job's own communicator
_LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
_TAGS_BELOW_ZERO = 8  # the library's own; MPI's begin at zero


class _Job:
    """This process as one of an MPI job: how it ends, and who else has come to an end."""

    def __init__(self) -> None:
        self.world = MPI.COMM_WORLD
        self.control = MPI.COMM_WORLD.Dup()
        self.departed: set[int] = set()
        self.exit_code = 0
        self.timeout = 0.0  # the longest of all groups'
        self.unfinished: list[_Send] = []  # of all groups
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
        prefix = f"[rank {self.world.rank}] "
        sys.stderr.write("".join(f"{prefix}{line}\n" for line in text.splitlines()))
        sys.stderr.flush()

    def abort(self, code: int) -> NoReturn:
        sys.stdout.flush()
        sys.stderr.flush()
        code = code & 0xFF or 1
        time.sleep(_FORWARDING)  # the launcher ends at once, and with it whatever it has not yet forwarded
        self.world.Abort(code)
        os._exit(code)  # Abort does not return

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
            self.unfinished = [send for send in self.unfinished if not send.is_over()]
            if self.unfinished:
                yield_core()  # their bytes may move only while this rank looks after them
                continue
            time.sleep(pause)
            pause = min(2 * pause, 5e-3)
        MPI.Request.Waitall(self._goodbyes)
        MPI.Finalize()


@functools.cache
def _job() -> _Job:
    """Return the job; MPI is there once in a process, and so is this."""
    return _Job()


def world_group(timeout: float) -> MPIGroup:
    """Return the group of all ranks of this MPI job. Collective."""
    group = MPIGroup(_job(), MPI.COMM_WORLD.Dup(), timeout)
    group.align_clocks()
    return group


class MPIGroup(ProcessGroup):
    """A rank that is an MPI process; :func:`minipipe.init_process_group` makes it."""

    def __init__(self, job: _Job, comm: MPI.Comm, timeout: float) -> None:
        super().__init__(comm.rank, comm.size, timeout)
        self._job = job
        job.timeout = max(job.timeout, timeout)
        self._comm = comm
        self._resources.callback(comm.Free)
        self._world_rank = [int(r) for r in MPI.Group.Translate_ranks(comm.group, None, MPI.COMM_WORLD.group)]
        self.local_rank = _local_rank(comm.rank)
        self.takes_device_arrays = is_cuda_aware()
        self._largest_tag = int(comm.Get_attr(MPI.TAG_UB) or 32767) - _TAGS_BELOW_ZERO  # MPI promises 32767

    def _post_send(self, header: Header, array: np.ndarray, destination: int, tag: int) -> Request:
        request = _Send(self, header, array, destination, self._mpi_tag(tag))
        request.progress(_SEND_PATIENCE * header.nbytes)
        # MPI reads from the buffers until the send is done, whether or not anybody keeps the request or the group.
        self._job.unfinished = [send for send in (*self._job.unfinished, request) if not send.is_over()]
        return request

    def _post_receive(self, expected: Expectation) -> Request:
        return _Receive(self, expected, self._mpi_tag(expected.tag))

    def _mpi_tag(self, tag: int) -> int:
        if tag > self._largest_tag:
            raise ArgumentError("value", f"tag is {tag}; this MPI allows at most {self._largest_tag}.")
        return tag + _TAGS_BELOW_ZERO

    def _subgroup(self, members: list[int], color: int) -> ProcessGroup | None:
        place = members.index(self.rank) if members else 0
        comm = self._comm.Split(color if members else MPI.UNDEFINED, place)
        return None if comm == MPI.COMM_NULL else MPIGroup(self._job, comm, self.timeout)

    def limit(self, timeout: float | None) -> float:
        """Return the seconds that a wait may last."""
        return self.timeout if timeout is None else timeout

    def _wait_until(self, is_over: Callable[[], bool], peer: int, words: str, timeout: float | None) -> None:
        """Ask again and again, politely; give up after the timeout, or when the peer has come to its end."""
        for _ in range(_YIELDS):
            if is_over():
                return
            yield_core()
        since, started = time.time(), time.perf_counter()
        deadline = started + self.limit(timeout)
        next_look, peer_is_gone, pause = started + min(_LOOK_AROUND, deadline - started), False, _SLEEPS[0]
        while not is_over():
            now = time.perf_counter()
            if now > next_look:
                next_look = now + _LOOK_AROUND
                waited = f"Rank {self.rank} has waited {now - started:.1f} s, since {_clock(since)}, for {words}"
                if now > deadline:
                    raise _late(waited, peer)
                self._job.look_around()
                if peer_is_gone:  # and still nothing, a while after its goodbye
                    sentence = f"{waited}; but rank {peer} has come to its end."
                    self._job.complain(self._world_rank[peer], sentence)
                    raise MessageError("peer-left", sentence)
                peer_is_gone = self._world_rank[peer] in self._job.departed  # [4]
            time.sleep(pause)
            pause = min(1.2 * pause, _SLEEPS[1])

    def abort(self, code: int = 1) -> NoReturn:
        """End every rank at once, with this exit code (1 instead of 0)."""
        self._job.abort(code)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not (isinstance(error, SystemExit) and exit_code_of(error) == 0):
            self._job.end_by(error)  # [1]
        self.close()


class _Send(Request):
    """Two messages under one tag: the header, and the bytes. Holds both until they are gone."""

    def __init__(self, group: MPIGroup, header: Header, array: np.ndarray, destination: int, tag: int) -> None:
        self._group = group
        self._words = f"rank {destination} to take {header} with tag {tag - _TAGS_BELOW_ZERO}"
        self._destination = destination
        packed = header.pack()
        self._buffers: tuple = (packed, array)
        self._parts = [group._comm.Isend([packed, MPI.BYTE], destination, tag)]
        if header.nbytes:
            self._parts.append(group._comm.Isend(_bytes_of(array), destination, tag))

    def is_over(self) -> bool:
        """Tell whether both parts are gone, and let go of them once they are."""
        if self._parts and MPI.Request.Testall(self._parts):
            self._parts, self._buffers = [], ()
        return not self._parts

    def progress(self, patience: float) -> None:
        """Give the send a while, so that a partner who waits already can take it."""
        give_up = time.perf_counter() + patience
        while not self.is_over() and time.perf_counter() < give_up:
            yield_core()

    def wait(self, timeout: float | None = None) -> None:
        self._group._wait_until(self.is_over, self._destination, self._words, timeout)


class _Receive(Request):
    """Matches first, then takes the bytes."""

    def __init__(self, group: MPIGroup, expected: Expectation, tag: int) -> None:
        self._group = group
        self._expected = expected
        self._tag = tag
        self._words = f"{expected} from rank {expected.source}"

    def _next(self, timeout: float | None) -> MPI.Message:
        expected, found = self._expected, []

        def look() -> bool:
            message = self._group._comm.Improbe(expected.source, self._tag)
            if message is not None:
                found.append(message)
            return message is not None

        self._group._wait_until(look, expected.source, self._words, timeout)
        return found[0]

    def wait(self, timeout: float | None = None) -> np.ndarray:
        data = bytearray(Header.size())
        try:
            self._next(timeout).Recv([data, MPI.BYTE])
        except MPI.Exception as error:
            if error.Get_error_class() != MPI.ERR_TRUNCATE:
                raise
            data = bytearray()  # something longer than a header
        header = Header.unpack(data)
        try:
            self._expected.check(header)
        except MessageError:
            self._take(header, timeout)  # so that the next message of this tag begins with its header again
            raise
        return self._take(header, timeout)

    def _take(self, header: Header, timeout: float | None) -> np.ndarray:
        array = self._expected.allocate(header.shape, np.dtype(header.dtype))
        backend.synchronise(backend.array_module(array))  # memory that a GPU may still use for what it held before
        if header.nbytes:
            message = self._next(timeout)
            with self._group._job.watchdog.watch(self._group.limit(timeout), f"the bytes of {self._words}"):
                message.Recv(_bytes_of(array))
        return array


def _bytes_of(array: Array) -> list[Any]:
    return [array.reshape(-1).view(np.uint8), MPI.BYTE]


def _local_rank(otherwise: int) -> int:
    """Return this rank's number among those of this machine, which every launcher tells under another name."""
    told = (os.environ.get(name) for name in _LOCAL_RANK)
    return next((int(number) for number in told if number), otherwise)


@functools.cache
def is_cuda_aware() -> bool:
    """Tell whether this MPI sends and receives the memory of NVIDIA's GPUs.

    Open MPI and MPICH answer to ``MPIX_Query_cuda_support``, once MPI is initialised; others have no such function.
    """
    try:
        return bool(ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support())
    except (OSError, AttributeError):
        return False


def _late(waited: str, peer: int) -> MessageError:
    return MessageError(
        "timeout",
        f"{waited}. Rank {peer} may have stopped, be busy for longer, or never come to its half of this message.",
    )


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))
