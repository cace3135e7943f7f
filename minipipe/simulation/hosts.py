"""The hosts of ranks, and what they share: cores and links, on which work flows.

An action, an overhead and an update each need a core. While more of them run on a host
than it has cores, all of them get the same fraction of a core::

    two ranks, one core   rank 0   |0F0|---- 0F1 ----|     0F1 and 1F0 take 1 each, and
                          rank 1       |---- 1F0 ----|1F1| run at rate 1/2 until both
                                                           end; then 1F1 has the core

Each host has a clock of its own, which goes at the rate of its actions: work of 1 that
begins at 3 on that clock ends at 4, however often the rate changes meanwhile. So only
the earliest end of each host has to be known.

A message between two hosts leaves at its fair rate; :func:`fair_rates` has the rates.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple, TypeVar

M = TypeVar("M", bound=Hashable)
Then = Callable[[], object]  # what to do when something has ended
Link = tuple[str, int]  # "out" of a host or "into" it, and its number
Route = tuple[Link, Link]


class Hosts(NamedTuple):
    """The hosts of a simulation.

    Attributes
    ----------
    of_rank : tuple of int
        By rank, its host.
    cores : tuple of float
        By host; infinite if each of its ranks has a core of its own.
    """

    of_rank: tuple[int, ...]
    cores: tuple[float, ...]

    def are_shared(self, times_on_links: Iterable[float]) -> bool:
        """Whether a host has more ranks than cores, or messages may share a link.

        Parameters
        ----------
        times_on_links : iterable of float
            The times of the messages.

        Examples
        --------
        >>> Hosts((0, 0), (2.0,)).are_shared([1]), Hosts((0, 0), (1.0,)).are_shared([])
        (False, True)
        >>> hosts = Hosts((0, 1), (inf, inf))
        >>> hosts.are_shared([0.0]), hosts.are_shared([0.5])
        (False, True)
        """
        counts = map(self.of_rank.count, range(len(self.cores)))
        share_cores = any(count > cores for count, cores in zip(counts, self.cores))
        return share_cores or (len(self.cores) > 1 and any(times_on_links))

    def links_between(self, source: int, destination: int) -> Route | None:
        """Return the links of a message between two ranks; None within a host.

        One is out of a host, the other into one.

        Examples
        --------
        >>> Hosts((0, 0, 1), (2.0, 1.0)).links_between(1, 2)
        (('out', 0), ('into', 1))
        """
        out = self.of_rank[source]
        into = self.of_rank[destination]
        if out == into:
            return None
        return ("out", out), ("into", into)


class Cores:
    """The cores of a host, and the ranks at work there.

    Its clock shows how much work each of them has done.
    """

    def __init__(self, number: float) -> None:
        self.number = number
        self.clock = 0.0
        self.ends: list[tuple[float, int, Then]] = []  # on the clock, and the ranks

    def begin(self, rank: int, time: float, then: Then) -> None:
        """Begin the work of a rank, which takes a time on a core of its own."""
        heappush(self.ends, (self.clock + time, rank, then))

    @property
    def rate(self) -> float:
        """The part of a core that each rank has."""
        return min(1.0, self.number / len(self.ends))

    def next_end(self, now: float) -> float:
        """Return when the first of its ranks ends its work, if none begins before."""
        if not self.ends:
            return inf
        return now + (self.ends[0][0] - self.clock) / self.rate

    def advance(self, time: float, is_end: bool) -> Iterator[Then]:
        """Let some time pass; yield what to do after each work that has ended."""
        if self.ends:
            self.clock += time * self.rate
            if is_end:
                self.clock = self.ends[0][0]
        while self.ends and self.ends[0][0] <= self.clock:
            yield heappop(self.ends)[2]


class _Passing:
    """A message on links: the time that it would still take alone, and its rate."""

    def __init__(self, time: float, links: Route, then: Then) -> None:
        self.time = time
        self.links = links
        self.then = then
        self.rate = 1.0


class Links:
    """The messages that are passing links between hosts."""

    def __init__(self) -> None:
        self.passing: list[_Passing] = []
        self.since = 0.0  # the time of the last change

    def begin(self, now: float, time: float, links: Route, then: Then) -> None:
        """Begin a message, which takes a time alone."""
        self._change(now, [*self.passing, _Passing(time, links, then)])

    def next_end(self) -> float:
        """Return when the first message has passed, if none begins before."""
        return min(map(self._end, self.passing), default=inf)

    def ended(self, now: float) -> list[Then]:
        """Remove the messages that have passed; return what to do after each."""
        over = [message for message in self.passing if self._end(message) <= now]
        if over:
            left = [message for message in self.passing if message not in over]
            self._change(now, left)
        return [message.then for message in over]

    def _end(self, message: _Passing) -> float:
        return self.since + message.time / message.rate

    def _change(self, now: float, passing: list[_Passing]) -> None:
        for message in self.passing:
            passed = (now - self.since) * message.rate
            message.time = max(0.0, message.time - passed)
        rates = fair_rates({message: message.links for message in passing})
        for message in passing:
            message.rate = rates[message]
        self.passing = passing
        self.since = now


def fair_rates(links_of: Mapping[M, Sequence[Link]]) -> dict[M, float]:
    """Return the max-min fair rate of each message, a part of the bandwidth of a link.

    No message can get more without slowing one that is no faster. Repeatedly, the link
    with the lowest rate per message is filled: its messages share its remaining
    bandwidth evenly.

    References
    ----------
    Bertsekas and Gallager 1992, "Data networks", section 6.5.2, max-min flow control.

    Examples
    --------
    Two messages leave host 0, and one of them meets three more at host 1.

    >>> a, b = ("out", 0), ("into", 1)
    >>> fair_rates({"x": [a], "y": [a, b], "z": [b], "w": [b], "v": [b]})
    {'y': 0.25, 'z': 0.25, 'w': 0.25, 'v': 0.25, 'x': 0.75}
    """
    free = {link: 1.0 for links in links_of.values() for link in links}
    users: dict[Link, list[M]] = {link: [] for link in free}
    for message, links in links_of.items():
        for link in links:
            users[link].append(message)
    rates: dict[M, float] = {}
    while users:
        tightest = min(users, key=lambda link: free[link] / len(users[link]))
        rate = free[tightest] / len(users[tightest])
        for message in users[tightest]:
            rates[message] = rate
            for link in links_of[message]:
                free[link] -= rate
        left = {link: [m for m in users[link] if m not in rates] for link in users}
        users = {link: messages for link, messages in left.items() if messages}
    return rates
