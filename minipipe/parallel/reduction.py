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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from minipipe.autograd import backend
from minipipe.autograd.backend import Array
from minipipe.comm.message import Expectation, Request, described, finish
from minipipe.comm.objects import pack, unpack
from minipipe.comm.process_group import OwnTag, ProcessGroup
from minipipe.errors import MessageError
from minipipe.parallel.pairwise import in_pairs, sum_in_pairs

Arrays = Sequence[Array | None]
Part = Sequence[
    tuple[int, slice]
]  # the number of an array, and a slice of its elements
Add = Callable[[Sequence[Any]], Any]

_CONTENT = ("dtype", "shape", "arrays")  # of a packed message


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
    """One round of messages: lists of arrays to some ranks, and from some ranks.

    Making it starts all sends and receives, and waits for none of them.

    Parameters
    ----------
    channel : Channel
    outgoing : iterable of (list of array or None, list of int)
        Arrays, and the ranks that get them.
    awaited : mapping of int to str
        By sender, a description of its message for the error of a timeout.
    like : array, optional
        The sender's array, of which its message has a part, must have this shape and
        dtype.

    Attributes
    ----------
    sends : list of Request
        Their arrays may not change before these are done.
    """

    def __init__(
        self,
        channel: Channel,
        outgoing: Iterable[tuple[Arrays, Sequence[int]]],
        awaited: Mapping[int, str],
        like: np.ndarray | None = None,
    ) -> None:
        self._channel, self._awaited, self._like = channel, awaited, like
        group, tag, step, _ = channel
        # Before the sends, which then do not wait for a receiver that still sends.
        self._receives = {
            rank: group.irecv(rank, tag, step=step, what=what)
            for rank, what in awaited.items()
        }
        self.sends: list[Request] = []
        for arrays, ranks in outgoing:
            message = _message(arrays, like) if ranks else None
            self.sends += [group.isend(message, rank, tag, step=step) for rank in ranks]

    def has_arrived(self) -> bool:
        """Return whether all messages have arrived; False if this is unknown. Local."""
        group, tag, *_ = self._channel
        return all(group.has_arrived(rank, tag) for rank in self._receives)

    def wait(self) -> dict[int, list[Array | None]]:
        """Wait for all messages, and return their arrays by sender. Call it once.

        Raises
        ------
        MessageError
            Code ``timeout``, with the description of the awaited message; ``shape`` and
            ``dtype``, if a sender's array is not like this rank's.
        """
        # All of them before any check: after an error none is left for the next call.
        messages = {rank: one.wait() for rank, one in self._receives.items()}
        self._receives = {}  # they hold the messages
        return {rank: self._opened(one, rank) for rank, one in messages.items()}

    def _opened(self, message: np.ndarray, rank: int) -> list[Array | None]:
        dtype, shape = message.dtype, message.shape
        arrays: list[Array | None] = [message]
        if dtype == np.uint8:
            try:
                content = unpack(message)
                dtype, shape, arrays = [content[name] for name in _CONTENT]
                dtype, shape = np.dtype(dtype), tuple(shape or ())
            except (ValueError, LookupError, TypeError):
                raise self.of_another_call(rank) from None
        group, tag, step, xp = self._channel
        if self._like is not None:
            what, names = self._awaited[rank], group.world_ranks
            expected = Expectation(
                group.rank, rank, tag, self._like, step, what, names=names
            )
            expected.check(described(dtype, shape, step))
        if xp is np:
            return arrays
        return [None if array is None else backend.moved(array, xp) for array in arrays]

    def of_another_call(self, rank: int) -> MessageError:
        """Return the error of a message of a rank that is in another collective call."""
        group = self._channel.group
        words = f"Rank {group.name(rank)} sent rank {group.name()} a message of another"
        words += f" call instead of {self._awaited[rank]}."
        advice = "Every rank must make the same calls in the same order."
        return MessageError("disagreement", f"{words} {advice}")


def _message(arrays: Arrays, like: np.ndarray | None) -> np.ndarray:
    """Return arrays as one message; a whole array that the receiver compares, itself.

    Bytes are always packed: they would be taken for a packed message.
    """
    if like is None:
        return pack({"dtype": None, "shape": None, "arrays": arrays})
    (array,) = arrays or [None]
    if array is not None and array.shape == like.shape and array.dtype != np.uint8:
        return array
    name = backend.dtype_name(like.dtype)
    return pack({"dtype": name, "shape": like.shape, "arrays": arrays})


