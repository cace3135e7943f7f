"""Messages between two ranks: what every kind of group does alike.

A kind of group brings four things: post a send, post a receive, make a subgroup, abort.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import NoReturn, Self

import numpy as np

from minipipe import backend
from minipipe.backend import Array
from minipipe.comm.message import Expectation, Header
from minipipe.errors import LaunchError, RankError

__all__ = ["DEFAULT_TIMEOUT", "Done", "PointToPoint", "Request", "check_rank"]

DEFAULT_TIMEOUT = 300.0
"""Seconds that a rank waits for another before it gives up and says what it waited for."""


class Request(ABC):
    """A send or a receive that was started.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import init_process_group
    >>> with init_process_group() as group:
    ...     sending = group.isend(np.array([1.0, 2.0]), destination=0)
    ...     receiving = group.irecv(source=0)
    ...     print(receiving.wait(), sending.wait())
    [1. 2.] None
    """

    @abstractmethod
    def wait(self, timeout: float | None = None) -> np.ndarray | None:
        """Wait until it is done. Returns the array of a receive, None for a send.

        Parameters
        ----------
        timeout : float, optional
            In seconds; the group's own by default.

        Raises
        ------
        MessageError
            Code ``timeout``, naming what was awaited, from whom and since when; or what is wrong with the message.
        """


class Done(Request):
    """A send that was done at once, because the array was copied."""

    def wait(self, timeout: float | None = None) -> None:
        """Return at once."""
        return None


class PointToPoint(ABC):
    """Ranks 0 to size - 1, of which this object is one, and the messages between any two of them.

    Attributes
    ----------
    takes_device_arrays : bool
        Whether arrays in the memory of a GPU can be sent as they are.
    local_rank : int
        Which one this is among the ranks of this machine, as far as the launcher tells.
    """

    takes_device_arrays = False

    def __init__(self, rank: int, size: int, timeout: float = DEFAULT_TIMEOUT) -> None:
        if not timeout > 0:
            raise ValueError(f"timeout is {timeout}; expected seconds, more than 0.")
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self.local_rank = rank
        self.is_closed = False
        self._parent: PointToPoint | None = None  # the group that this one was split off from
        self._resources = ExitStack()

    # -- what each kind of group brings ---------------------------------------------------------------------

    @abstractmethod
    def _post_send(self, header: Header, array: np.ndarray, destination: int, tag: int) -> Request: ...

    @abstractmethod
    def _post_receive(self, expected: Expectation) -> Request: ...

    @abstractmethod
    def abort(self, code: int = 1) -> NoReturn:
        """End every rank at once, with an exit code that is not 0.

        Examples
        --------
        >>> from minipipe import init_process_group
        >>> with init_process_group() as group:
        ...     group.abort(3)
        Traceback (most recent call last):
            ...
        SystemExit: 3
        """

    # -- two ranks ------------------------------------------------------------------------------------------

    def isend(self, array: Array, destination: int, tag: int = 0, *, step: int = 0) -> Request:
        """Start to send an array, and return at once.

        Local; the partner is ``destination``, which receives with the same tag. Do not change the array before the
        request is done. Roughly: ``request = comm.Isend(array, destination, tag)``.

        Parameters
        ----------
        array : array
            Of numbers, with at most 8 axes; its shape and dtype travel along. One of another module than NumPy only
            where the group ``takes_device_arrays``.
        destination : int
            A rank; oneself is allowed.
        tag : int
            At least 0. Messages of one sender and one tag arrive in order.
        step : int
            The training step, which the receiver may compare with its own.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import spawn
        >>> def swap(group):
        ...     request = group.isend(np.array(group.rank), destination=1 - group.rank)
        ...     received = group.recv(source=1 - group.rank)
        ...     request.wait()
        ...     return int(received)
        >>> spawn(swap, num_ranks=2)
        [1, 0]
        """
        if tag < 0:
            raise ValueError(f"tag is {tag}; expected at least 0.")
        return self._isend(array, destination, tag, step)

    def _isend(self, array: Array, destination: int, tag: int, step: int = 0) -> Request:
        self._check_open()
        check_rank("destination", destination, self.size)
        if not (self.takes_device_arrays and backend.is_array(array)):
            array = np.asarray(array)
        array = backend.contiguous(array)
        backend.synchronise(backend.array_module(array))  # MPI reads the memory as soon as it is told to
        return self._post_send(Header.of(array, step), array, destination, tag)

    def irecv(
        self,
        source: int,
        tag: int = 0,
        out: np.ndarray | None = None,
        *,
        step: int | None = None,
        what: str = "",
        allocate: Callable[..., Array] = np.empty,
    ) -> Request:
        """Say that a message is expected; its array comes from ``wait()``.

        Local; nothing is taken before ``wait``, so of several receives with one source and tag, the one waited for
        first gets the first message. The partner is ``source``, which sends with the same tag.

        Parameters
        ----------
        source : int
            A rank.
        tag : int
            At least 0.
        out : array, optional
            Filled with what arrives, which must have the same shape and dtype.
        step : int, optional
            Compared with the sender's.
        what : str
            In words, what is awaited; for the message of a timeout.
        allocate : function
            ``(shape, dtype) -> array`` for what arrives.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import spawn
        >>> def add(group):
        ...     if group.rank > 0:
        ...         return group.send(np.array(10.0 * group.rank), destination=0)
        ...     return sum(float(request.wait()) for request in [group.irecv(source=1), group.irecv(source=2)])
        >>> spawn(add, num_ranks=3)
        [30.0, None, None]
        """
        if tag < 0:
            raise ValueError(f"tag is {tag}; expected at least 0.")
        self._check_open()
        check_rank("source", source, self.size)
        expected = Expectation(self.rank, source, tag, out, step, what, allocate)
        return _ReceiveInto(self._post_receive(expected), out)

    def send(self, array: np.ndarray, destination: int, tag: int = 0, *, timeout: float | None = None) -> None:
        """Send an array and wait until it may be changed again.

        Local; the partner is ``destination``. A large array is only gone once the partner receives it: two ranks that
        both send first and receive afterwards wait for each other (use :meth:`isend`).

        Parameters
        ----------
        array : array
        destination : int
            A rank.
        tag : int
            At least 0.
        timeout : float, optional
            In seconds; the group's own by default.

        Raises
        ------
        MessageError
            Code ``timeout``.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import spawn
        >>> def pass_on(group):
        ...     if group.rank == 0:
        ...         return group.send(np.array([1.5, 2.5]), destination=1)
        ...     return group.recv(source=0).tolist()
        >>> spawn(pass_on, num_ranks=2)
        [None, [1.5, 2.5]]
        """
        self.isend(array, destination, tag).wait(timeout)

    def recv(
        self, source: int, tag: int = 0, out: np.ndarray | None = None, *, timeout: float | None = None
    ) -> np.ndarray:
        """Wait for an array and return it.

        Local; the partner is ``source``, which sends with the same tag. Shape and dtype come with the message; if
        ``out`` is given, they must be its own, and it is filled.

        Parameters
        ----------
        source : int
            A rank.
        tag : int
            At least 0.
        out : array, optional
        timeout : float, optional
            In seconds; the group's own by default.

        Raises
        ------
        MessageError
            Codes ``shape``, ``dtype``, ``timeout``, ``peer-left``.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import spawn
        >>> def receive_into(group):
        ...     if group.rank == 0:
        ...         return group.send(np.array([1.0, 2.0]), destination=1, tag=7)
        ...     out = np.zeros(2)
        ...     return group.recv(source=0, tag=7, out=out) is out
        >>> spawn(receive_into, num_ranks=2)
        [None, True]
        """
        array = self.irecv(source, tag, out).wait(timeout)
        assert array is not None
        return array

    def _receive(
        self, source: int, tag: int, out: np.ndarray | None, what: str, timeout: float | None = None
    ) -> np.ndarray:
        self._check_open()
        request = self._post_receive(Expectation(self.rank, source, tag, out, None, what))
        array = _ReceiveInto(request, out).wait(timeout)
        assert array is not None
        return array

    @staticmethod
    def _finish(sends: list[Request], timeout: float | None = None) -> None:
        for send in sends:
            send.wait(timeout)

    # -- the end --------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._parent is not None:
            self._parent._check_open()
        if self.is_closed:
            raise LaunchError("closed", "This group was closed (its with-block has ended); start another one.")

    def close(self) -> None:
        """Give back what the group holds, such as the limit on BLAS threads. Local; may be called twice.

        Examples
        --------
        >>> from minipipe import init_process_group
        >>> group = init_process_group()
        >>> group.close()
        >>> group.is_closed
        True
        """
        self.is_closed = True
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: rank {self.rank} of {self.size}>"


class _ReceiveInto(Request):
    """One receive: one message, however often it is waited for; copied into the caller's array if there is one."""

    def __init__(self, request: Request, out: np.ndarray | None) -> None:
        self._request: Request | None = request
        self._out = out
        self._array: np.ndarray | None = None

    def wait(self, timeout: float | None = None) -> np.ndarray | None:
        if self._request is not None:
            self._array = self._request.wait(timeout)
            self._request = None
            if self._out is not None:
                self._out[...] = self._array
                self._array = self._out
        return self._array


def check_rank(name: str, rank: int, size: int) -> None:
    """Refuse a rank that does not exist.

    Raises
    ------
    RankError
        Code ``out-of-range``.

    Examples
    --------
    >>> check_rank("source", 4, size=4)
    Traceback (most recent call last):
        ...
    minipipe.errors.RankError: source is 4, but there are 4 ranks, counted from 0.
    """
    if not 0 <= rank < size:
        raise RankError("out-of-range", f"{name} is {rank}, but there are {size} ranks, counted from 0.")
