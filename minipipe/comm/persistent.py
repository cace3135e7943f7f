"""Channels between MPI processes: persistent requests, made once and started in every
step.

Header and array lie side by side in one buffer, or are two messages if the array is
large. So nothing is copied but by MPI, and a message that is as expected costs one
comparison of its header. All others take the way of ``irecv``, with its errors.

MPI gives the messages of a source and a tag to receives in the order in which these
were started. So an active request stands among the receives that the group has posted,
and an ``irecv`` may take its message. If one is posted already, the request stays idle,
and the channel takes the message of that one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from minipipe.comm.channel import ReceiveChannel, SendChannel
from minipipe.core.comm.message import (
    HEADER_SIZE,
    Header,
    Label,
    as_buffer,
    packed_form,
    packed_step,
)
from minipipe.core.comm.mpi_process import MPI
from minipipe.core.comm.posted import LONGEST as LONGEST
from minipipe.core.comm.posted import Posted as Posted

if TYPE_CHECKING:
    from minipipe.core.comm.mpi import MPIGroup

_ALIGNMENT = 64  # bytes: a cache line, and the widest vector registers


class _Buffer:
    """Memory of a message: a header, then an array that begins at a cache line.

    Parameters
    ----------
    array : array
        The payload if it is larger than the capacity; else of its shape and dtype.
    capacity : int
        The bytes for an array behind the header.
    """

    def __init__(self, array: np.ndarray, capacity: int) -> None:
        length = HEADER_SIZE + capacity
        self.memory = bytearray(_ALIGNMENT + length)
        address = np.frombuffer(self.memory, np.uint8).ctypes.data
        self.start = -(address + HEADER_SIZE) % _ALIGNMENT
        self.message = memoryview(self.memory)[self.start : self.start + length]
        if array.nbytes <= capacity:
            array = np.ndarray(array.shape, array.dtype, self.message, HEADER_SIZE)
        self.array = array


class PersistentSend(SendChannel):
    """A channel that sends by a persistent request, a large array by another one.

    Parameters
    ----------
    group : MPIGroup
    like : array
        Of the shape and dtype of the payload.
    destination, tag : int
    what : str or function
        A description of the message, for errors.
    """

    _group: MPIGroup

    def __init__(
        self, group: MPIGroup, like: np.ndarray, destination: int, tag: int, what: Label
    ) -> None:
        is_small = like.nbytes <= LONGEST
        buffer = _Buffer(like, capacity=like.nbytes * is_small)
        super().__init__(group, buffer.array, destination, tag, what)
        self._header = Header.of(like)
        buffer.message[:HEADER_SIZE] = self._header.packed
        self._head = buffer.message[: len(packed_step(0))]
        key = destination, group.mpi_tag(tag)
        self._requests = [group.comm.Send_init(buffer.message, *key)]
        if not is_small:
            body = [as_buffer(like), like.nbytes, MPI.BYTE]
            self._requests.append(group.comm.Send_init(body, *key))
        for request in self._requests:
            group.persistent.add(self, request, request.Test)

    def parts(self) -> dict[str, Any]:
        """Return what a program needs to start it in line."""
        request, *others = self._requests
        if others:
            return {}
        parts = {"head": self._head, "start": request.Start, "test": request.Test}
        return {**parts, "linger": self.linger}

    def start(self, step: int = 0) -> None:
        """Start to send the array; return at once, or once the message before has been
        taken.
        """
        group = self._group
        if (
            group.is_closed
            or group._parent is not None
            or get_ident() != group.activity.thread
        ):
            group.check_open()
        if not self.is_over:
            self.wait()
        if group.on_send is not None:
            group.on_send(self._header, self.array, self._destination, self._tag)
        self._head[:] = packed_step(step)
        self.is_over = False
        for request in self._requests:
            request.Start()
        if not self._is_sent():
            self.linger()

    def linger(self) -> None:
        """Give a send that was started, and is not over, some time."""
        self.is_over = False
        self._group.give_time(
            self._is_sent, self._destination, self._tag, self._header.nbytes
        )

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the array may be filled again: at once if nothing was started."""
        if not self.is_over:
            self._group.wait_until_sent(
                self._is_sent, self._destination, self._awaited, timeout
            )

    def _is_sent(self) -> bool:
        if not self.is_over:
            # in order: Testall moves large arrays at half the speed
            for request in self._requests:
                if not request.Test():
                    return False
            self.is_over = True
        return True

    def _awaited(self) -> str:
        what: object = self._what or self._header
        if callable(what):
            what = what()
        return (
            f"rank {self._group.world_ranks[self._destination]} to take {what} with "
            f"tag {self._tag}"
        )


