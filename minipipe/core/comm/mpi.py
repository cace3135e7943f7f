"""Ranks as MPI processes.

A message is a header and the bytes of one array: in one piece up to 32 KiB, otherwise
in two.

Sending. If ranks cannot read each other's memory, a large send progresses only while
the sender is inside MPI. So a send gets about the time that its copy takes, in case the
receiver is ready, and is otherwise finished later. It gets no time in an exchange: a
receive from the same rank is posted under the same tag and nothing has come, so that
rank, which still has to send, is not ready. (A fixed 3 ms made pipelines of small
messages five times slower, and was never better.)

Waiting. A spinning wait takes the core that another rank needs, and a sleeping loop
around ``Test`` of a large receive moves one chunk at a time. So the receive that is
posted beforehand is for the header, with space for a small array, and is polled
politely (yield, then short sleeps). The bytes of a large array are received in one
blocking call once its header has arrived.

How an MPI job ends, if somebody watches it, is in ``comm/job/mpi_job.py``.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.comm.host import LOCAL_RANK, launcher_number, yield_core
from minipipe.core.comm.message import (
    HEADER_SIZE,
    Done,
    Expectation,
    Header,
    Label,
    Request,
    as_buffer,
    unpacked,
)
from minipipe.core.comm.mpi_process import MPI, MPIProcess, start_mpi
from minipipe.core.comm.posted import LONGEST, Posted
from minipipe.core.comm.process_group import Channel, ProcessGroup
from minipipe.core.comm.watch import Deadline, Words, exit_code_of, the_watch, titled
from minipipe.core.errors import ArgumentError, MessageError

if TYPE_CHECKING:
    from minipipe.comm.persistent import PersistentRequests

# polls before the sleeps begin, if ranks share cores (400 took a quarter more processor
# time, and were no faster) and if they do not (100 made two ranks 10 % slower)
_YIELDS = (20, 400)
_SPARE = 16  # buffers of finished receives, kept for the next ones
_DONE = Done()
_SLEEPS = (20e-6, 100e-6)  # seconds, shortest and longest
_SEND_TIME = 0.25e-9  # seconds for each byte before a send is left to finish later
_SLOWEST = 1e6  # bytes per second of the slowest link
_LOOK_AROUND = 0.05  # seconds between checks for shutdown handshakes, while waiting
_TAGS_BELOW_ZERO = 9  # the library's own; MPI's begin at zero


def world_group(timeout: float) -> MPIGroup:
    """Return the group of all ranks of this MPI job. Collective."""
    start_mpi()
    group = MPIGroup(_this_process(), MPI.COMM_WORLD.Dup(), timeout)
    group.align_clocks()
    return group


@cache
def _this_process() -> MPIProcess:
    """Return this process in MPI, which starts once."""
    process = the_watch().mpi_process() or MPIProcess()
    atexit.register(process.leave)
    return process


class MPIGroup(ProcessGroup):
    """A rank that is an MPI process; :func:`minipipe.init_process_group` makes it."""

    def __init__(self, job: MPIProcess, comm: MPI.Comm, timeout: float) -> None:
        super().__init__(comm.rank, comm.size, timeout)
        self.job = job
        job.timeout = max(job.timeout, timeout)
        self.comm = comm
        self.posted: dict[tuple[int, int], Posted] = {}  # by source and MPI's tag
        self._spare: list[Posted] = []
        job.groups.append(self)
        self._resources.callback(comm.Free)
        self._resources.callback(self.withdraw)
        self._resources.callback(job.groups.remove, self)
        world = MPI.COMM_WORLD.group
        translated = MPI.Group.Translate_ranks(comm.group, None, world)
        self.world_ranks = list(map(int, translated))
        self.activity = job.activity
        world_rank = job.world.rank
        self.local_rank = launcher_number(os.environ, LOCAL_RANK, default=world_rank)
        self.takes_device_arrays = is_cuda_aware()
        # MPI promises 32767
        self._largest_tag = int(comm.Get_attr(MPI.TAG_UB) or 32767) - _TAGS_BELOW_ZERO

    def _post_send(
        self, header: Header, array: np.ndarray, destination: int, tag: int
    ) -> Request:
        mpi_tag = self.mpi_tag(tag)
        if array.dtype.kind == "V":
            array = as_buffer(array)
        if isinstance(array, np.ndarray) and array.nbytes <= LONGEST:
            buffers: list[Any] = [header.packed + array.tobytes()]
            parts = [self.comm.Isend(buffers[0], destination, mpi_tag)]
            if parts[0].Test():
                return _DONE
        else:
            buffers = [header.packed]
            if header.nbytes:
                buffers.append([array, header.nbytes, MPI.BYTE])
            parts = [self.comm.Isend(each, destination, mpi_tag) for each in buffers]

        def words() -> str:
            peer = self.world_ranks[destination]
            return f"rank {peer} to take {header} with tag {tag}"

        request = _Send(self, parts, buffers, destination, words)
        # MPI reads from the buffers until the send is done, even if the program drops
        # the request and the group.
        self.job.keep(request.is_over)
        self.give_time(request.is_over, destination, tag, header.nbytes)
        return request

    def give_time(
        self, is_over: Callable[[], bool], destination: int, tag: int, num_bytes: int
    ) -> None:
        """Give a send that was started some time, in which a partner that is ready can
        receive it. Local.
        """
        is_exchange = (destination, self.mpi_tag(tag)) in self.posted
        if is_exchange and not self.has_arrived(destination, tag):
            return
        give_up = time.perf_counter() + _SEND_TIME * num_bytes
        while not is_over() and time.perf_counter() < give_up:
            if not self.job.spins:
                yield_core()

    def wait_until_sent(
        self,
        is_over: Callable[[], bool],
        destination: int,
        words: Words,
        timeout: float | None,
    ) -> None:
        """Wait until a send is over. Local."""
        self.activity.claim()
        self._wait_until(is_over, destination, words, timeout)

    def _post_receive(self, expected: Expectation) -> Expectation:
        """Post a receive for the next message of a source and a tag, unless one is
        posted already.
        """
        key = expected.source, self.mpi_tag(expected.tag)
        if key not in self.posted:
            self._post(key)
        return expected

    def _post(self, key: tuple[int, int]) -> None:
        if self._spare:
            posted = self._spare.pop()
        else:
            posted = Posted(bytearray(HEADER_SIZE + LONGEST), is_spare=True)
        posted.request = self.comm.Irecv(posted.memory, *key)
        posted.is_over = False
        self.posted[key] = posted

    def _take(self, expected: Expectation, timeout: float | None) -> np.ndarray:
        key = expected.source, expected.tag + _TAGS_BELOW_ZERO
        posted, length = self.arrival(key, expected.awaited, timeout)
        return self.contents(expected, posted.memory, length, timeout)

    def arrival(
        self, key: tuple[int, int], words: Words, timeout: float | None
    ) -> tuple[Posted, int]:
        """Wait for the next message of a source and a tag; return its receive, and how
        many bytes have arrived. Local.

        Parameters
        ----------
        key : tuple of int
            The source, and MPI's tag.
        words : function
            Describes the message and its sender.
        timeout : float or None
        """
        if self.is_closed or self._parent or get_ident() != self.activity.thread:
            self.check_open()
        if key not in self.posted:
            self._post(key)
        posted = self.posted.pop(key)
        try:
            if not posted.has_arrived():
                self._wait_until(posted.has_arrived, key[0], words, timeout)
        except MPI.Exception:
            raise
        except BaseException:  # too late, or interrupted: the message may still arrive
            self.posted[key] = posted
            raise
        if posted.is_spare and len(self._spare) < _SPARE:
            self._spare.append(posted)
        return posted, posted.status.Get_count(MPI.BYTE)

    def contents(
        self,
        expected: Expectation,
        memory: bytearray | memoryview,
        length: int,
        timeout: float | None,
    ) -> np.ndarray:
        """Return the array of a message that has arrived in memory, or whose header
        has; check it. Local.

        Raises
        ------
        MessageError
            Codes ``damaged``, ``shape``, ``dtype`` and ``disagreement``.
        """
        header = unpacked(bytes(memory[: min(length, HEADER_SIZE)]))
        array = expected.allocate(header.shape, header.dtype)
        if type(array) is not np.ndarray:
            # a GPU may still use the memory's previous contents
            backend.synchronise(backend.array_module(array))
        if length > HEADER_SIZE:
            arrived = np.ndarray(header.shape, header.dtype, memory, HEADER_SIZE)
            if type(array) is not np.ndarray:
                arrived = backend.moved(arrived, backend.array_module(array))
            array[...] = arrived
        elif header.nbytes:
            key = expected.source, expected.tag + _TAGS_BELOW_ZERO
            body = [as_buffer(array), header.nbytes, MPI.BYTE]
            of_body = header.nbytes, expected.source, expected.awaited, timeout
            with self.inside_mpi(*of_body):
                self.comm.Recv(body, *key)
        if expected.like is not None or header.step != expected.step:
            expected.check(header)
        return array

    def inside_mpi(
        self,
        nbytes: int,
        source: int,
        awaited: Callable[[], str],
        timeout: float | None,
    ) -> AbstractContextManager[object]:
        """Return the block in which the bytes of an array are received in one call."""
        limit = self._limit(timeout) + nbytes / _SLOWEST
        peer = self.world_ranks[source]
        return self.job.watching(limit, peer, lambda: f"the bytes of {awaited()}")

    def _channel(
        self, kind: type[Channel], array: np.ndarray, peer: int, tag: int, what: Label
    ) -> Channel:
        if type(array) is np.ndarray:
            from minipipe.comm.persistent import PERSISTENT  # if there are channels

            return PERSISTENT[kind](self, array, peer, tag, what)
        return super()._channel(kind, array, peer, tag, what)

    @cached_property
    def persistent(self) -> PersistentRequests:
        """The requests of channels."""
        from minipipe.comm.persistent import PersistentRequests

        return PersistentRequests(self.job.keep)

    def has_arrived(self, source: int, tag: int) -> bool:
        """Return whether a message has arrived for which a receive was started."""
        posted = self.posted.get((source, self.mpi_tag(tag)))
        return posted is not None and posted.has_arrived()

    def withdraw(self) -> None:
        """Cancel the receives that are posted, and free the requests of channels."""
        for posted in self.posted.values():
            with suppress(MPI.Exception):  # the group may be revoked
                posted.request.Cancel()
                posted.request.Wait()
        self.posted.clear()
        self._spare.clear()
        if "persistent" in vars(self):
            self.persistent.free()

    def mpi_tag(self, tag: int) -> int:
        """Return the tag that MPI gets. Local."""
        if tag > self._largest_tag:
            message = f"tag is {tag}; this MPI allows at most {self._largest_tag}."
            raise ArgumentError(message)
        return tag + _TAGS_BELOW_ZERO

    def _subgroup(self, members: list[int], color: int) -> ProcessGroup | None:
        awaited = "every rank to call split()"
        with self.job.watching(self.timeout, None, lambda: awaited):
            if not members:
                self.comm.Split(MPI.UNDEFINED)
                return None
            comm = self.comm.Split(color, members.index(self.rank))
        return MPIGroup(self.job, comm, self.timeout)

    def _wait_until(
        self,
        is_over: Callable[[], bool],
        peer: int,
        words: Words,
        timeout: float | None,
    ) -> None:
        """Poll politely; give up after the timeout, or when the peer has exited."""
        for number in range(_YIELDS[self.job.spins > 0]):
            if is_over():
                return
            if number >= self.job.spins:
                yield_core()
        deadline = Deadline(self._limit(timeout))
        waited = self._waited(deadline, words)
        with self.activity.waiting(deadline, self.world_ranks[peer], words):
            look = self.job.during_wait(self.world_ranks[peer], waited)
            pause = _SLEEPS[0]
            next_look = 0.0
            while not is_over():
                is_late = deadline.poll()
                if is_late or deadline.spent > next_look:
                    if is_late:
                        # a limit that the caller passed is its own to handle
                        if timeout is not None:
                            raise MessageError("timeout", f"{waited()}.")
                        self.job.give_up(waited(), is_over)
                        deadline.renew()
                    next_look = deadline.spent + _LOOK_AROUND
                    look()
                time.sleep(pause)
                pause = min(1.2 * pause, _SLEEPS[1])

    def _waited(self, deadline: Deadline, words: Words) -> Words:
        """Return a function that describes a wait which begins now, for errors."""
        began = time.localtime()

        def waited() -> str:
            who = titled(self.name(), self.activity.roles)
            since = time.strftime("%H:%M:%S", began)
            return (
                f"Rank {who} has waited {deadline.spent:.1f} s, since {since}, for "
                f"{words()}"
            )

        return waited

    def describe_ranks(self, roles: Mapping[int, str]) -> None:
        """Set the program's names for its ranks, for messages, also about a killed
        rank. Local.
        """
        super().describe_ranks(roles)
        self.job.describe(roles.get(self.name(), ""))

    def abort(self, code: int = 1) -> NoReturn:
        """End every rank at once, with this exit code (1 instead of 0)."""
        self.job.abort(code)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and exit_code_of(error):
            self.job.end_by(error)  # [1]
        super().__exit__(kind, error, trace)


@dataclass(eq=False)
class _Send(Request):
    """A message in one piece or two, under one tag. Holds the buffers until they are
    sent.
    """

    group: MPIGroup
    parts: list[MPI.Request]
    buffers: list[Any]
    peer: int
    words: Words

    def is_over(self) -> bool:
        """Return whether all pieces are sent, or the group has ended without them; then
        drop the buffers.
        """
        try:
            # in order: Testall moves large arrays at half the speed
            while self.parts and self.parts[0].Test():
                self.parts.pop(0)
        except MPI.Exception:
            if not self.group.is_closed:
                raise
            # MPI may tell of a revocation long after it, in the middle of a call on
            # another group.
            self.parts = []
        if not self.parts:
            self.buffers = []
        return not self.parts

    def wait(self, timeout: float | None = None) -> None:
        self.group.wait_until_sent(self.is_over, self.peer, self.words, timeout)


@cache
def is_cuda_aware() -> bool:
    """Return whether this MPI sends and receives memory of NVIDIA GPUs.

    Open MPI and MPICH answer to ``MPIX_Query_cuda_support``, once MPI is initialised;
    others lack the function.
    """
    try:
        return bool(ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support())
    except (OSError, AttributeError):
        return False
