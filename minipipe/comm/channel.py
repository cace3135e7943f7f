"""Channels: a message that is sent or received again in every step, over one buffer.

A channel is described and checked once; then ``start`` and ``wait`` alternate, as with
the persistent requests of MPI (``persistent.py``). It sends the same messages as
``isend``, so either end may use ``isend`` or ``irecv`` instead::

    sender     fill array, start(step) … wait(), fill array, start(step) …
    receiver   start(step) … wait(), read array, start(step) …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from minipipe.core.autograd.backend import Array
from minipipe.core.comm.message import (
    Expectation,
    Header,
    Label,
    Receive,
    Request,
    described,
    finish,
    packed_step,
)
from minipipe.errors import MessageError

if TYPE_CHECKING:
    from minipipe.core.comm.process_group import ProcessGroup


class SendChannel:
    """A message to one rank under one tag, sent again in every step;
    :meth:`ProcessGroup.send_channel` makes it.

    Parameters
    ----------
    group : ProcessGroup
    array : array
        The payload.
    destination, tag : int
    what : str or function
        A description of the message, for errors; a function that returns it is called
        only then.

    Attributes
    ----------
    array : array
        The payload: fill it before ``start``, and not again before ``wait`` has
        returned.
    is_over : bool
        Whether nothing is under way, as far as was asked.
    """

    def __init__(
        self,
        group: ProcessGroup,
        array: Array,
        destination: int,
        tag: int,
        what: Label = "",
    ) -> None:
        self.array = array
        self._group = group
        self._destination = destination
        self._tag = tag
        self._what = what
        self._request: Request | None = None
        self.is_over = True

    def parts(self) -> dict[str, Any]:
        """Return what a program needs to use it in line; nothing, if it cannot."""
        return {}

    def start(self, step: int = 0) -> None:
        """Start to send the array; return at once. Local; the partner is the
        destination.

        Parameters
        ----------
        step : int
            The number of the sender's call, which the receiver may compare with its
            own.
        """
        self.is_over = False
        self._request = self._group.isend(
            self.array, self._destination, self._tag, step=step
        )

    def use(self, array: Array) -> None:
        """Use other memory of the same shape and dtype, while nothing is under way."""
        self.array = array

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
            self.is_over = True
            self._request = None  # which may hold a copy of the array


class ReceiveChannel:
    """A message from one rank under one tag, received again in every step;
    :meth:`ProcessGroup.receive_channel`.

    Parameters
    ----------
    group : ProcessGroup
    array : array
        The memory for the payload.
    source, tag : int
    what : str or function
        A description of the message, for errors; a function that returns it is called
        only then.

    Attributes
    ----------
    array : array
        The payload that arrived: valid from ``wait`` until the next ``start``.
    other : array or None
        The last payload that was not of the shape and dtype of ``array``.
    """

    def __init__(
        self, group: ProcessGroup, array: Array, source: int, tag: int, what: Label = ""
    ) -> None:
        self.array = array
        self._group = group
        self._source = source
        self._tag = tag
        self._what = what
        # without this channel, which has the receive that has this
        self._allocate = partial(_allocated, array)
        self._request: Receive | None = None
        self.other: Array | None = None
        self._step = 0

    def parts(self) -> dict[str, Any]:
        """Return what a program needs to use it in line; nothing, if it cannot."""
        return {}

    def start(self, step: int = 0) -> None:
        """Start to receive the next message; return at once. Local; the partner is the
        source.

        A message that a failed step has started to receive and not waited for is not
        lost: the next receive with this source and tag takes it.

        Parameters
        ----------
        step : int
            Compared with the sender's.
        """
        self._step = step
        self._request = self._group.irecv(
            self._source, self._tag, step=step, what=self._what, allocate=self._allocate
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
            Codes ``shape``, ``dtype``, ``disagreement`` (another step), ``damaged``,
            ``timeout`` and ``rank-lost``.
        """
        array = self.take(timeout)
        if array is not self.array:
            self.take_over(array)

    def take_over(self, array: Array) -> None:
        """Copy another array that :meth:`take` has returned; raise if it differs."""
        self.other = array
        self._expectation().check(Header.of(array, self._step))
        self.other = None
        self.array[...] = array

    def use(self, array: Array) -> None:
        """Use other memory of the same shape and dtype from the next start on."""
        self.array = array
        self._allocate = partial(_allocated, array)

    def take(self, timeout: float | None = None) -> Array:
        """Wait until the message has arrived, of whatever shape and dtype; return its
        array: ``array``, or another one.

        Parameters
        ----------
        timeout : float, optional
            In seconds; the group's timeout by default.

        Raises
        ------
        MessageError
            As ``wait``, but not codes ``shape`` and ``dtype``.
        """
        assert self._request is not None, "start() comes before wait()"
        array = self._request.wait(timeout)
        self._request = None
        return array

    def _expectation(self) -> Expectation:
        group = self._group
        return Expectation(
            group.rank,
            self._source,
            self._tag,
            self.array,
            self._step,
            self._what,
            self._allocate,
            group.world_ranks,
        )