class ReduceScatter:
    """A sum over ranks of which each member gets a part. Making it waits for nothing.

    Parameters
    ----------
    channel : Channel
    ranks : sequence of int
        The members, this rank among them, in the order in which they are added.
    arrays : list of array or None
        The contribution of this rank: arrays of one axis. Unchanged until the sends are
        done.
    parts : sequence of sequence of (int, slice), optional
        By member, the elements that it adds: the number of an array, and a slice. If it
        is left out, each member adds all elements: no all-gather is needed then, but
        each member sends its contribution n - 1 times.
    what : str
        A description of the contribution of another member, for the error of a timeout.
    add : function
        From the contributions of all members to a piece, to their sum.
    like : array, optional
        See :class:`Exchange`.

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
        parts: Sequence[Part] | None,
        what: str,
        add: Add = sum_in_pairs,
        like: np.ndarray | None = None,
    ) -> None:
        self._rank, self._ranks, self._add = channel.group.rank, ranks, add
        self._compares = like is not None
        others = channel.others(ranks)
        if parts is None:
            self._own, outgoing = arrays, [(arrays, others)]
        else:
            self._own = _cut_out(arrays, parts[ranks.index(self._rank)])
            # An empty part has no message, unless that compares shapes.
            outgoing = [
                (_cut_out(arrays, part), [rank])
                for rank, part in zip(ranks, parts)
                if rank in others and (part or like is not None)
            ]
        is_awaited = self._own or like is not None
        awaited = dict.fromkeys(others, what) if is_awaited else {}
        self.exchange = Exchange(channel, outgoing, awaited, like)

    def wait(self) -> list[Array | None]:
        """Return the sums of this rank's part, an array for each piece of it.

        Raises
        ------
        MessageError
            Codes ``timeout``, ``shape`` and ``dtype``, as :meth:`Exchange.wait`.
        """
        contributions = {**self.exchange.wait(), self._rank: self._own}
        if self._compares:
            self._check_pieces(contributions)
        in_order = [
            contributions[rank] for rank in self._ranks if rank in contributions
        ]
        return [self._add(terms) for terms in zip(*in_order)]

    def _check_pieces(self, contributions: Mapping[int, Arrays]) -> None:
        """Refuse a whole array of another call with the same tag, such as a gather."""
        own = list(map(np.shape, self._own))
        for rank, pieces in contributions.items():
            if list(map(np.shape, pieces)) != own:
                raise self.exchange.of_another_call(rank)


class AllReduce:
    """A sum over ranks that every member gets. Making it waits for nothing.

    Parameters
    ----------
    channel : Channel
    ranks : sequence of int
        As of a :class:`ReduceScatter`, and so are ``add`` and ``like``.
    arrays : list of array or None
        The contribution of this rank, arrays of one axis. They become the sums, in
        place; an array that only other members have is made here.
    sizes : sequence of int
        The number of elements of each.
    what : str
        A description of a message, for the error of a timeout, with {} in place of the
        part.
    add : function
    like : array, optional

    Attributes
    ----------
    arrays : list of array or None
    round : int
        1 before the sums of this rank's part are complete, 2 before the other sums have
        arrived, then 3.
    sends : list of Request

    Examples
    --------
    >>> from minipipe import spawn
    >>> def add(group):
    ...     own = [np.arange(3.0), np.ones(1) if group.rank else None]
    ...     channel = Channel(group, tag=0)
    ...     reduction = AllReduce(channel, range(2), own, [3, 1], "{} of both")
    ...     finish_all(group, [reduction])
    ...     return reduction.arrays
    >>> spawn(add, num_ranks=2)[0]
    [array([0., 2., 4.]), array([1.])]
    """

    def __init__(
        self,
        channel: Channel,
        ranks: Sequence[int],
        arrays: Arrays,
        sizes: Sequence[int],
        what: str,
        add: Add = sum_in_pairs,
        like: np.ndarray | None = None,
    ) -> None:
        self.arrays, self.round = list(arrays), 1
        self._channel, self._ranks, self._sizes, self._what = (
            channel,
            ranks,
            sizes,
            what,
        )
        self._parts = equal_parts(tuple(sizes), len(ranks))
        self._place = ranks.index(channel.group.rank)
        words = what.format(f"part {self._place}")
        self._scatter = ReduceScatter(
            channel, ranks, arrays, self._parts, words, add, like
        )
        self._exchange = self._scatter.exchange
        self.sends = self._exchange.sends

    def advance(self) -> None:
        """Continue, if the messages of the round have arrived. Local; never waits."""
        while self.round < 3 and self._exchange.has_arrived():
            self.go_on()

    def go_on(self) -> None:
        """Wait for the messages of the round, and begin the next one.

        Raises
        ------
        MessageError
            Codes ``timeout``, ``shape`` and ``dtype``, as :meth:`Exchange.wait`.
        """
        if self.round == 1:
            total = self._scatter.wait()
            self._put(self._place, total)
            self._exchange = self._gathering(total)
            self.sends = self.sends + self._exchange.sends
            del self._scatter  # and with it the contributions
        else:
            for rank, pieces in self._exchange.wait().items():
                self._put(self._ranks.index(rank), pieces)
        self.round += 1

    def _gathering(self, total: Arrays) -> Exchange:
        others = self._channel.others(self._ranks) if total else []
        awaited = {
            rank: self._what.format(f"the sum of part {place}")
            for place, rank in enumerate(self._ranks)
            if place != self._place and self._parts[place]
        }
        return Exchange(self._channel.of_sums, [(total, others)], awaited)

    def _put(self, place: int, pieces: Arrays) -> None:
        for (i, elements), piece in zip(self._parts[place], pieces):
            if piece is not None:
                total = self.arrays[i]
                if total is None:
                    total = self._channel.xp.zeros(self._sizes[i], dtype=piece.dtype)
                    self.arrays[i] = total
                total[elements] = piece


def finish_all(group: ProcessGroup, reductions: Iterable[AllReduce]) -> None:
    """Wait for several reductions. Collective among the members of each.

    Members may have begun them in any order: the first round of all comes before the
    second of any.

    Raises
    ------
    MessageError
        Codes ``timeout``, ``shape`` and ``dtype``, as :meth:`Exchange.wait`.
    """
    reductions = list(reductions)
    for number in (1, 2):
        with _in_round(group, number):
            for reduction in reductions:
                if reduction.round == number:
                    reduction.go_on()
    finish(send for reduction in reductions for send in reduction.sends)


@contextmanager
def _in_round(group: ProcessGroup, number: int) -> Iterator[None]:
    """Report the round: of two ranks that are blocked on each other, which is ahead."""
    group.activity.round = number
    try:
        yield
    finally:
        group.activity.round = 0


def all_reduce(
    group: ProcessGroup, array: Any, add: Callable[[Any, Any], Any]
) -> np.ndarray:
    """Return an array combined over all ranks; see :meth:`ProcessGroup.all_reduce`."""
    own, ranks = np.array(array, order="C"), range(group.size)
    described(own.dtype, own.shape, 0)  # refuses what cannot be sent, also on one rank
    own = own.astype(own.dtype.newbyteorder("="), copy=False)
    channel, what = Channel(group, OwnTag.GATHER), "its part of an all-reduce"
    in_order = partial(in_pairs, add)
    if group.size > 2:
        flat = own.reshape(-1)
        reduction = AllReduce(channel, ranks, [flat], [flat.size], what, in_order, own)
        finish_all(group, [reduction])
        return own
    # Two ranks send as many bytes if each one adds everything, and in one round.
    scatter = ReduceScatter(channel, ranks, [own], None, what, in_order, own)
    with _in_round(group, 1):
        (total,) = scatter.wait()
    finish(scatter.exchange.sends)
    return np.asarray(total)


# -- parts ----------------------------------------------------------------------------


def _cut_out(arrays: Arrays, part: Part) -> list[Array | None]:
    return [
        None if (array := arrays[i]) is None else array[elements]
        for i, elements in part
    ]


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
    total, parts = sum(sizes), list[list[tuple[int, slice]]]()
    for member in range(n):
        start, stop = member * total // n, (member + 1) * total // n
        first, part = 0, []
        for i, size in enumerate(sizes):
            begin, end = max(start, first) - first, min(stop, first + size) - first
            # One member finds out whether an array without elements is None.
            if begin < end or (size == 0 and member == n - 1):
                part.append((i, slice(begin, end) if size else slice(0, 0)))
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
    return others + parts[place] + received if n > 1 else 0


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
