"""The all-reduce of the same few arrays in every step, over channels.

It sends the messages of :class:`minipipe.parallel.reduction.AllReduce`, so other
members may run that one. Pieces of arrays travel and are added as one row, in buffers
that are made once: for small gradients, whose sum is mostly overhead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minipipe.comm.channel import ReceiveChannel, SendChannel
from minipipe.core.comm.process_group import ProcessGroup
from minipipe.parallel.pairwise import in_pairs, sum_in_pairs
from minipipe.parallel.reduction import Arrays, Part, equal_parts, opened

MOST_BYTES = 1 << 18
"""Of all arrays: buffers for more would cost memory, and save little time."""


class RepeatedAllReduce:
    """A sum over ranks that every member gets, in every step. Making it sends nothing.

    Parameters
    ----------
    group : ProcessGroup
    tag : int
        Of contributions; sums have the next tag.
    ranks : sequence of int
        The members, this rank among them, in the order in which they are added.
    sizes : tuple of int
        The elements of each array.
    dtype : dtype
        Of all arrays.
    what : str
        A description of a message, for the error of a timeout, with {} in place of the
        part.

    Attributes
    ----------
    dtype : dtype
    num_bytes : int
        Of all arrays.
    round : int
        As of ``AllReduce``; 3 before the first step.
    sends : list of SendChannel
        The arrays may change before these are done.

    Examples
    --------
    >>> from minipipe import spawn
    >>> from minipipe.parallel.reduction import finish_all
    >>> def add(group):
    ...     reduction = RepeatedAllReduce(group, 0, range(2), (2,), np.float64, "{}")
    ...     array = np.ones(2)
    ...     for step in range(3):
    ...         reduction.begin([array], step)
    ...         finish_all(group, [reduction])
    ...     return array
    >>> spawn(add, num_ranks=2)
    [array([8., 8.]), array([8., 8.])]
    """

    def __init__(
        self,
        group: ProcessGroup,
        tag: int,
        ranks: Sequence[int],
        sizes: tuple[int, ...],
        dtype: Any,
        what: str,
    ) -> None:
        self._group = group
        self._tag = tag
        self._ranks = ranks
        self.dtype = np.dtype(dtype)
        self.num_bytes = sum(sizes) * self.dtype.itemsize
        self._parts = equal_parts(sizes, len(ranks))
        self._lengths = _lengths_of(self._parts)
        self._place = place = ranks.index(group.rank)
        others = [each for each in range(len(ranks)) if each != place]
        own = f"part {place}"
        self._out = {each: self._sender(each, each, tag) for each in others}
        self._in = {
            each: self._receiver(each, place, tag, what.format(own)) for each in others
        }
        self._sums_out = [self._sender(each, place, tag + 1) for each in others]
        self._sums_in = {
            each: self._receiver(
                each, each, tag + 1, what.format(f"the sum of part {each}")
            )
            for each in others
        }
        self.sends = [*self._out.values(), *self._sums_out]
        self._arrays: Sequence[Any] = ()
        self._step = 0
        self.round = 3

    def _sender(self, place: int, part: int, tag: int) -> SendChannel:
        shape = (self._lengths[part],)
        return self._group.send_channel(shape, self.dtype, self._ranks[place], tag)

    def _receiver(self, place: int, part: int, tag: int, what: str) -> ReceiveChannel:
        form = (self._lengths[part],), self.dtype
        return self._group.receive_channel(*form, self._ranks[place], tag, what)

    def begin(self, arrays: Sequence[np.ndarray], step: int) -> None:
        """Begin a sum, and wait for nothing.

        Parameters
        ----------
        arrays : sequence of array
            Of one axis; they become the sums, in place.
        step : int
            The number of the call, which must be the same on all members.
        """
        self._arrays = arrays
        self._step = step
        self.round = 1
        for receiving in self._in.values():
            receiving.start(step)
        for place, sending in self._out.items():
            np.concatenate(self._pieces(place), out=sending.array)
            sending.start(step)

    def _pieces(self, place: int) -> list[np.ndarray]:
        return [self._arrays[i][elements] for i, elements in self._parts[place]]

    def advance(self) -> None:
        """Continue, if the messages of the round have arrived. Local; never waits."""
        while self.round < 3 and self._has_arrived():
            self.go_on()

    def _has_arrived(self) -> bool:
        tag = self._tag + self.round - 1
        return all(self._group.has_arrived(self._ranks[each], tag) for each in self._in)

    def go_on(self) -> None:
        """Wait for the messages of the round, and begin the next one.

        Raises
        ------
        MessageError
            Code ``timeout``, with the description of the awaited message; ``shape`` and
            ``dtype``.
        """
        if self.round == 1:
            total = self._sum()
            for receiving in self._sums_in.values():
                receiving.start(self._step)
            for sending in self._sums_out:
                sending.array[:] = total
                sending.start(self._step)
            self._put(self._place, total)
        else:
            for place, receiving in self._sums_in.items():
                receiving.wait()
                self._put(place, receiving.array)
            self._arrays = ()
        self.round += 1

    def _sum(self) -> np.ndarray:
        """Return the sum of this rank's part, as a row."""
        own = self._pieces(self._place)
        rows: dict[int, Any] = {self._place: np.concatenate(own)}
        others: dict[int, Arrays] = {}
        for place, receiving in self._in.items():
            row = receiving.take()
            if row.dtype == np.uint8:  # some gradient is missing there
                others[place] = opened(row, self._parts[self._place])
            elif row is not receiving.array:
                receiving.take_over(row)
            rows[place] = receiving.array
        if others:
            return self._sum_of_pieces(rows, others)
        return np.asarray(in_pairs(np.add, [rows[place] for place in sorted(rows)]))

    def _sum_of_pieces(
        self, rows: dict[int, np.ndarray], others: dict[int, Arrays]
    ) -> np.ndarray:
        part = self._parts[self._place]
        pieces = [others.get(k) or opened(rows[k], part) for k in sorted(rows)]
        return np.concatenate([sum_in_pairs(terms) for terms in zip(*pieces)])

    def _put(self, place: int, row: np.ndarray) -> None:
        for (i, elements), piece in zip(
            self._parts[place], opened(row, self._parts[place])
        ):
            self._arrays[i][elements] = piece


def is_small(sizes: tuple[int, ...], itemsize: int, n: int) -> bool:
    """Return whether arrays are few bytes, and each of n members has a part of them.

    Parameters
    ----------
    sizes : tuple of int
        The elements of each array.
    itemsize : int
        The bytes of an element.
    n : int

    Examples
    --------
    >>> is_small((3, 1), 4, n=4), is_small((3,), 4, n=4)
    (True, False)
    """
    few = sum(sizes) * itemsize <= MOST_BYTES
    return few and all(_lengths_of(equal_parts(sizes, n)))


def bytes_of_buffers(sizes: tuple[int, ...], itemsize: int, n: int, place: int) -> int:
    """Return the bytes of the buffers of one member, and of its part while it is added.

    Parameters are as in :func:`is_small`; the last is the place of the member.

    Examples
    --------
    >>> bytes_of_buffers((8,), 4, n=2, place=0)
    80
    """
    lengths = _lengths_of(equal_parts(sizes, n))
    own = lengths[place]
    return itemsize * (2 * (sum(lengths) - own) + 2 * (n - 1) * own + own)


def _lengths_of(parts: Sequence[Part]) -> list[int]:
    return [sum(each.stop - each.start for _, each in part) for part in parts]
