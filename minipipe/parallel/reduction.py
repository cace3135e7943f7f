"""The reduction over ranks: a reduce-scatter and an all-gather, in a fixed order.

Member j of n adds part j of the arrays, and sends the sum to the others; two members::

    rank 0   begins --[1] part 1--.   .-- [2] adds part 0 --[3]--.   .-- [4] has both
                                   \\ /                            \\ /
    rank 1   begins --[1] part 0----'---- [2] adds part 1 --[3]----'---- [4] has both

Every member sends 2 (n - 1) / n of the bytes, in two rounds: [1] is the reduce-scatter,
[3] the all-gather. No member waits at [1]. It continues with [2] to [4] when messages
have arrived, or waits for them.

Contributions are added in pairs, in the order of the members (`pairwise.py`), so the
bits depend neither on the order in which messages arrive nor on the part of an element.
MPI's own reductions leave that order to the library.

References
----------
Rabenseifner 2004, "Optimization of collective reduction operations", for the two
phases. Here each member adds its part in one round, not by recursive halving.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np

from minipipe.comm.objects import pack, unpack
from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.comm.message import (
    HEADER_SIZE,
    MAGIC,
    Expectation,
    Header,
    Request,
    finish,
    unpacked,
)
from minipipe.core.comm.process_group import OwnTag, ProcessGroup
from minipipe.errors import MessageError
from minipipe.parallel.pairwise import in_pairs, sum_in_pairs

Arrays = Sequence[Array | None]
Part = Sequence[tuple[int, slice]]
"""The number of an array, and a slice of its elements."""
Add = Callable[[Sequence[Any]], Any]


class Channel(NamedTuple):
    """How the messages of one reduction travel.

    Attributes
    ----------
    group : ProcessGroup
    tag : int
        Of contributions. Sums have the next tag, so that none is taken for a
        contribution that was lost.
    step : int
        The number of the call, which must be the same on all members.
    xp : module
        The array module of the arrays that arrive.
    """

    group: ProcessGroup
    tag: int
    step: int = 0
    xp: ModuleType = np

    def others(self, ranks: Iterable[int]) -> list[int]:
        """Return some ranks without this one. Local."""
        return [rank for rank in ranks if rank != self.group.rank]

    @property
    def of_sums(self) -> Channel:
        """The channel of the all-gather. Local."""
        return self._replace(tag=self.tag + 1 if self.tag >= 0 else OwnTag.SUM)


class Exchange:
    """One round of messages: to some ranks, and from some ranks.

    Making it starts all sends and receives, and waits for none of them.

    Parameters
    ----------
    channel : Channel
    outgoing : iterable of (array, list of int)
        Messages, and the ranks that get each.
    awaited : mapping of int to str
        By sender, a description of its message for the error of a timeout.

    Attributes
    ----------
    sends : list of Request
        The messages may not change before these are done.
    """

    def __init__(
        self,
        channel: Channel,
        outgoing: Iterable[tuple[np.ndarray, Sequence[int]]],
        awaited: Mapping[int, str],
    ) -> None:
        self._group, self._tag, step, _ = channel
        # Before the sends, which then do not wait for a receiver that still sends.
        self._receives = {
            rank: self._group.irecv(rank, self._tag, step=step, what=what)
            for rank, what in awaited.items()
        }
        self.sends: list[Request] = [
            self._group.isend(message, rank, self._tag, step=step)
            for message, ranks in outgoing
            for rank in ranks
        ]

    def has_arrived(self) -> bool:
        """Return whether all messages have arrived; False if this is unknown. Local."""
        return all(self._group.has_arrived(rank, self._tag) for rank in self._receives)

    def wait(self) -> dict[int, np.ndarray]:
        """Wait for all messages, and return them by sender. Call it once.

        Raises
        ------
        MessageError
            Code ``timeout``, with the description of the awaited message.
        """
        messages = {rank: request.wait() for rank, request in self._receives.items()}
        self._receives = {}  # they hold the messages
        return messages


class ReduceScatter:
    """A sum over ranks of which each member gets a part. Making it waits for nothing.

    Parameters
    ----------
    channel : Channel
    ranks : sequence of int
        The members, this rank among them, in the order in which they are added.
    arrays : list of array or None
        The contribution of this rank: arrays of one axis.
    parts : sequence of sequence of (int, slice)
        By member, the elements that it adds: the number of an array, and a slice.
    what : str
        A description of a message, for the error of a timeout, with {} in place of the
        part.
    add : function
        From the contributions of all members to a piece, to their sum.

    Attributes
    ----------
    sends : list of Request

    Examples
    --------
    >>> from minipipe import spawn
    >>> def scatter(group):
    ...     own = [np.array([1.0, 2.0]) * 10**group.rank]
    ...     parts = [[(0, slice(0, 1))], [(0, slice(1, 2))]]
    ...     channel = Channel(group, tag=0)
    ...     return ReduceScatter(channel, range(2), own, parts, "a part").wait()
    >>> spawn(scatter, num_ranks=2)
    [[array([11.])], [array([22.])]]
    """

    def __init__(
        self,
        channel: Channel,
        ranks: Sequence[int],
        arrays: Arrays,
        parts: Sequence[Part],
        what: str,
        add: Add = sum_in_pairs,
    ) -> None:
        self._channel = channel
        self._ranks = ranks
        self._what = what
        self._add = add
        self.arrays = list(arrays)
        self._parts = parts
        self._place = ranks.index(channel.group.rank)
        self._own = _cut_out(arrays, parts[self._place])
        others = channel.others(ranks) if arrays else []  # no messages for nothing
        outgoing = [
            (self._message(_cut_out(arrays, part)), [rank])
            for rank, part in zip(ranks, parts)
            if rank in others
        ]
        awaited = dict.fromkeys(others, what.format(f"part {self._place}"))
        self._exchange = Exchange(channel, outgoing, awaited)
        self.sends = self._exchange.sends

    def wait(self) -> list[Array | None]:
        """Return the sums of this rank's part, an array for each piece. Call it once.

        Raises
        ------
        MessageError
            Code ``timeout``, as :meth:`Exchange.wait`.
        """
        pieces = {self._channel.group.rank: self._own}
        for rank, message in self._exchange.wait().items():
            pieces[rank] = self._opened(message, rank)
        in_order = [pieces[rank] for rank in self._ranks if rank in pieces]
        return [self._add(terms) for terms in zip(*in_order)]

    def _message(self, pieces: Arrays) -> np.ndarray:
        return packed(pieces)

    def _opened(self, message: np.ndarray, rank: int) -> list[Array | None]:
        return opened(message, self._parts[self._place], self._channel.xp)


class AllGather:
    """Parts of arrays, one of each member, for all. Making it waits for nothing.

    Parameters
    ----------
    channel : Channel
    ranks : sequence of int
        The members, this rank among them.
    arrays : list of array or None
        The whole arrays, of one axis, with this rank's part. The others are written
        into them; an array that only other members have is made in the list.
    parts : sequence of sequence of (int, slice)
        By member, the elements that it has: the number of an array, and a slice.
    what : str
        A description of a message, for the error of a timeout, with {} in place of the
        number of the part.

    Attributes
    ----------
    exchange : Exchange

    Examples
    --------
    >>> from minipipe import spawn
    >>> def gather(group):
    ...     whole, parts = np.zeros(2), [[(0, slice(0, 1))], [(0, slice(1, 2))]]
    ...     whole[group.rank] = 10 + group.rank
    ...     channel = Channel(group, tag=0)
    ...     AllGather(channel, range(2), [whole], parts, "part {}").wait()
    ...     return whole
    >>> spawn(gather, num_ranks=2)
    [array([10., 11.]), array([10., 11.])]
    """

    def __init__(
        self,
        channel: Channel,
        ranks: Sequence[int],
        arrays: list[Any],
        parts: Sequence[Part],
        what: str,
    ) -> None:
        self._ranks = ranks
        self._arrays = arrays
        self._parts = parts
        self._xp = channel.xp
        others = channel.others(ranks) if arrays else []
        own = _cut_out(arrays, parts[ranks.index(channel.group.rank)])
        outgoing = [(packed(own), others)] if others and own else []
        awaited = {
            rank: what.format(place)
            for place, rank in enumerate(ranks)
            if rank in others and parts[place]
        }
        self.exchange = Exchange(channel, outgoing, awaited)

    def wait(self) -> None:
        """Write the parts of the others into the arrays. Call it once.

        Raises
        ------
        MessageError
            Code ``timeout``, as :meth:`Exchange.wait`.
        """
        for rank, message in self.exchange.wait().items():
            place = self._ranks.index(rank)
            pieces = opened(message, self._parts[place], self._xp)
            _put(self._arrays, self._parts, place, pieces, self._xp)


class AllReduce(ReduceScatter):
    """A sum over ranks that every member gets. Making it waits for nothing.

    Parameters are as of :class:`ReduceScatter`. The arrays become the sums, in place;
    an array that only other members have is made here.

    Attributes
    ----------
    arrays : list of array or None
    round : int
        1 before the sums of this rank's part are complete, 2 before the other sums have
        arrived, then 3.

    Examples
    --------
    >>> from minipipe import spawn
    >>> def add(group):
    ...     own = [np.arange(3.0), np.ones(1) if group.rank else None]
    ...     channel, parts = Channel(group, tag=0), equal_parts((3, 1), 2)
    ...     reduction = AllReduce(channel, range(2), own, parts, "{} of both")
    ...     finish_all(group, [reduction])
    ...     return reduction.arrays
    >>> spawn(add, num_ranks=2)[0]
    [array([0., 2., 4.]), array([1.])]
    """

    round = 1

    def advance(self) -> None:
        """Continue, if the messages of the round have arrived. Local; never waits."""
        while self.round < 3 and self._exchange.has_arrived():
            self.go_on()

    def go_on(self) -> None:
        """Wait for the messages of the round, and begin the next one.

        Raises
        ------
        MessageError
            Code ``timeout``, as :meth:`Exchange.wait`.
        """
        if self.round == 1:
            total = self.wait()
            xp = self._channel.xp
            _put(self.arrays, self._parts, self._place, total, xp)
            words = self._what.format("the sum of part {}")
            channel = self._channel.of_sums
            self._gathering = AllGather(
                channel, self._ranks, self.arrays, self._parts, words
            )
            self._exchange = self._gathering.exchange
            self.sends = self.sends + self._exchange.sends
        else:
            self._gathering.wait()
        self.round += 1


class InRounds(Protocol):
    """A reduction that goes on in two rounds, as :class:`AllReduce` does."""

    @property
    def round(self) -> int:
        """The round that is under way: 1, 2, or 3 behind the last one."""

    @property
    def sends(self) -> Sequence[Any]:
        """The sends of both rounds."""

    def go_on(self) -> None:
        """Wait for the messages of the round, and begin the next one."""


def finish_all(group: ProcessGroup, reductions: Iterable[InRounds]) -> None:
    """Wait for several reductions. Collective among the members of each.

    Members may have begun them in any order: the first round of all comes before the
    second of any.

    Raises
    ------
    MessageError
        Code ``timeout``, as :meth:`Exchange.wait`.
    """
    reductions = list(reductions)
    try:
        for number in (1, 2):
            # Of two ranks that are blocked on each other, which is ahead?
            group.activity.round = number
            for reduction in reductions:
                if reduction.round == number:
                    reduction.go_on()
    finally:
        group.activity.round = 0
    finish(send for reduction in reductions for send in reduction.sends)


# -- one array of all ranks of a group ------------------------------------------------

_ONE_ARRAY = "its part of an all-reduce"


def all_reduce(
    group: ProcessGroup, array: Any, operation: Callable[[Any, Any], Any]
) -> np.ndarray:
    """Return an array combined over all ranks; see :meth:`ProcessGroup.all_reduce`."""
    own = np.array(array, order="C")
    ranks = range(group.size)
    channel = Channel(group, OwnTag.GATHER)
    Header.of(own)  # refuses an array that cannot be sent, also on one rank
    if group.size > 2:
        add = partial(in_pairs, operation)
        finish_all(group, [_LabelledAllReduce(channel, ranks, own, add)])
        return own
    # Two ranks send as many bytes if each one adds everything, and in one round.
    others = channel.others(ranks)
    exchange = Exchange(channel, [(own, others)], dict.fromkeys(others, _ONE_ARRAY))
    terms = {group.rank: own, **exchange.wait()}
    finish(exchange.sends)
    for rank in others:
        _check(channel, rank, Header.of(terms[rank]), own)
    return np.asarray(in_pairs(operation, [terms[rank] for rank in ranks]))


class _LabelledAllReduce(AllReduce):
    """The all-reduce of one array, whose shape and dtype all members compare."""

    def __init__(
        self, channel: Channel, ranks: Sequence[int], whole: np.ndarray, add: Add
    ) -> None:
        self._whole = whole
        parts = equal_parts((whole.size,), len(ranks))
        super().__init__(channel, ranks, [whole.reshape(-1)], parts, _ONE_ARRAY, add)

    def _message(self, pieces: Sequence[Any]) -> np.ndarray:
        label = np.frombuffer(Header.of(self._whole).packed, np.uint8)
        return np.concatenate([label, *(piece.view(np.uint8) for piece in pieces)])

    def _opened(self, message: np.ndarray, rank: int) -> list[Any]:
        if not has_label(message):
            group = self._channel.group
            words = f"Rank {group.name(rank)} sent rank {group.name()} a message of"
            words += f" another call instead of {self._what}."
            advice = "Every rank must make the same calls in the same order."
            raise MessageError("disagreement", f"{words} {advice}")
        header = unpacked(message[:HEADER_SIZE].tobytes())
        _check(self._channel, rank, header, self._whole)
        return [message[HEADER_SIZE:].view(header.dtype)]


def _check(channel: Channel, rank: int, header: Header, own: np.ndarray) -> None:
    """Compare a member's array with this rank's.

    Raises
    ------
    MessageError
        Codes ``shape`` and ``dtype``, naming both ranks.
    """
    if header.packed != Header.of(own).packed:
        group = channel.group
        tag = channel.tag
        names = group.world_ranks
        Expectation(group.rank, rank, tag, own, what=_ONE_ARRAY, names=names).check(
            header
        )


def has_label(message: np.ndarray) -> bool:
    """Return whether a message has its part of an array behind a header. Local."""
    return message.dtype == np.uint8 and message[: len(MAGIC)].tobytes() == MAGIC


# -- messages -------------------------------------------------------------------------


def packed(arrays: Arrays) -> np.ndarray:
    """Return a copy of arrays as one message.

    Arrays of one axis and one dtype become a row, in a tenth of the time that it takes
    to describe each. Bytes are always described: they would be taken for a description.

    Examples
    --------
    >>> packed([np.ones(2), np.zeros(1)])
    array([1., 1., 0.])
    """
    rows = [backend.to_numpy(array) for array in arrays if array is not None]
    forms = {(row.ndim, row.dtype) for row in rows}
    is_row = len(rows) == len(arrays) and len(forms) == 1 and rows[0].ndim == 1
    if is_row and rows[0].dtype != np.uint8:
        return np.concatenate(rows)
    return pack(arrays)


def opened(message: np.ndarray, part: Part, xp: ModuleType = np) -> list[Any]:
    """Return the arrays of a message of :func:`packed`; a row is divided by a part."""
    if message.dtype == np.uint8:
        arrays = unpack(message)
    else:
        arrays = []
        first = 0
        for _, elements in part:
            end = first + elements.stop - elements.start
            arrays.append(message[first:end])
            first = end
    if xp is np:
        return arrays
    return [None if array is None else backend.moved(array, xp) for array in arrays]


# -- parts ----------------------------------------------------------------------------


def _cut_out(arrays: Arrays, part: Part) -> list[Array | None]:
    pairs = [(arrays[i], elements) for i, elements in part]
    return [None if array is None else array[e] for array, e in pairs]


def _put(
    arrays: list[Any], parts: Sequence[Part], place: int, pieces: Arrays, xp: ModuleType
) -> None:
    for (i, elements), piece in zip(parts[place], pieces):
        if piece is not None:
            if arrays[i] is None:
                ends = [e.stop for part in parts for k, e in part if k == i]
                arrays[i] = xp.zeros(max(ends), dtype=piece.dtype)
            arrays[i][elements] = piece


@lru_cache(maxsize=256)
def equal_parts(sizes: tuple[int, ...], n: int) -> list[list[tuple[int, slice]]]:
    """Return the pieces of arrays of some sizes that each of n members adds.

    The elements of all arrays, one array after the other, are divided equally. An array
    without elements is in the last part.

    Examples
    --------
    >>> equal_parts((4, 1, 3), 2)[1]
    [(1, slice(0, 1, None)), (2, slice(0, 3, None))]
    """
    total = sum(sizes)
    parts = list[list[tuple[int, slice]]]()
    for member in range(n):
        start = member * total // n
        stop = (member + 1) * total // n
        first = 0
        part = []
        for i, size in enumerate(sizes):
            begin = max(start, first) - first
            end = min(stop, first + size) - first
            # One member finds out whether an array without elements is None.
            if begin < end or (size == 0 and member == n - 1):
                elements = slice(begin, end) if size else slice(0, 0)
                part.append((i, elements))
            first += size
        parts.append(part)
    return parts


# -- bytes ----------------------------------------------------------------------------


def bytes_of_sum(arrays: Sequence[tuple[int, int]], n: int, place: int) -> int:
    """Return the most bytes that an all-reduce takes beside its arrays, on one member.

    These are the parts that it sent, which may be in flight until the end; its own
    part, to which it added; and the parts that it received: [2] or [4] of this file's
    picture, whichever are more.

    Parameters
    ----------
    arrays : sequence of (int, int)
        The elements of each, and the bytes of an element; 0 if it is None.
    n, place : int
        The number of members, and the place of this one.

    Examples
    --------
    >>> bytes_of_sum([(6, 4), (2, 4)], 2, 0), bytes_of_sum([(8, 4)], 4, 0)
    (48, 56)
    >>> bytes_of_sum([(8, 4)], 1, 0)
    0
    """
    parts = _bytes_of_parts(arrays, n)
    others = sum(parts) - parts[place]
    received = max(others, (n - 1) * parts[place])
    if n == 1:
        return 0
    return others + parts[place] + received


def bytes_sent_in_sum(arrays: Sequence[tuple[int, int]], n: int, place: int) -> int:
    """Return the bytes of arrays that one member sends in an all-reduce: [1] and [3].

    For n equal parts they are 2 (n - 1) / n of the arrays. Parameters are as in
    :func:`bytes_of_sum`.

    Examples
    --------
    >>> bytes_sent_in_sum([(6, 4), (2, 4)], 2, 0), bytes_sent_in_sum([(8, 4)], 4, 0)
    (32, 48)
    >>> bytes_sent_in_sum([(8, 4)], 1, 0)
    0
    """
    parts = _bytes_of_parts(arrays, n)
    return sum(parts) + (n - 2) * parts[place]


def _bytes_of_parts(arrays: Sequence[tuple[int, int]], n: int) -> list[int]:
    parts = equal_parts(tuple(size for size, _ in arrays), n)
    return [
        sum((elements.stop - elements.start) * arrays[i][1] for i, elements in part)
        for part in parts
    ]
