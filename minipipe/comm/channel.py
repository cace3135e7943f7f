"""Channels: a message that is sent or received again in every step, over one buffer.

A channel is described and checked once; then ``start`` and ``wait`` alternate, as with the persistent requests of MPI
(``persistent.py``). Its messages are those of ``isend`` and ``irecv``, so either end may use these instead::

    sender     fill array, start(step) … wait(), fill array, start(step) …
    receiver   start(step) … wait(), read array, start(step) …
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from minipipe.autograd.backend import Array
from minipipe.comm.message import Label, Receive, Request, described

if TYPE_CHECKING:
    from minipipe.comm.process_group import ProcessGroup


class SendChannel:
    """A message to one rank under one tag, sent again in every step; :meth:`ProcessGroup.send_channel` makes it.

    Parameters
    ----------
    group : ProcessGroup
    array : array
        The payload.
    destination, tag : int
    what : str or function
        A description of the message, for errors; a function that returns it is called only then.

    Attributes
    ----------
    array : array
        The payload: fill it before ``start``, and not again before ``wait`` has returned.
    """

    def __init__(self, group: ProcessGroup, array: Array, destination: int, tag: int, what: Label = "") -> None:
        self.array = array
        self._group, self._destination, self._tag, self._what = group, destination, tag, what
        self._request: Request | None = None

    def start(self, step: int = 0) -> None:
        """Start to send the array; return at once. Local; the partner is the destination.

        Parameters
        ----------
        step : int
            The number of the sender's call, which the receiver may compare with its own.
        """
        self._request = self._group.isend(self.array, self._destination, self._tag, step=step)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the array may be filled again: at once if nothing was started.

        Parameters
        ----------
        timeout : float, optional
            In seconds; the group's timeout by default.

        Raises
        ------
        MessageError
            Code ``timeout``.
        """
        if self._request is not None:
            self._request.wait(timeout)


class ReceiveChannel:
    """A message from one rank under one tag, received again in every step; :meth:`ProcessGroup.receive_channel`.

    Parameters
    ----------
    group : ProcessGroup
    array : array
        The memory for the payload.
    source, tag : int
    what : str or function
        A description of the message, for errors; a function that returns it is called only then.

    Attributes
    ----------
    array : array
        The payload that arrived: valid from ``wait`` until the next ``start``.
    """

    def __init__(self, group: ProcessGroup, array: Array, source: int, tag: int, what: Label = "") -> None:
        self.array = array
        self._group, self._source, self._tag, self._what = group, source, tag, what
        self._request: Receive | None = None

    def start(self, step: int = 0) -> None:
        """Start to receive the next message; return at once. Local; the partner is the source.

        A message that a failed step has started to receive and not waited for is not lost: the next receive with this
        source and tag takes it.

        Parameters
        ----------
        step : int
            Compared with the sender's.
        """
        self._request = self._group.irecv(
            self._source, self._tag, self.array, step=step, what=self._what, allocate=self._allocate
        )

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the message has arrived in ``array``.

        Parameters
        ----------
        timeout : float, optional
            In seconds; the group's timeout by default.

        Raises
        ------
        MessageError
            Codes ``shape``, ``dtype``, ``disagreement`` (another step), ``damaged``, ``timeout`` and ``rank-lost``.
        """
        assert self._request is not None, "start() comes before wait()"
        self._request.wait(timeout)

    def _allocate(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return memory for a message that arrives: where it is as expected, the array of this channel."""
        is_expected = (tuple(self.array.shape), described(self.array.dtype, shape, 0).dtype) == (shape, dtype)
        return self.array if is_expected else np.empty(shape, dtype)


def empty(shape: tuple[int, ...], dtype: Any, xp: ModuleType) -> Array:
    """Return an array for a channel, in C order, of a shape and a dtype that can be sent.

    Raises
    ------
    MessageError
        Codes ``dtype`` and ``shape``.

    Examples
    --------
    >>> empty((2, 3), "float32", np).shape
    (2, 3)
    """
    array = xp.empty(shape, dtype=dtype)
    described(array.dtype, tuple(array.shape), 0)
    return array