class PersistentReceive(ReceiveChannel):
    """A channel that receives by a persistent request, a large array by another one.

    Parameters
    ----------
    group : MPIGroup
    like : array
        Of the shape and dtype of the payload.
    source, tag : int
    what : str or function
        A description of the message, for errors.

    Attributes
    ----------
    key : (int, int)
        The source and the tag, under which the group has its receive while it is
        posted.
    """

    _group: MPIGroup

    def __init__(
        self, group: MPIGroup, like: np.ndarray, source: int, tag: int, what: Label
    ) -> None:
        # An array of another shape arrives whole, and the error says which.
        buffer = _Buffer(like, capacity=LONGEST)
        super().__init__(group, buffer.array, source, tag, what)
        self._posted = group.posted
        self.key = (source, group.mpi_tag(tag))
        self._buffer = buffer
        self._form = packed_form(like.dtype, like.shape)
        self._length = HEADER_SIZE + like.nbytes
        self._body: MPI.Prequest | None = None
        if like.nbytes > LONGEST:
            self._length = HEADER_SIZE
            body = [as_buffer(like), like.nbytes, MPI.BYTE]
            self._body = group.comm.Recv_init(body, *self.key)
            group.persistent.add(self, self._body, lambda: True)
        self._expected_header = b""
        self._own = Posted(buffer.message, is_spare=False)
        self._own.request = group.comm.Recv_init(buffer.message, *self.key)
        group.persistent.add(
            self, self._own.request, _is_not_posted(group.posted, self.key, self._own)
        )

    def start(self, step: int = 0) -> None:
        """Start to receive the next message, unless a receive is posted already; return
        at once.
        """
        group = self._group
        if (
            group.is_closed
            or group._parent is not None
            or get_ident() != group.activity.thread
        ):
            group.check_open()
        self._step = step
        self._expected_header = packed_step(step) + self._form
        if self.key not in self._posted:
            self._own.request.Start()
            self._own.is_over = False
            self._posted[self.key] = self._own

    def parts(self) -> dict[str, Any]:
        """Return what a program needs to start and to finish it in line.

        The receive must not be posted when it is started: see :attr:`key`.
        """
        if self._body is not None:
            return {}
        own = self._own
        return {
            "posted": self._posted,
            "own": own,
            "key": self.key,
            "start": own.request.Start,
            "test": own.request.Test,
            "status": own.status,
            "begins": self._buffer.memory.startswith,
            "form": self._form,
            "offset": self._buffer.start,
            "wait": self.wait_in,
        }

    def wait_in(self, step: int) -> None:
        """Wait for a message that a program has started to receive in a step."""
        self._step = step
        self._expected_header = packed_step(step) + self._form
        own = self._own
        # most are late by the time of a few looks
        for _ in range(self._group.job.spins):
            if own.has_arrived():
                break
        array = self.take()
        if array is not self.array:
            self.take_over(array)

    def take(self, timeout: float | None = None) -> np.ndarray:
        """Wait until the message has arrived, of whatever shape and dtype, and return
        its array.
        """
        own = self._own
        group = self._group
        key = self.key
        if self._posted.get(key) is own and own.has_arrived():
            del self._posted[key]
            posted = own
            length = own.status.Get_count(MPI.BYTE)
        else:
            posted, length = group.arrival(key, self._awaited, timeout)
        is_whole = posted is own and length == self._length
        if is_whole and self._buffer.memory.startswith(
            self._expected_header, self._buffer.start
        ):
            if self._body is not None:
                self._receive_body(self._body, timeout)
            return self.array
        expected = self._expectation()._replace(like=None)
        return group.contents(expected, posted.memory, length, timeout)

    def _receive_body(self, body: MPI.Prequest, timeout: float | None) -> None:
        body.Start()
        if not body.Test():
            nbytes = self.array.nbytes
            source = self.key[0]
            with self._group.inside_mpi(nbytes, source, self._awaited, timeout):
                body.Wait()

    def _awaited(self) -> str:
        return self._expectation().awaited()


def _is_not_posted(
    posted: dict[tuple[int, int], Posted], key: tuple[int, int], own: Posted
) -> Callable[[], bool]:
    """Return a function that says whether a receive is idle; it does not hold the
    channel.
    """
    return lambda: posted.get(key) is not own


PERSISTENT: dict[type, Any] = {
    SendChannel: PersistentSend,
    ReceiveChannel: PersistentReceive,
}


class PersistentRequests:
    """The persistent requests of a group: freed when their channels have been dropped,
    or at the end.

    MPI sends from the memory of a request until it is over, even if the program drops
    the channel and the group.

    Parameters
    ----------
    keep : function
        Holds a function until it returns True, by calling it now and then:
        :meth:`MPIJob.keep`.
    """

    def __init__(self, keep: Callable[[Callable[[], bool]], object]) -> None:
        self._keep = keep
        self._requests: list[tuple[ref[Any], MPI.Request, Callable[[], bool]]] = []

    def add(
        self,
        channel: SendChannel | ReceiveChannel,
        request: MPI.Request,
        is_idle: Callable[[], bool],
    ) -> None:
        """Add the request of a channel, and free the requests of channels that were
        dropped.

        Not when they are dropped: garbage is collected in any thread, and MPI may not
        allow calls of another one.
        """
        alive = []
        for entry in self._requests:
            owner, dropped, is_free = entry
            if owner() is None and is_free():
                dropped.Free()
            else:
                alive.append(entry)
        self._requests = [*alive, (ref(channel), request, is_idle)]

    def free(self) -> None:
        """Free all; a send that is not over once it is. No receive may be active any
        more.
        """
        for _, request, is_idle in self._requests:
            with suppress(MPI.Exception):  # the group may be revoked
                if is_idle():
                    request.Free()
                else:
                    self._keep(_freed_once(request, is_idle))
        self._requests = []


def _freed_once(
    request: MPI.Request, is_idle: Callable[[], bool]
) -> Callable[[], bool]:
    """Return a function that frees a request if it is idle, and says whether it is
    freed.
    """

    def is_over() -> bool:
        try:
            if request != MPI.REQUEST_NULL and is_idle():
                request.Free()
        except MPI.Exception:  # the group is revoked
            return True
        return request == MPI.REQUEST_NULL

    return is_over
