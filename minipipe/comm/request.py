"""Requests: a send or a receive that was started. Every kind of group returns them."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from minipipe.comm.message import Expectation
from minipipe.errors import ArgumentError, MessageError, RankError

DEFAULT_TIMEOUT = 300.0
"""Seconds that a rank waits for another before it gives up and says what it waited for."""


def chosen_timeout(argument: float | None) -> float:
    """Return the timeout that was given, or that of the variable ``MINIPIPE_TIMEOUT``, or the default, in seconds.

    Raises
    ------
    ArgumentError
        Code ``value``: when it is not above 0.
    """
    told, name = os.environ.get("MINIPIPE_TIMEOUT"), "timeout"
    chosen: float | str = DEFAULT_TIMEOUT if argument is None else argument
    if argument is None and told:
        chosen, name = told, "MINIPIPE_TIMEOUT"
    try:
        if (seconds := float(chosen)) > 0:
            return seconds
    except (TypeError, ValueError):
        pass
    raise ArgumentError("value", f"{name} is {chosen}; expected seconds, more than 0.")


_NOT_YET = ("timeout", "peer-left", "deadlock")  # codes where no message has come


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


class Receive(Request):
    """One receive: one message, however often it is waited for; copied into the caller's array if there is one.

    Parameters
    ----------
    take : function
        ``(expected, timeout) -> array``: waits for the message.
    expected : Expectation
    settled : function
        Called once the message has come, whether it was right or not.
    """

    def __init__(
        self,
        take: Callable[[Expectation, float | None], np.ndarray],
        expected: Expectation,
        settled: Callable[[], object] = lambda: None,
    ) -> None:
        self._take, self._expected, self._settled = take, expected, settled
        self._array: np.ndarray | None = None
        self._error: MessageError | None = None

    def wait(self, timeout: float | None = None) -> np.ndarray:
        """Return the array, or raise what is wrong with the message, the same each time."""
        if self._error is not None:
            raise self._error
        if self._array is None:
            try:
                array, out = self._take(self._expected, timeout), self._expected.like
            except MessageError as error:
                if error.code not in _NOT_YET:
                    self._error = error
                    self._settled()
                raise
            if out is not None:
                out[...] = array
                array = out
            self._array = array
            self._settled()
        return self._array


class Done(Request):
    """A send that was done at once, because the array was copied."""

    def wait(self, timeout: float | None = None) -> None:
        """Return at once."""
        return None


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