def _allocated(own: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return memory for a message that arrives: a channel's own array if it is as
    expected.
    """
    own_dtype = described(own.dtype, shape, 0).dtype
    if (tuple(own.shape), own_dtype) == (shape, dtype):
        return own
    return np.empty(shape, dtype)


class BroadcastChannel:
    """A small array that one rank gives to all others, again in every call; what
    ``broadcast`` sends, with less work.

    Parameters
    ----------
    group : ProcessGroup
    shape : tuple of int
    dtype : dtype
    root : int
        A rank.
    tag : int
    what : str or function
        A description of the message, for errors; a function that returns it is called
        only then.

    Attributes
    ----------
    array : array
        On the root, the array to send.
    """

    def __init__(
        self,
        group: ProcessGroup,
        shape: tuple[int, ...],
        dtype: Any,
        root: int,
        tag: int,
        what: Label = "",
    ) -> None:
        parent, children = group.tree(root)
        self._group = group
        self._tag = tag
        self._children = children
        self._sending = [
            group.send_channel(shape, dtype, child, tag, what) for child in children
        ]
        self._receiving: ReceiveChannel | None = None
        if parent is not None:
            self._receiving = group.receive_channel(shape, dtype, parent, tag, what)
        # Without a copy for the first child, often the only one.
        first = self._receiving or next(iter(self._sending), None)
        self.array = empty(shape, dtype, np)
        if first is not None:
            self.array = first.array

    def run(self) -> Array:
        """Return the array that the root has sent, of whatever shape and dtype it is.
        Collective.
        """
        array = self.array
        if self._receiving is not None:
            self._receiving.start()
            array = self._receiving.take()
            if array is not self.array:
                finish(
                    [
                        self._group.isend(array, child, self._tag)
                        for child in self._children
                    ]
                )
                return array
        for sending in self._sending:
            if sending.array is not array:
                sending.array[...] = array
            sending.start()
        for sending in self._sending:
            if not sending.is_over:
                sending.wait()
        return array


class ExchangeChannel:
    """Some numbers that ranks give to all others, again in every call; each sends them
    itself, without waiting.

    Parameters
    ----------
    group : ProcessGroup
    lengths : mapping of int to int
        By sender, how many numbers it sends.
    tag : int
    what : str or function
        A description of the messages, for errors; a function that returns it is called
        only then.
    """

    def __init__(
        self,
        group: ProcessGroup,
        lengths: Mapping[int, int],
        tag: int,
        what: Label = "",
    ) -> None:
        own = self._rank = group.rank
        self._group = group
        self._is_sender = own in lengths
        self._sending: list[SendChannel] = []
        self._receiving: dict[int, ReceiveChannel] = {}
        self._is_open = False
        for other in range(group.size):
            if own in lengths and other != own:
                self._sending.append(
                    group.send_channel((lengths[own],), np.float64, other, tag, what)
                )
            if other in lengths and other != own:
                self._receiving[other] = group.receive_channel(
                    (lengths[other],), np.float64, other, tag, what
                )

        # of each channel, to use it without a call; empty for one that has none
        self._parts = [each.parts() for each in self._sending]
        self._parts_of = {
            source: each.parts() for source, each in self._receiving.items()
        }

    def exchange(self, numbers: Sequence[float], step: int) -> dict[int, list[float]]:
        """Return the numbers of all senders, by sender; this rank sends its own, if it
        is one. Collective.
        """
        if self._is_open:  # a call that has failed, and whose messages nobody has read
            with suppress(MessageError):
                for receiving in self._receiving.values():
                    receiving.wait()
        self._is_open = True
        if self._group.is_closed:
            self._group.check_open()
        head = packed_step(step)
        found = {}
        self._start(numbers, step, head)
        for source, receiving in self._receiving.items():
            parts = self._parts_of[source]
            own = parts.get("own")
            if own is None or parts["posted"].get(parts["key"]) is not own:
                receiving.wait()
            else:
                own.is_over = own.is_over or parts["test"](parts["status"])
                if own.is_over and parts["begins"](
                    head + parts["form"], parts["offset"]
                ):
                    del parts["posted"][parts["key"]]
                else:
                    parts["wait"](step)
            found[source] = receiving.array.tolist()
        for sending in self._sending:
            if not sending.is_over:
                sending.wait()
        self._is_open = False
        if self._is_sender:
            found[self._rank] = [*numbers]
        return found

    def _start(self, numbers: Sequence[float], step: int, head: bytes) -> None:
        """Start all messages; without a call for each, if they have parts."""
        for sending, parts in zip(self._sending, self._parts):
            if not sending.is_over:
                sending.wait()
            sending.array[:] = numbers
            if not parts:
                sending.start(step)
                continue
            parts["head"][:] = head
            parts["start"]()
            if not parts["test"]():
                parts["linger"]()
        for source, receiving in self._receiving.items():
            parts = self._parts_of[source]
            if not parts or parts["key"] in parts["posted"]:
                receiving.start(step)
                continue
            parts["own"].is_over = False
            parts["posted"][parts["key"]] = parts["own"]
            parts["start"]()


def empty(shape: tuple[int, ...], dtype: Any, xp: ModuleType) -> Array:
    """Return an array for a channel, in C order, of a shape and a dtype that can be
    sent.

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
