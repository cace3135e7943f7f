"""Requests: a send or a receive that was started. Every kind of group returns them."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from minipipe.errors import RankError

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
            Code ``timeout``, naming the message, its sender and the time waited; or the code of what is wrong with it.
        """


class Done(Request):
    """A send that was done at once, because the array was copied."""

    def wait(self, timeout: float | None = None) -> None:
        """Return at once."""
        return None


class ReceiveInto(Request):
    """One receive: one message, however often it is waited for; copied into the caller's array if there is one."""

    def __init__(self, request: Request, out: np.ndarray | None) -> None:
        self._request: Request | None = request
        self._out = out
        self._array: np.ndarray | None = None

    def wait(self, timeout: float | None = None) -> np.ndarray | None:
        """Return the array, the same each time."""
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
